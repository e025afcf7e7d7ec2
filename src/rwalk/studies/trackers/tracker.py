"""Trackers: writers for one tool each, which identify a run by the hash of its row.

Trackers do not listen to events themselves. `Tracking` feeds them while a study runs, `export` from the rows of a
finished one: with the same calls, and so with the same result. A tracker never delays a study, and never stops it.
Each has a thread of its own, and one that fails is dropped with one warning: `rwalk export` shows the study later.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import re
import shlex
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from queue import SimpleQueue
from typing import Any, ClassVar, NamedTuple, Self

from rwalk.errors import InputError, first_line
from rwalk.escaping import all_shown, shown
from rwalk.metrics import HEADS
from rwalk.parts import defaults
from rwalk.studies.json_records import content_hash, to_json
from rwalk.studies.losses_and_costs import Curves
from rwalk.studies.rows import Description, Row
from rwalk.studies.specs import RunSpec
from rwalk.studies.study_events import Event, RowDone, Stepped, TaskMeasured

PATIENCE = 60.0  # seconds that a study waits, when it has ended, for a tracker to have written everything

logger = logging.getLogger(__name__)


class Subject(NamedTuple):
    """The study that is shown.

    folder  where its rows are
    name    the folder's name and its data, so that a study that grows keeps its name in every tool
    record  the content of study.json
    """

    folder: Path
    name: str
    record: Description

    @classmethod
    def of(cls, folder: Path, record: Description) -> Subject:
        return cls(folder, f"{shown(folder.resolve().name)}-{content_hash(to_json(record.data))[:8]}", record)


class Tracker:
    """Base of all trackers.

    Every run is begun, logged and finished, in this order. A run that was begun but never finished, because a
    process died, is begun again from nothing.
    """

    name: ClassVar[str] = ""
    summary: ClassVar[str] = ""
    package: ClassVar[str] = ""  # what it needs installed: an extra of rwalk has its name

    def __init__(self, subject: Subject) -> None:
        """Raise InputError for mistakes of the user, such as a missing package. Contact no server yet."""
        self.subject = subject
        if self.package and find_spec(self.package) is None:
            raise InputError(f"{self.package} is not installed: pip install 'rwalk[{self.package}]'")

    def __enter__(self) -> Self:
        """Contact the tool."""
        return self

    def __exit__(self, *error: object) -> None:
        """Nothing more will be logged."""

    def known(self) -> Mapping[str, str]:
        """The runs that are finished there: the hash of each row, and the digest of its content."""
        raise NotImplementedError

    def begin(self, run: RunSpec) -> None:
        """A run begins; the tool's earlier record of it is replaced."""
        raise NotImplementedError

    def log(self, run: RunSpec, values: Mapping[str, float], step: int) -> None:
        """Values at a step: `loss` at a training step, `HEAD/task N` after a task, counted from 1."""
        raise NotImplementedError

    def finish(self, run: RunSpec, row: Row) -> None:
        """The run's row is there: its A, F and I, and then the mark that `known` reads."""
        raise NotImplementedError

    def attach(self, page: Path) -> None:
        """The report page of the study, as it is now."""
        raise NotImplementedError


def digest(row: Row) -> str:
    """A digest of the whole row: a run that was trained again has the same hash, but is another row."""
    return hashlib.sha256(json.dumps(row.to_json(), sort_keys=True).encode()).hexdigest()[:16]


def hyper_parameters(run: RunSpec) -> dict[str, Any]:
    """All hyper-parameters with defaults; only the given ones of a user's own part, whose code is not imported."""
    return {**defaults(run.method), **run.numbers}


def run_title(run: RunSpec) -> str:
    """A name that can be found in a list, and differs for every run."""
    lam = hyper_parameters(run).get("lam")
    strength = f" λ={lam if isinstance(lam, str) else format(lam, 'g')}" if lam else ""
    method = re.sub(r"[/\\:]", ".", shown(run.method))  # it names a folder too
    return f"{method}{shown(strength)} seed {run.seed} {run.hash()[:8]}"


def settings(run: RunSpec) -> dict[str, Any]:
    """All settings of a run under dotted names, hyper-parameters under their own."""
    found = run.settings() | hyper_parameters(run)
    plain = {n: v if isinstance(v, str | int | float | bool) else json.dumps(v) for n, v in found.items()}
    return {shown(name): all_shown(plain[name]) for name, value in found.items() if value is not None}


def measures(row: Row) -> dict[str, float]:
    """A, F and I by head, as far as they are known."""
    return {
        f"{head}/{name}": value
        for head in HEADS
        for name, value in to_json(row.measures(head)).items()
        if value is not None
    }


# ── feeding trackers ────────────────────────────────────────────────────────────────────────────────────────────


StepsBefore = Callable[[RunSpec, int], int]  # a run and a task → the steps of all tasks before it
TrackerCall = Callable[[Tracker], None]


