"""An executor trains runs: `Executor` in processes of this machine, one of your own anywhere.

Every executor trains a fleet in the same way, by `train_fleet`.
"""

from __future__ import annotations

import gc
import json
import logging
import shutil
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray

from rwalk.atomic_files import parse_json, write_atomically
from rwalk.data.streams import Stream
from rwalk.engine import evaluation
from rwalk.engine.fleet import Fleet
from rwalk.engine.progress import Progress
from rwalk.errors import InputError, first_line
from rwalk.metrics import HEADS
from rwalk.studies import numerics_history, provenance
from rwalk.studies.checkpoint import Checkpointer, check_is_there
from rwalk.studies.json_records import content_hash
from rwalk.studies.rows import Outcome, ReferenceOutcome
from rwalk.studies.specs import RunSpec, StreamSpec, learned_by, passes_of, steps_of
from rwalk.studies.study_events import Stepped, Trained, Watch
from rwalk.studies.worker_pool import Pool, Report, Stop, Work
from rwalk.threads import available_cores, few_threads, usual_torch

Job = tuple[RunSpec, ...]  # the runs of one fleet
Result = Outcome | ReferenceOutcome
Outcomes = tuple[Job, list[Result]]  # and a result for each of them
News = Progress | str
JobReport = Callable[[Job, News], None]  # takes the news of a job in progress

DTYPES = {"float32": torch.float32, "float64": torch.float64}
NOTE = "fleet.json"  # beside a fleet's checkpoints: the runs it consists of

logger = logging.getLogger(__name__)


class TooWide(NamedTuple):
    """The answer of a device that a fleet exhausted the memory of."""

    reason: str


class Context(NamedTuple):
    """The same for every job: the device, the data, and where checkpoints are kept."""

    device: str
    streams: dict[StreamSpec, Stream]
    checkpoints: Path | None
    checkpoint_every: int | None
    commit: str | None = None  # of rwalk, when the study began to train

    def identity(self, job: Sequence[RunSpec]) -> str:
        """A hash of everything that a job's results depend on: settings, the user's code, our numerics, the data.

        A folder of images may change without changing its name, and so may a network.
        """
        runs = [[spec.hash(), provenance.code_of(spec), numerics_history.number_of(spec)] for spec in job]
        return content_hash([runs, self.streams[job[0].stream].fingerprint()])

    def batches_of(self, job: Job) -> float:
        """All batches that the steps of its runs pass over."""
        stream = learned_by(job[0], self.streams[job[0].stream])
        return len(job) * steps_of(job[0], stream, len(stream)) * passes_of(job[0], stream)

    def folder(self, job: Sequence[RunSpec]) -> Path | None:
        return self.checkpoints / self.identity(job) if self.checkpoints else None

    def has_begun(self, job: Sequence[RunSpec]) -> bool:
        folder = self.folder(job)
        return folder is not None and folder.exists()


def train_fleet(context: Context, job: Job, report: Callable[[News], None], stop: Stop) -> list[Result] | TooWide:
    """Train one fleet from its last checkpoint to its end.

    Args:
        context: The same for every job.
        job: The runs of the fleet.
        report: Takes the news.
        stop: Where it is true, the fleet is saved and KeyboardInterrupt is raised.

    Returns:
        A result per run, or TooWide where the device's memory is too small for them.
    """
    try:
        with _one_thread(context.device):
            fleet = fleet_of(context.device, learned_by(job[0], context.streams[job[0].stream]), job)
            folder = context.folder(job)
            checkpoints = Checkpointer(folder, context.identity(job), context.checkpoint_every, stop)
            if context.checkpoints and folder:
                check_is_there(context.checkpoints.parent)
                note(folder, job)
            for remark in checkpoints.resume(fleet):
                report(remark)
            fleet.train(report, checkpoints)
            if context.checkpoints:
                check_is_there(context.checkpoints.parent)
            return _results(context, job, fleet, checkpoints.executed(fleet))
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        reason = first_line(error)
    # Memory can only be released here, where the error that refers to the fleet is gone.
    fleet = checkpoints = None  # type: ignore[assignment]
    gc.collect()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()
    return TooWide(reason)


def _results(context: Context, job: Job, fleet: Fleet, execution: str) -> list[Result]:
    stream, k = context.streams[job[0].stream], job[0].reference
    if k is not None:
        found = evaluation.evaluate(fleet, stream, k)
        single, multi = ([_number(each[k]) for each in found[head]] for head in HEADS)
        return [
            ReferenceOutcome(single[run], multi[run], fleet.stopped[run], execution) for run in range(len(job))
        ]
    data = stream.fingerprint()
    return [
        Outcome(
            made=provenance.made(spec, context.device, data, execution, context.commit),
            accuracy={head: _plain(fleet.accuracy[head][run]) for head in HEADS},
            stopped=fleet.stopped[run],
            **_measured(fleet, run),
        )
        for run, spec in enumerate(job)
    ]


