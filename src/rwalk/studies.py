"""Many specs → fleets → rows: what is already there is not run again.

On CUDA all runs that can share a fleet are one program; on a CPU runs are spread over worker processes.
"""

from __future__ import annotations

import gc
import json
import logging
import os
import shutil
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from rwalk import metrics, streams
from rwalk.batches import steps_per_epoch
from rwalk.checkpoint import Keeper
from rwalk.errors import InputError, first_line, unknown
from rwalk.fleet import HEADS, Fleet, Progress
from rwalk.specs import RunSpec, StreamSpec, content_hash, reference_of
from rwalk.store import Row, Store, environment, write_atomically
from rwalk.streams import Stream
from rwalk.threads import available_cores, few_threads
from rwalk.workers import Pool, Stop

DTYPES = {"float32": torch.float32, "float64": torch.float64}
REFERENCES = ("final", "all", "none")

logger = logging.getLogger(__name__)


class Event(NamedTuple):
    """Something happened to a job: progress made (with `progress`) or all its runs finished (without)."""

    runs: tuple[RunSpec, ...]
    progress: Progress | None


Watch = Callable[[Event], None]
Job = tuple[RunSpec, ...]  # the runs of one fleet
Finished = tuple[Job, list[dict[str, Any]]]  # and an outcome for each of them


