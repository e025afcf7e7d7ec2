"""The events of a study, as one typed stream: displays and files beside the rows listen to it."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from rwalk.engine.progress import Progress
from rwalk.studies.rows import Row
from rwalk.studies.specs import RunSpec

Runs = tuple[RunSpec, ...]  # that are trained together, as one fleet


class Started(NamedTuple):
    """These runs, including references, are about to be trained; the study has `total` in all."""

    runs: Runs
    total: int


class Stepped(NamedTuple):
    """Some runs have made progress."""

    runs: Runs
    progress: Progress


class Trained(NamedTuple):
    """Some runs have finished their last task."""

    runs: Runs


class RowDone(NamedTuple):
    """A run's row is in the store."""

    row: Row


Event = Started | Stepped | Trained | RowDone
Watch = Callable[[Event], None]