def _measured(fleet: Fleet, run: int) -> dict[str, dict[str, Any]]:
    """The additional measurements, as outcomes have them: {"within": {head: a[k][m][j]}, …}."""
    found: dict[str, dict[str, Any]] = {}
    for name, values in fleet.measured.items():
        kind, head = name.split(".")
        found.setdefault(kind, {})[head] = _plain(values[run])
    return found


def _plain(values: NDArray[np.float64]) -> Any:
    """Nested lists; JSON has no NaN."""
    return np.where(np.isnan(values), None, values).tolist()  # type: ignore[call-overload]


def _number(value: Any) -> float | None:
    return None if np.isnan(value) else float(value)


def _one_thread(device: str) -> AbstractContextManager[None]:
    """As in a worker process: several threads round differently, and a row must not depend on `workers`.

    torch's number of threads is one for the whole process: a program that trains a study in one of its threads has
    one thread for everything else too, until the study ends.
    """
    return few_threads(1) if device == "cpu" else usual_torch()


class Executor:
    """Does jobs in processes of this machine: on a CPU one run each, on GPUs one fleet each.

    A subclass does them elsewhere, by a `map` of its own. With one worker, jobs are done in this process.

    context  the same for all jobs.
    workers  how many jobs to do at a time.
    stop     checked continually: where it is true, running jobs are saved and KeyboardInterrupt is raised.
    """

    work: ClassVar[Work] = staticmethod(train_fleet)  # trains a job
    _pool: Pool | None = None

    def __init__(self, context: Context, workers: int, stop: Stop) -> None:
        self.context = context
        self.workers = workers
        self.stop = stop
        self._until_end = ExitStack()

    def map(self, jobs: Sequence[Job], report: Report) -> Iterator[tuple[int, Any]]:
        """Do jobs, each by `work`.

        Args:
            jobs: All of them.
            report: Takes a job's number and its news.

        Yields:
            A job's number and its result, as jobs finish.
        """
        if self.workers == 1:
            for number, job in enumerate(jobs):
                yield number, self.work(self.context, job, partial(report, number), self.stop)
            return
        if self._pool is None:
            gpus = cycle(self.devices(self.context.device) or [self.context.device])
            shares = [(device, self.context) for device in islice(gpus, self.workers)]
            self._pool = self._until_end.enter_context(Pool(partial(_on_device, self.work), shares))
        yield from self._pool.run(jobs, report, self.stop)

    @classmethod
    def devices(cls, device: str) -> list[str]:
        """All GPUs, if "cuda" means several."""
        count = torch.cuda.device_count() if device == "cuda" else 0
        return [f"cuda:{number}" for number in range(count)] if count > 1 else []

    @classmethod
    def workers_for(cls, jobs: int, device: str, asked: int | None) -> int:
        """How many jobs to do at a time; on a GPU one fleet, unless `asked` is more (docs/scaling.md)."""
        usual = len(cls.devices(device)) or (available_cores() if device == "cpu" else 1)
        return max(1, min(asked or usual, jobs))

    @classmethod
    def check_device(cls, device: str) -> None:
        """Refuse a device that runs cannot be trained on: here, one that this machine does not have."""
        try:
            found = torch.device(device)
            # Before CUDA is called: its message about a missing device depends on earlier calls.
            if found.type == "cuda" and (found.index or 0) >= (count := torch.cuda.device_count()):
                raise RuntimeError(f"this machine has {count or 'no'} CUDA device{'s' * (count != 1)}")
            torch.zeros(1, device=found).item()
        except (RuntimeError, AssertionError) as error:
            why = first_line(error)
            raise InputError(f"device {device!r} cannot be used ({why}): give cpu, or auto") from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._until_end.__exit__(*error)  # type: ignore[arg-type]

    def train(self, specs: Sequence[RunSpec], watch: Watch) -> Iterator[Outcomes]:
        """Train runs, in fleets; a fleet that does not fit into memory is split.

        Args:
            specs: The runs.
            watch: Takes the events.

        Yields:
            The runs of a fleet and their results, as fleets finish.
        """
        jobs, report = self.jobs_of(specs), reporter(watch)
        while jobs:
            split: list[Job] = []
            news_of: Callable[[int, Any], None] = lambda number, news, jobs=jobs: report(jobs[number], news)  # type: ignore[misc] # noqa: E731
            for number, results in self.map(jobs, news_of):
                if isinstance(results, TooWide):
                    split += _narrower(jobs[number], self.context.device, results.reason)
                    self.forget(jobs[number])
                else:
                    watch(Trained(jobs[number]))
                    yield jobs[number], results
            jobs = split

    def jobs_of(self, specs: Sequence[RunSpec]) -> list[Job]:
        """Runs in fleets, where they are faster together; begun fleets stay together."""
        if not self.in_fleets():
            return [(spec,) for spec in specs]
        found = begun_fleets(self.context.checkpoints, specs)
        taken = {run.hash() for job in found for run in job}
        alone = [spec for spec in specs if spec.hash() not in taken and self.context.has_begun((spec,))]
        taken |= {spec.hash() for spec in alone}
        fresh = fleets([spec for spec in specs if spec.hash() not in taken])
        jobs = [*found, *((spec,) for spec in alone), *spread_over(fresh, self.workers)]
        # The longest first: all others would wait for it if it began last.
        return sorted(jobs, key=self.context.batches_of, reverse=True) if self.workers > 1 else jobs

    def in_fleets(self) -> bool:
        """On a CPU a fleet gains nothing (docs/design.md)."""
        return self.context.device != "cpu"

    def forget(self, job: Sequence[RunSpec]) -> None:
        """Remove the checkpoints of a job whose results are safe."""
        if folder := self.context.folder(job):
            shutil.rmtree(folder, ignore_errors=True)