@dataclass(frozen=True)
class Study:
    """Runs to compare, on one machine, with the references their intransigence is measured against.

    checkpoint_every  steps between checkpoints of a run; without it, as often as costs 2 % of the time
    """

    runs: tuple[RunSpec, ...]
    reference: str = "final"
    data: Path | str | None = None
    device: str = "cpu"
    workers: int | None = None
    cache: Path | None = None
    checkpoint_every: int | None = None
    _streams: dict[StreamSpec, Stream] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if self.reference not in REFERENCES:
            raise unknown("reference", self.reference, REFERENCES)
        if not self.runs:
            raise InputError("a study needs at least one run")
        if self.workers is not None and self.workers < 1:
            raise InputError(f"workers must be at least 1, not {self.workers}")
        if self.checkpoint_every is not None and self.checkpoint_every < 1:
            raise InputError(f"checkpoints are made every 1 step or more, not every {self.checkpoint_every}")
        _check_device(self.device)
        names: dict[str, RunSpec] = {}
        for run in self.runs:
            if run.dtype not in DTYPES:
                raise unknown("dtype", run.dtype, DTYPES)
            run.learner()
            if names.setdefault(run.hash(), run) is not run:
                raise InputError(f"{run.method} with λ = {run.lam:g} and seed {run.seed} is there twice: drop one")

    @classmethod
    def from_json(cls, record: Mapping[str, Any], **where: Any) -> Study:
        """The study that a study.json describes; `where` it is to run (data, device, workers …) is not in it."""
        try:
            runs = tuple(RunSpec.from_json(run) for run in record["runs"])
            content = {"runs": [run.to_json() for run in runs], "reference": record["reference"]}
            study = cls(runs, record["reference"], **where)
        except InputError:
            raise
        except (TypeError, ValueError, KeyError, AttributeError) as error:
            raise InputError(f"study.json is none of this version of rwalk ({error})") from None
        if content_hash(content) != record.get("hash"):
            raise InputError("study.json was altered (its settings are not those of its hash): restore it")
        return study

    def stream(self, spec: StreamSpec) -> Stream:
        if spec not in self._streams:
            self._streams[spec] = spec.build(self.data)
        return self._streams[spec]

    def prepare(self) -> None:
        """Load the data and build a fleet of every kind: what is wrong with a study shows here."""
        for spec in {run.fleet_key(): run for run in self.runs}.values():
            fleet_of("cpu", self.stream(spec.stream), [spec])

    def describe(self) -> dict[str, Any]:
        """What study.json says; `hash` covers what the results depend on."""
        runs = [run.to_json() for run in self.runs]
        content = {"runs": runs, "reference": self.reference}
        distinct = dict.fromkeys(run.stream for run in self.runs)
        data = [{"dataset": spec.dataset, "sha256": self.stream(spec).fingerprint()} for spec in distinct]
        return {
            "hash": content_hash(content),
            **content,
            "data": data,  # a folder of images may change under its name
            "environment": environment(self.device),
        }

    def missing(self, done: Collection[str], only: Collection[str] | None = None) -> list[RunSpec]:
        """The runs whose hashes are not among those done; `only` of these methods, where it is given."""
        return [run for run in self.runs if run.hash() not in done and (not only or run.method in only)]

    def references(self, runs: Sequence[RunSpec] | None = None) -> list[RunSpec]:
        """The reference runs that this study needs, or some of its runs."""
        if self.reference == "none":
            return []
        wanted = {}
        for run in self.runs if runs is None else runs:
            last = len(self.stream(run.stream)) - 1
            for k in range(last + 1) if self.reference == "all" else [last]:
                spec = reference_of(run, k)
                wanted[spec.hash()] = spec
        return list(wanted.values())

    def unknown_references(self, runs: Sequence[RunSpec]) -> list[RunSpec]:
        """Those of these runs' references that no earlier study has trained."""
        return [spec for spec in self.references(runs) if self._recall(spec) is None]

    def steps(self, spec: RunSpec) -> int:
        """All steps of a run, for time estimates."""
        stream = self.stream(spec.stream)
        if spec.reference is not None:
            stream = streams.union(stream, spec.reference)
        if spec.training.steps is not None:
            return spec.training.steps * len(stream)
        return sum(
            spec.training.epochs * steps_per_epoch([task.train], spec.training.batch) for task in stream.tasks
        )

    def execute(
        self,
        store: Store | None = None,
        watch: Watch = lambda event: None,
        stop: Stop = lambda: False,
        only: Collection[str] | None = None,
    ) -> list[Row]:
        """Run what is missing; rows in the order of `runs`, written to the store as they finish.

        Unfinished runs go on from their checkpoints in the store. `stop` is asked all the time: on a yes, runs at
        work are saved and KeyboardInterrupt is raised. Where `only` is given, runs of these methods alone are run,
        and the rows that are there then are returned.
        """
        done = {row["hash"]: row for row in (store.rows() if store else [])}
        missing = self.missing(done, only)
        if missing:
            references = self.references(missing)
            cached = {spec.hash(): self._recall(spec) for spec in references}
            lost = [spec for spec in references if cached[spec.hash()] is None]
            with self._crew(len(lost) + len(missing), store, stop) as crew:
                for job, outcomes in crew(lost, watch):
                    for spec, outcome in zip(job, outcomes, strict=True):
                        self._remember(spec, outcome)
                        cached[spec.hash()] = outcome
                    crew.forget(job)
                for job, outcomes in crew(missing, watch):
                    rows = [self._row(spec, outcome, cached) for spec, outcome in zip(job, outcomes, strict=True)]
                    if store:
                        store.add(*rows)
                    crew.forget(job)
                    done |= {row["hash"]: row for row in rows}
        rows = [done[known] for known in (run.hash() for run in self.runs) if known in done]
        if store and len(rows) == len(self.runs):
            store.settle(rows)
        return rows

    # ── running ───────────────────────────────────────────────────────────────────────────────────────────

    def _crew(self, jobs: int, store: Store | None, stop: Stop) -> _Crew:
        for spec in self.runs:
            self.stream(spec.stream)
        workplace = _Workplace(
            self.device, dict(self._streams), store.checkpoints if store else None, self.checkpoint_every
        )
        workers = 1 if self.device != "cpu" else min(self.workers or available_cores(), jobs)
        return _Crew(workplace, workers, stop)

    def _row(self, spec: RunSpec, outcome: Mapping[str, Any], references: Mapping[str, Any]) -> Row:
        tasks = len(outcome["accuracy"]["single"])
        row: Row = {"hash": spec.hash(), "method": spec.method, "lam": spec.lam, "seed": spec.seed}
        reference = {head: np.full(tasks, np.nan) for head in HEADS}
        for k in range(tasks):
            found = references.get(reference_of(spec, k).hash())
            if found:
                for head in HEADS:
                    reference[head][k] = found[head]
        for head in HEADS:
            a = np.array(outcome["accuracy"][head], dtype=float)
            row[head] = {
                "A": _number(metrics.average_accuracy(a)),
                "F": _number(metrics.forgetting(a)),
                "I": _number(metrics.intransigence(a, reference[head])),
            }
        row["accuracy"] = outcome["accuracy"]
        row["reference"] = {head: [_number(value) for value in reference[head]] for head in HEADS}
        row["stopped"] = outcome["stopped"]
        row["spec"] = spec.to_json()
        return row

    # ── references are the same for every method, so they are kept between studies ────────────────────────────

    def _reference_file(self, spec: RunSpec) -> Path:
        folder = self.cache or Path(os.environ.get("RWALK_CACHE", Path.home() / ".cache" / "rwalk"))
        # The data itself is in the key: a folder of images may change under its name.
        data = self.stream(spec.stream).fingerprint()
        environ = environment(self.device)
        return (
            folder / "references" / f"{content_hash([spec.to_json(), data, environ['torch'], self.device])}.json"
        )

    def _recall(self, spec: RunSpec) -> Mapping[str, Any] | None:
        try:
            outcome = json.loads(self._reference_file(spec).read_text())
            return {head: float(outcome[head]) for head in HEADS}
        except (OSError, ValueError, KeyError, TypeError):
            return None  # not there, or not ours: it is trained (again)

    def _remember(self, spec: RunSpec, outcome: Mapping[str, Any]) -> None:
        try:
            write_atomically(self._reference_file(spec), json.dumps(outcome))
        except OSError:
            return  # a cache that cannot be written is no reason to stop


