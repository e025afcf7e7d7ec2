"""What an executor is, and how any of them trains the runs of one fleet."""

from __future__ import annotations

import gc
import logging
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray

from rwalk.data.streams import Stream
from rwalk.engine import evaluation
from rwalk.engine.evaluation import Cost, kept_bytes
from rwalk.engine.fleet import Fleet
from rwalk.engine.progress import Measured, Progress
from rwalk.errors import InputError, first_line
from rwalk.metrics import HEADS
from rwalk.studies import numerics, provenance
from rwalk.studies.checkpoint import Checkpointer
from rwalk.studies.events import Spent, Stepped, TaskMeasured, Trained, Watch
from rwalk.studies.executors import widths
from rwalk.studies.executors.widths import TooWide
from rwalk.studies.specs import RunSpec, StreamSpec, content_hash, learned_by, passes_of, steps_of
from rwalk.studies.workers import Crew, Stop, Work
from rwalk.threads import available_cores, few_threads

Job = widths.Job
DTYPES = {"float32": torch.float32, "float64": torch.float64}
Outcomes = tuple[Job, list[dict[str, Any]]]  # and an outcome for each of them
Report = Callable[[Job, Any], None]  # takes the news of a job in progress
Keep = Callable[[Sequence[RunSpec], Fleet], None]
News = Progress | Measured | Cost | str

logger = logging.getLogger(__name__)


class Context(NamedTuple):
    """What is the same for every job: the device, the data, and where checkpoints are kept."""

    device: str
    streams: dict[StreamSpec, Stream]
    checkpoints: Path | None
    checkpoint_every: int | None
    keep: Keep | None = None  # told of every fleet that has learned its last task
    code: tuple[str, ...] = ()  # the user's own that runs name, as `package.module:name`

    def identity(self, job: Sequence[RunSpec]) -> str:
        """What a job's results depend on: settings, the code they name, our numerics and the data itself.

        A folder of images may change without changing its name, and so may a network.
        """
        runs = [[spec.hash(), provenance.code_of(spec), numerics.number_of(spec)] for spec in job]
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


def attempt(
    context: Context, job: Job, report: Callable[[News], None], stop: Stop
) -> list[dict[str, Any]] | TooWide:
    """The outcomes of a job's runs, unless the device's memory is too small for them."""
    try:
        with one_thread(context.device):
            return train(context, job, report, stop)
    except Exception as error:
        if not widths.is_out_of_memory(error):
            raise
        reason = first_line(error)
    # Memory can only be released here, once the error is gone and with it the fleet that it referred to.
    gc.collect()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()
    return TooWide(reason)


class Executor:
    """Trains runs somewhere; a subclass says where, by the `crew` that it hires.

    context  what is the same for all runs
    workers  how many to train at a time
    stop     asked continually: once it says yes, running jobs are saved and KeyboardInterrupt is raised
    """

    name: ClassVar[str] = ""
    summary: ClassVar[str] = ""
    work: ClassVar[Work] = staticmethod(attempt)  # what the crew does with a job

    def __init__(self, context: Context, workers: int, stop: Stop) -> None:
        self.context = context
        self.workers = workers
        self.stop = stop
        self._hired: Crew | None = None
        self._until_end = ExitStack()

    @classmethod
    def crew(cls, work: Work, shared: Any, workers: int, device: str = "cpu", code: Sequence[str] = ()) -> Crew:
        """Who does jobs of any kind; `code` names what they import of the user's own."""
        raise NotImplementedError

    @classmethod
    def workers_for(cls, jobs: int, device: str, asked: int | None) -> int:
        """How many jobs to do at a time; on a device one fleet, unless more are asked for (docs/scaling.md)."""
        return max(1, min(asked or (available_cores() if device == "cpu" else 1), jobs))

    @classmethod
    def check_device(cls, device: str) -> None:
        """Refuse a device that runs cannot be trained on."""
        check_device(device)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._until_end.__exit__(*error)  # type: ignore[arg-type]

    def hired(self) -> Crew:
        """The crew, which starts when it is first needed."""
        if self._hired is None:
            device, code = self.context.device, self.context.code
            crew = self.crew(self.work, self.shared(), self.workers, device, code)
            self._hired = self._until_end.enter_context(crew)
        return self._hired

    def shared(self) -> Any:
        """What every member of the crew gets once."""
        return self.context

    def sent(self, job: Job) -> Any:
        """A job as it is handed to the crew."""
        return job

    def run(self, jobs: Sequence[Job], report: Report) -> Iterator[Outcomes]:
        """Each job and its outcomes, as jobs finish; those that do not fit into memory are split."""
        while jobs:
            split: list[Job] = []
            for job, outcomes in self._answers(jobs, report):
                if isinstance(outcomes, TooWide):
                    split += _narrower(job, self.context.device, outcomes.reason)
                    self.forget(job)
                else:
                    yield job, outcomes
            jobs = split

    def _answers(self, jobs: Sequence[Job], report: Report) -> Iterator[tuple[Job, Any]]:
        sent = [self.sent(job) for job in jobs]
        for number, answer in self.hired().run(sent, lambda n, news: report(jobs[n], news), self.stop):
            yield jobs[number], answer

    def jobs_of(self, specs: Sequence[RunSpec]) -> list[Job]:
        """Runs in fleets, where they are faster together; begun fleets stay together."""
        if not self.in_fleets():
            return [(spec,) for spec in specs]
        begun = widths.begun(self.context.checkpoints, specs)
        taken = {run.hash() for job in begun for run in job}
        alone = [spec for spec in specs if spec.hash() not in taken and self.context.has_begun((spec,))]
        begun += [(spec,) for spec in alone]
        taken |= {spec.hash() for spec in alone}
        fresh = widths.fleets([spec for spec in specs if spec.hash() not in taken])
        jobs = [*begun, *widths.spread(fresh, self.workers)]
        # The longest first: what begins last should not be what all others wait for.
        return sorted(jobs, key=self.context.batches_of, reverse=True) if self.workers > 1 else jobs

    def in_fleets(self) -> bool:
        """On a CPU a fleet gains nothing (docs/design.md)."""
        return self.context.device != "cpu"

    def __call__(self, specs: Sequence[RunSpec], watch: Watch) -> Iterator[Outcomes]:
        """Train these runs, telling `watch` what happens."""
        seen: dict[tuple[str, ...], tuple[int, int]] = {}

        def report(job: Job, news: News) -> None:
            if isinstance(news, str):
                logger.warning("%s", news)
                return
            if isinstance(news, Cost):
                watch(Spent(job, news))
                return
            at = (news.task, news.step) if isinstance(news, Progress) else (news.task + 1, -1)
            key = tuple(run.hash() for run in job)
            if at <= seen.get(key, (-1, 0)):
                return  # its worker was lost, and another has gone back to the last checkpoint
            seen[key] = at
            watch(Stepped(job, news) if isinstance(news, Progress) else TaskMeasured(job, news))

        for job, outcomes in self.run(self.jobs_of(specs), report):
            watch(Trained(job))
            yield job, outcomes

    def forget(self, job: Sequence[RunSpec]) -> None:
        """The job's results are safe: its checkpoints are not needed any more."""
        if folder := self.context.folder(job):
            shutil.rmtree(folder, ignore_errors=True)