def _on_device(
    work: Work, shared: tuple[str, Context], job: Job, report: Callable[[Any], None], stop: Stop
) -> Any:
    """Do a job on the GPU of this process: "cuda" then means that one, and rows do not depend on its number."""
    device, context = shared
    if device != context.device:
        torch.cuda.set_device(device)
    return work(context, job, report, stop)


def reporter(watch: Watch) -> JobReport:
    """Turns the news of jobs into events."""

    def report(job: Job, news: News) -> None:
        if isinstance(news, str):
            logger.warning("%s", news)
        else:
            watch(Stepped(job, news))

    return report


def _narrower(job: Job, device: str, reason: str) -> list[Job]:
    """The runs of a fleet, in fleets of about half its width, a power of two."""
    if len(job) == 1:
        raise InputError(f"a run does not fit into the memory of {device}: take smaller batches ({reason})")
    width = 1 << ((len(job) - 1).bit_length() - 1)
    logger.warning("%d runs do not fit into the memory of %s, trying %d at a time", len(job), device, width)
    return [job[start : start + width] for start in range(0, len(job), width)]


# ── fleets ──────────────────────────────────────────────────────────────────────────────────────────────────────


def fleets(specs: Sequence[RunSpec]) -> list[Job]:
    """Runs that can share a fleet, together; in it, the runs of one method group follow each other."""
    groups: dict[str, dict[Hashable, list[RunSpec]]] = {}
    for spec in specs:
        groups.setdefault(spec.fleet_key(), {}).setdefault(spec.group_key(), []).append(spec)
    return [tuple(spec for alike in group.values() for spec in alike) for group in groups.values()]


def spread_over(jobs: Iterable[Job], devices: int) -> list[Job]:
    """The widest fleets in halves, until there is one for every device."""
    found = list(jobs)
    while 0 < len(found) < devices and len(widest := max(found, key=len)) > 1:
        place, half = found.index(widest), (len(widest) + 1) // 2
        found[place : place + 1] = [widest[:half], widest[half:]]
    return found


def note(folder: Path, job: Job) -> None:
    """Write down the runs of a fleet, whose checkpoints hold them together."""
    path = folder / NOTE
    if len(job) > 1 and not path.exists():
        write_atomically(path, json.dumps([run.hash() for run in job]))


def begun_fleets(checkpoints: Path | None, specs: Sequence[RunSpec]) -> list[Job]:
    """Fleets that an earlier process has begun, of runs among these."""
    by_hash, found = {spec.hash(): spec for spec in specs}, list[Job]()
    for path in sorted(checkpoints.glob(f"*/{NOTE}")) if checkpoints else ():
        try:
            runs = parse_json(path.read_bytes())
            job = tuple(by_hash[key] for key in runs)
        except (OSError, ValueError, LookupError, TypeError):
            continue  # damaged, or not of these runs: they begin again
        if job and len(set(runs)) == len(runs) and len({run.fleet_key() for run in job}) == 1:
            found.append(job)
            by_hash = {key: spec for key, spec in by_hash.items() if key not in runs}
    return found


def is_out_of_memory(error: BaseException | None) -> bool:
    """Whether a device ran out of memory: libraries, and graph capture, say so in different words."""
    while error is not None:
        if isinstance(error, torch.OutOfMemoryError) or "out of memory" in str(error).lower():
            return True
        if "_STATUS_ALLOC_FAILED" in str(error):
            return True
        error = error.__cause__ or error.__context__
    return False


def fleet_of(device: str, stream: Stream, job: Sequence[RunSpec], fuse: bool | None = None) -> Fleet:
    first = job[0]
    groups = sum(len(task.classes) for task in stream.tasks)
    if (kept := first.memory) and not kept.is_reservoir and groups > (kept.total or groups):
        raise InputError(
            f"{kept.total} exemplars in all are fewer than one of each class of each task: keep {groups} or more"
        )
    return Fleet(
        stream,
        first.network,
        [spec.learner() for spec in job],
        [spec.seed for spec in job],
        first.training,
        device,
        DTYPES[first.dtype],
        first.autocast,
        fuse=fuse,
        measures=evaluation.MeasureOptions(first.measure_every, first.calibration),
    )
