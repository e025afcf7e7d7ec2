"""What happens in a study, as one stream of typed events: terminals, trackers and reports all listen to it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from rwalk.engine.fleet import Measured, Progress
from rwalk.studies.specs import RunSpec

Runs = tuple[RunSpec, ...]  # that are trained together, as one fleet


class Started(NamedTuple):
    """These runs, references among them, are going to be trained; the study has so many in all."""

    runs: Runs
    total: int


class Stepped(NamedTuple):
    """Some runs have come so far."""

    runs: Runs
    progress: Progress


class TaskMeasured(NamedTuple):
    """Some runs have ended a task and were measured on all tasks so far."""

    runs: Runs
    measured: Measured


class Trained(NamedTuple):
    """Some runs have ended their last task."""

    runs: Runs


class RowDone(NamedTuple):
    """A run's row is in the store."""

    row: Mapping[str, Any]


class Finished(NamedTuple):
    """There is nothing left to do; these are the rows that are there."""

    rows: tuple[Mapping[str, Any], ...]


class Stopped(NamedTuple):
    """The study ended before it was finished: so many of its rows are there."""

    done: int
    total: int
    reason: str


Event = Started | Stepped | TaskMeasured | Trained | RowDone | Finished | Stopped
Watch = Callable[[Event], None]
