"""What an executor is, and how any of them trains the runs of one fleet."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray

from rwalk.data import splits
from rwalk.data.streams import Stream
from rwalk.engine import evaluation
from rwalk.engine.fleet import Fleet, Measured, Progress
from rwalk.metrics import HEADS
from rwalk.studies import numerics, provenance
from rwalk.studies.checkpoint import Checkpointer
from rwalk.studies.events import Stepped, TaskMeasured, Trained, Watch
from rwalk.studies.specs import RunSpec, StreamSpec, content_hash
from rwalk.studies.workers import Stop
from rwalk.threads import few_threads

DTYPES = {"float32": torch.float32, "float64": torch.float64}
Job = tuple[RunSpec, ...]  # the runs of one fleet
Outcomes = tuple[Job, list[dict[str, Any]]]  # and an outcome for each of them
Report = Callable[[Job, Any], None]  # takes the news of a job in progress
Keep = Callable[[Sequence[RunSpec], Fleet], None]

logger = logging.getLogger(__name__)


class Context(NamedTuple):
    """What is the same for every job: the device, the data, and where checkpoints are kept."""

    device: str
    streams: dict[StreamSpec, Stream]
    checkpoints: Path | None
    checkpoint_every: int | None
    keep: Keep | None = None  # told of every fleet that has learned its last task

    def identity(self, job: Sequence[RunSpec]) -> str:
        """What a job's results depend on: settings, the code they name, our numerics and the data itself.

        A folder of images may change without changing its name, and so may a network.
        """
        runs = [[spec.hash(), provenance.code_of(spec), numerics.number_of(spec)] for spec in job]
        return content_hash([runs, self.streams[job[0].stream].fingerprint()])

    def folder(self, job: Sequence[RunSpec]) -> Path | None:
        return self.checkpoints / self.identity(job) if self.checkpoints else None


class Executor:
    """Trains runs somewhere; a subclass says where, in `run`.

    context  what is the same for all runs
    workers  how many to train at a time; an executor may choose differently
    stop     asked continually: once it says yes, running jobs are saved and KeyboardInterrupt is raised
    """

    name: ClassVar[str] = ""
    summary: ClassVar[str] = ""

    def __init__(self, context: Context, workers: int, stop: Stop) -> None:
        self.context = context
        self.workers = workers
        self.stop = stop

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        return None

    def run(self, jobs: Sequence[Job], report: Report) -> Iterator[Outcomes]:
        """Each job and its outcomes, as jobs finish; a job may be split into narrower ones."""
        raise NotImplementedError

    def jobs_of(self, specs: Sequence[RunSpec]) -> list[Job]:
        """Runs in fleets, where they are faster together."""
        return fleets(specs) if self.context.device != "cpu" else [(spec,) for spec in specs]

    def __call__(self, specs: Sequence[RunSpec], watch: Watch) -> Iterator[Outcomes]:
        """Train these runs, telling `watch` what happens."""

        def report(job: Job, news: Progress | Measured | str) -> None:
            if isinstance(news, str):
                logger.warning("%s", news)
            elif isinstance(news, Progress):
                watch(Stepped(job, news))
            else:
                watch(TaskMeasured(job, news))

        for job, outcomes in self.run(self.jobs_of(specs), report):
            watch(Trained(job))
            yield job, outcomes

    def forget(self, job: Sequence[RunSpec]) -> None:
        """The job's results are safe: its checkpoints are not needed any more."""
        if folder := self.context.folder(job):
            shutil.rmtree(folder, ignore_errors=True)


def fleets(specs: Sequence[RunSpec]) -> list[Job]:
    """Runs that can share a fleet, together."""
    groups: dict[str, list[RunSpec]] = {}
    for spec in specs:
        groups.setdefault(spec.fleet_key(), []).append(spec)
    return [tuple(group) for group in groups.values()]


def train(
    context: Context, job: tuple[RunSpec, ...], report: Callable[[Progress | Measured | str], None], stop: Stop
) -> list[dict[str, Any]]:
    """One fleet, from its last checkpoint to its end: one outcome per run, as JSON values."""
    stream, k = context.streams[job[0].stream], job[0].reference
    fleet = fleet_of(context.device, stream if k is None else splits.union(stream, k), job)
    checkpoints = Checkpointer(context.folder(job), context.identity(job), context.checkpoint_every, stop)
    for remark in checkpoints.resume(fleet):
        report(remark)
    fleet.train(report, checkpoints)
    if k is not None:
        accuracy = evaluation.evaluate(fleet, stream, k)
        return [
            {**{head: float(accuracy[head][run, k]) for head in HEADS}, "stopped": fleet.stopped[run]}
            for run in range(len(job))
        ]
    if context.keep and job[0].counts:
        context.keep(job, fleet)
    data = stream.fingerprint()
    return [
        {
            "made": provenance.made(job[run], context.device, data),
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
        measures=evaluation.Measures(first.measure_every, first.calibration),
    )


def one_thread(device: str) -> AbstractContextManager[None]:
    """As in a worker process: several threads round differently, and a row must not depend on `workers`."""
    return few_threads(1) if device == "cpu" else nullcontext()


def _number(value: Any) -> float | None:
    """JSON has no NaN."""
    return None if np.isnan(value) else float(value)