class _Workplace(NamedTuple):
    """What is the same for every job: where it is computed, on which data, and where it is kept on the way."""

    device: str
    streams: dict[StreamSpec, Stream]
    checkpoints: Path | None
    checkpoint_every: int | None

    def identity(self, job: Sequence[RunSpec]) -> str:
        """What a job's results depend on: its settings and the data itself."""
        return content_hash([[spec.to_json() for spec in job], self.streams[job[0].stream].fingerprint()])

    def folder(self, job: Sequence[RunSpec]) -> Path | None:
        return self.checkpoints / self.identity(job) if self.checkpoints else None


class _Crew:
    """Those who do the work: this process, or several of it."""

    def __init__(self, workplace: _Workplace, workers: int, stop: Stop) -> None:
        self.workplace = workplace
        self.stop = stop
        self.pool = Pool(_train, workplace, workers) if workers > 1 else None

    def __enter__(self) -> _Crew:
        if self.pool:
            self.pool.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        if self.pool:
            self.pool.__exit__(*error)

    def __call__(self, specs: Sequence[RunSpec], watch: Watch) -> Iterator[Finished]:
        """(job, an outcome a run) as jobs finish."""
        together = _in_fleets(self.workplace.device)
        jobs = [job for group in _fleets(specs) for job in self._as_begun(group)] if together else _alone(specs)

        def report(job: Job, news: Progress | str) -> None:
            if isinstance(news, str):
                logger.warning("%s", news)
            else:
                watch(Event(job, news))

        for job, outcomes in self._run_in_pool(jobs, report) if self.pool else self._run_here(jobs, report):
            watch(Event(job, None))
            yield job, outcomes

    def _run_in_pool(self, jobs: Sequence[Job], report: Callable[[Job, Any], None]) -> Iterator[Finished]:
        assert self.pool is not None
        for number, outcomes in self.pool.run(jobs, lambda n, news: report(jobs[n], news), self.stop):
            yield jobs[number], outcomes

    def _run_here(self, jobs: Sequence[Job], report: Callable[[Job, Any], None]) -> Iterator[Finished]:
        """One after the other; runs that do not fit into the memory together go on in narrower fleets."""
        waiting = deque(jobs)
        while waiting:
            job = waiting.popleft()
            reason = None
            try:
                with _one_thread(self.workplace.device):
                    outcomes = _train(self.workplace, job, partial(report, job), self.stop)
            except Exception as error:
                if not _out_of_memory(error):
                    raise
                reason = first_line(error)
            if reason is None:
                yield job, outcomes
                continue
            # Only here, where the error is gone and with it the fleet that it held, can memory be given back.
            narrower = self._narrower(job, reason)
            self.forget(job)
            waiting.extendleft(reversed(narrower))

    def _narrower(self, job: Job, reason: str) -> list[Job]:
        """The runs of a fleet in fleets of about half its width, a power of two."""
        device = self.workplace.device
        if len(job) == 1:
            raise InputError(f"a run does not fit into the memory of {device}: take smaller batches ({reason})")
        gc.collect()
        if torch.cuda.is_initialized():
            torch.cuda.empty_cache()
        _, width, *_ = _widths(len(job))
        logger.warning("%d runs do not fit into the memory of %s, trying %d at a time", len(job), device, width)
        return [tuple(job[start : start + width]) for start in range(0, len(job), width)]

    def _as_begun(self, group: Job) -> list[Job]:
        """A fleet, cut as an earlier process has cut it: a checkpoint is of all runs of a fleet together."""
        for width in _widths(len(group)):
            folder = self.workplace.folder(group[:width])
            if folder is not None and folder.exists():
                rest = group[width:]
                return [group[:width], *(self._as_begun(rest) if rest else [])]
        return [group]

    def forget(self, job: Sequence[RunSpec]) -> None:
        """The job's results are safe: its checkpoints are not needed any more."""
        if folder := self.workplace.folder(job):
            shutil.rmtree(folder, ignore_errors=True)