def _narrower(job: Job, device: str, reason: str) -> list[Job]:
    if len(job) == 1:
        raise InputError(f"a run does not fit into the memory of {device}: take smaller batches ({reason})")
    parts = widths.narrower(job)
    logger.warning(
        "%d runs do not fit into the memory of %s, trying %d at a time", len(job), device, len(parts[0])
    )
    return parts


def train(
    context: Context, job: tuple[RunSpec, ...], report: Callable[[News], None], stop: Stop
) -> list[dict[str, Any]]:
    """One fleet, from its last checkpoint to its end: one outcome per run, as JSON values."""
    begun = time.perf_counter()
    stream, k = context.streams[job[0].stream], job[0].reference
    fleet = fleet_of(context.device, learned_by(job[0], stream), job)
    folder = context.folder(job)
    checkpoints = Checkpointer(folder, context.identity(job), context.checkpoint_every, stop)
    if folder is not None:
        widths.note(folder, job)
    for remark in checkpoints.resume(fleet):
        report(remark)
    resumed = fleet.task > 0 or fleet.step > 0  # what came before took a time that nobody knows
    fleet.train(report, checkpoints)
    if k is not None:
        accuracy = evaluation.evaluate(fleet, stream, k)
        how = checkpoints.executed(fleet)
        return [
            {
                **{head: _number(accuracy[head][run, k]) for head in HEADS},
                "stopped": fleet.stopped[run],
                "execution": how,
            }
            for run in range(len(job))
        ]
    if job[0].counts and not resumed and not any(fleet.stopped):
        report(Cost((time.perf_counter() - begun) / len(job), kept_bytes(fleet)))
    if context.keep and job[0].counts:
        context.keep(job, fleet)
    data = stream.fingerprint()
    return [
        {
            "made": provenance.made(job[run], context.device, data, checkpoints.executed(fleet)),
            "accuracy": {head: [[_number(v) for v in row] for row in fleet.accuracy[head][run]] for head in HEADS},
            "stopped": fleet.stopped[run],
            **_measured(fleet, run),
        }
        for run in range(len(job))
    ]


def _measured(fleet: Fleet, run: int) -> dict[str, Any]:
    """What was asked for beside accuracies, as rows have it: {"within": {head: a[k][m][j]}, …}."""
    found: dict[str, dict[str, Any]] = {}
    for name, values in fleet.measured.items():
        kind, head = name.split(".")
        found.setdefault(kind, {})[head] = _plain(values[run])
    return found


def _plain(values: NDArray[np.float64]) -> Any:
    """Nested lists; JSON has no NaN."""
    return np.where(np.isnan(values), None, values).tolist()  # type: ignore[call-overload]


def fleet_of(device: str, stream: Stream, job: Sequence[RunSpec], fuse: bool | None = None) -> Fleet:
    first = job[0]
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
        measures=evaluation.Measures(first.measure_every, first.calibration),
    )


def one_thread(device: str) -> AbstractContextManager[None]:
    """As in a worker process: several threads round differently, and a row must not depend on `workers`."""
    return few_threads(1) if device == "cpu" else nullcontext()


def _number(value: Any) -> float | None:
    """JSON has no NaN."""
    return None if np.isnan(value) else float(value)


def check_device(name: str) -> None:
    """Refuse a device that this machine does not have."""
    try:
        device = torch.device(name)
        if device.type == "cuda":
            check_ordinal(device, torch.cuda.device_count())
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError) as error:
        raise InputError(f"device {name!r} cannot be used ({first_line(error)}): give cpu, or auto") from None


def check_ordinal(device: torch.device, count: int) -> None:
    """Before the driver is asked: what it says about a device that does not exist depends on what ran before."""
    if (device.index or 0) >= count:
        raise RuntimeError(f"this machine has {count or 'no'} CUDA device{'s' * (count != 1)}")
