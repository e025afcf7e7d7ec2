"""Feeding trackers: from the events of a running study, or from the rows of one that has run.

A tracker never holds up a study, and never stops it. Each has a thread of its own, and one that fails is dropped
with one warning: `rwalk export` shows the study later.
"""

from __future__ import annotations

import logging
import math
import shlex
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Self

from rwalk.errors import first_line
from rwalk.metrics import HEADS
from rwalk.studies.curves import Curves
from rwalk.studies.events import Event, RowDone, Stepped, TaskMeasured
from rwalk.studies.specs import RunSpec
from rwalk.studies.trackers.base import Tracker, digest

PATIENCE = 60.0  # seconds that a study waits, when it has ended, for a tracker to have written everything

logger = logging.getLogger(__name__)
StepsBefore = Callable[[RunSpec, int], int]  # a run and a task → the steps of all tasks before it
Call = Callable[[Tracker], None]


class Tracking:
    """Turns events into calls of trackers, and records the loss curves that rows do not hold.

    `steps_before` counts a run's steps over the tasks, which may differ in length.
    """

    def __init__(self, trackers: Sequence[Tracker], curves: Curves, steps_before: StepsBefore) -> None:
        self._outlets = [_Outlet(tracker) for tracker in trackers]
        self._curves = curves
        self._steps_before = steps_before
        self._counted: dict[tuple[str, int], int] = {}  # steps before a task, by run and task: asked at every loss
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
            self._finish(RunSpec.from_json(event.row["spec"]), event.row)

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

    def _finish(self, run: RunSpec, row: Mapping[str, Any]) -> None:
        """Tasks that ended before an interruption were measured in another process: the row has them."""
        self._begin(run)
        for task in range(len(row["accuracy"]["single"])):
            if task not in self._logged[run.hash()]:
                self._accuracies(run, task, _measured(row, task))
        self._tell(lambda tracker: tracker.finish(run, row))

    def _begin(self, run: RunSpec, before: int | None = None) -> None:
        """A run that goes on from a checkpoint shows its losses from before the interruption too."""
        if run.hash() in self._logged:
            return
        self._logged[run.hash()] = set()
        earlier = [(step, loss) for step, loss in self._curves.of(run) if before is None or step < before]

        def begin(tracker: Tracker) -> None:
            tracker.begin(run)
            for step, loss in earlier:
                tracker.log(run, {"loss": loss}, step)

        self._tell(begin)

    def _tell(self, call: Call) -> None:
        for outlet in self._outlets:
            outlet.put(call)


def export(tracker: Tracker, rows: Iterable[Mapping[str, Any]], curves: Curves) -> int:
    """Show every row that the tool does not have yet, as if it had just been trained; how many those were."""
    known, added = tracker.known(), 0
    for row in rows:
        if known.get(row["hash"]) == digest(row):
            continue
        run = RunSpec.from_json(row["spec"])
        tracker.begin(run)
        for step, loss in curves.of(run):
            tracker.log(run, {"loss": loss}, step)
        for task in range(len(row["accuracy"]["single"])):
            tracker.log(run, _by_task(_measured(row, task)), task + 1)
        tracker.finish(run, row)
        added += 1
    return added


def _measured(row: Mapping[str, Any], task: int) -> dict[str, list[float]]:
    """What was measured after a task of a row: nothing, if the run had stopped by then."""
    return {
        head: [value for value in row["accuracy"][head][task][: task + 1] if value is not None] for head in HEADS
    }


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
        self._calls: SimpleQueue[Call | None] = SimpleQueue()
        self._failed = False
        self._thread = threading.Thread(target=self._work, name=f"tracker {tracker.name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def put(self, call: Call) -> None:
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
        except Exception as error:  # whatever a server or a disk does, the study does not depend on it
            self._give_up(first_line(error))

    def _give_up(self, reason: str) -> None:
        if not self._failed:
            self._failed = True
            name, folder = self._tracker.name, self._tracker.subject.folder
            later = f"`rwalk export {shlex.quote(str(folder))} --to {name}` shows it later"
            logger.warning("the tracker %s failed (%s), the study goes on without it: %s", name, reason, later)