def _one_thread(device: str) -> AbstractContextManager[None]:
    """As in a worker process: sums of several threads round otherwise, and a row must not depend on `workers`."""
    return few_threads(1) if device == "cpu" else nullcontext()


def _in_fleets(device: str) -> bool:
    """Whether runs are faster together there."""
    return device != "cpu"


def _alone(specs: Sequence[RunSpec]) -> list[Job]:
    return [(spec,) for spec in specs]


def _widths(runs: int) -> Iterator[int]:
    """What so many runs are tried in: all together, then powers of two, which however often halved cut alike."""
    yield runs
    while runs > 1:
        runs = 1 << ((runs - 1).bit_length() - 1)
        yield runs


def _out_of_memory(error: BaseException | None) -> bool:
    """Whether a device's memory was exhausted: libraries, and the capture of a graph, say so in other words."""
    while error is not None:
        if isinstance(error, torch.OutOfMemoryError) or "out of memory" in str(error).lower():
            return True
        if "_STATUS_ALLOC_FAILED" in str(error):
            return True
        error = error.__cause__ or error.__context__
    return False


def _fleets(specs: Sequence[RunSpec]) -> list[tuple[RunSpec, ...]]:
    """Runs that can share a fleet, together."""
    groups: dict[str, list[RunSpec]] = {}
    for spec in specs:
        groups.setdefault(spec.fleet_key(), []).append(spec)
    return [tuple(group) for group in groups.values()]


def _train(
    shared: _Workplace, job: tuple[RunSpec, ...], report: Callable[[Progress | str], None], stop: Stop
) -> list[dict[str, Any]]:
    """One fleet, from its last checkpoint to its end: outcomes fit for JSON, a run each."""
    stream, k = shared.streams[job[0].stream], job[0].reference
    fleet = fleet_of(shared.device, stream if k is None else streams.union(stream, k), job)
    keeper = Keeper(shared.folder(job), shared.identity(job), shared.checkpoint_every, stop)
    for remark in keeper.resume(fleet):
        report(remark)
    fleet.train(report, keeper)
    if k is not None:
        accuracy = fleet.evaluate(stream, k)
        return [{head: float(accuracy[head][run, k]) for head in HEADS} for run in range(len(job))]
    return [
        {
            "accuracy": {head: [[_number(v) for v in row] for row in fleet.accuracy[head][run]] for head in HEADS},
            "stopped": fleet.stopped[run],
        }
        for run in range(len(job))
    ]


def fleet_of(device: str, stream: Stream, job: Sequence[RunSpec]) -> Fleet:
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
    )


def _number(value: Any) -> float | None:
    """JSON has no NaN."""
    return None if np.isnan(value) else float(value)


def _check_device(name: str) -> None:
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError) as error:
        reason = first_line(error)
        raise InputError(f"device {name!r} cannot be used: {reason}") from None