class Tracking:
    """Turns events into calls of trackers, and records the loss curves that rows do not hold.

    `steps_before` counts a run's steps over the tasks, which may differ in length.
    """

    def __init__(self, trackers: Sequence[Tracker], curves: Curves, steps_before: StepsBefore) -> None:
        self._outlets = [_Outlet(tracker) for tracker in trackers]
        self._curves = curves
        self._steps_before = steps_before
        self._counted: dict[tuple[str, int], int] = {}  # steps before a task, by run and task, for every loss
        self._logged: dict[str, set[int]] = {}  # the tasks whose accuracies were logged, by the runs begun here

    def __enter__(self) -> Self:
        for outlet in self._outlets:
            outlet.start()
        return self

    def __exit__(self, *error: object) -> None:
        for outlet in self._outlets:
            outlet.close()

    def attach(self, page: Path) -> None:
        self._tell(lambda tracker: tracker.attach(page))

    def watch(self, event: Event) -> None:
        if isinstance(event, Stepped) and event.runs[0].counts:
            if len(event.runs) == 1:  # a fleet reports one mean of all its losses
                (run,), (task, _, step, _, loss) = event.runs, event.progress
                self._loss(run, self._begun_at(run, task) + step, loss)
        elif isinstance(event, TaskMeasured) and event.runs[0].counts:
            task, _, accuracy = event.measured
            for number, run in enumerate(event.runs):
                self._accuracies(run, task, {head: accuracy[head][number] for head in HEADS})
        elif isinstance(event, RowDone):
            self._finish(event.row)

    def _begun_at(self, run: RunSpec, task: int) -> int:
        key = (run.hash(), task)
        if key not in self._counted:
            self._counted[key] = self._steps_before(run, task)
        return self._counted[key]

    def _loss(self, run: RunSpec, step: int, loss: float) -> None:
        if not math.isfinite(loss):
            return
        self._begin(run, before=step)
        self._curves.add(run, step, loss)
        self._tell(lambda tracker: tracker.log(run, {"loss": loss}, step))

    def _accuracies(self, run: RunSpec, task: int, accuracy: Mapping[str, Iterable[float]]) -> None:
        self._begin(run)
        self._logged[run.hash()].add(task)
        values = _by_task(accuracy)
        self._tell(lambda tracker: tracker.log(run, values, task + 1))

    def _finish(self, row: Row) -> None:
        """Tasks that ended before an interruption were measured in another process: the row has them."""
        run = row.spec
        self._begin(run)
        for task in range(row.tasks):
            if task not in self._logged[run.hash()]:
                self._accuracies(run, task, _measured(row, task))
        self._tell(lambda tracker: tracker.finish(run, row))

    def _begin(self, run: RunSpec, before: int | None = None) -> None:
        """Begin a run; if it resumes from a checkpoint, with its losses from before the interruption."""
        if run.hash() in self._logged:
            return
        self._logged[run.hash()] = set()
        earlier = [(step, loss) for step, loss in self._curves.of(run) if before is None or step < before]

        def begin(tracker: Tracker) -> None:
            tracker.begin(run)
            for step, loss in earlier:
                tracker.log(run, {"loss": loss}, step)

        self._tell(begin)

    def _tell(self, call: TrackerCall) -> None:
        for outlet in self._outlets:
            outlet.put(call)


def export(tracker: Tracker, rows: Iterable[Row], curves: Curves) -> int:
    """Show every row that the tool does not have yet, as if it had just been trained; how many those were."""
    known, added = tracker.known(), 0
    for row in rows:
        if known.get(row.hash) == digest(row):
            continue
        run = row.spec
        tracker.begin(run)
        for step, loss in curves.of(run):
            tracker.log(run, {"loss": loss}, step)
        for task in range(row.tasks):
            tracker.log(run, _by_task(_measured(row, task)), task + 1)
        tracker.finish(run, row)
        added += 1
    return added


def _measured(row: Row, task: int) -> dict[str, list[float]]:
    """The accuracies after a task of a row: none, if the run had stopped by then."""
    return {head: [value for value in row.accuracy[head][task][: task + 1] if value is not None] for head in HEADS}


def _by_task(accuracy: Mapping[str, Iterable[float]]) -> dict[str, float]:
    return {
        f"{head}/task {old + 1}": float(value)
        for head, values in accuracy.items()
        for old, value in enumerate(values)
        if value == value  # a run that diverged has NaN
    }


class _Outlet:
    """A tracker and the thread that calls it; its first error is its last call."""

    def __init__(self, tracker: Tracker) -> None:
        self._tracker = tracker
        self._calls: SimpleQueue[TrackerCall | None] = SimpleQueue()
        self._failed = False
        self._thread = threading.Thread(target=self._work, name=f"tracker {tracker.name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def put(self, call: TrackerCall) -> None:
        if not self._failed:
            self._calls.put(call)

    def close(self) -> None:
        self._calls.put(None)
        self._thread.join(PATIENCE)
        if self._thread.is_alive():
            self._give_up("it does not answer")

    def _work(self) -> None:
        try:
            with self._tracker as tracker:
                while (call := self._calls.get()) is not None:
                    call(tracker)
        except Exception as error:  # no failure of a server or a disk may stop the study
            self._give_up(first_line(error))

    def _give_up(self, reason: str) -> None:
        if not self._failed:
            self._failed = True
            name, folder = self._tracker.name, self._tracker.subject.folder
            later = f"`rwalk export {shlex.quote(str(folder))} --to {name}` shows it later"
            logger.warning("the tracker %s failed (%s), the study continues without it: %s", name, reason, later)
