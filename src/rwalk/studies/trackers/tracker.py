"""Trackers: writers for one tool each, which identify a run by the hash of its row.

A tracker shows finished rows: `Shows` passes them on while a study runs, `export` those of a finished one. It
never delays a study, and never stops it. Each has a thread of its own, and one that fails is dropped with one
warning: `rwalk export` shows the study later.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
import shlex
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
from rwalk.studies.study_events import Event, RowDone

PATIENCE = 60.0  # seconds that a study waits, when it has ended, for a tracker to have written everything

logger = logging.getLogger(__name__)


class Subject(NamedTuple):
    """The study that is shown.

    folder  where its rows are
    name    the folder's name and its data, so that a study that grows keeps its name in every tool
    """

    folder: Path
    name: str

    @classmethod
    def of(cls, folder: Path, record: Description) -> Subject:
        return cls(folder, f"{shown(folder.resolve().name)}-{content_hash(to_json(record.data))[:8]}")


class Values(NamedTuple):
    """`loss` at a training step; `HEAD/task N` after a task, counted from 1; `HEAD/A` … after the last."""

    step: int
    values: Mapping[str, float]


class Tracker:
    """Base of all trackers."""

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
        """Nothing more will be shown."""

    def known(self) -> Mapping[str, str]:
        """The rows that are there: the hash of each, and the digest of its content."""
        raise NotImplementedError

    def show(self, row: Row, history: Sequence[Values]) -> None:
        """Show a row, instead of what the tool has of its run; and at last the mark that `known` reads."""
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
    every = {f"{head}/{name}": value for head in HEADS for name, value in to_json(row.measures(head)).items()}
    return {name: value for name, value in every.items() if value is not None}


def history(row: Row, curves: Curves) -> list[Values]:
    """All values of a row, in their order."""
    losses = [Values(step, {"loss": loss}) for step, loss in curves.of(row.spec)]
    return [*losses, *_accuracies(row), Values(row.tasks, measures(row))]


def _accuracies(row: Row) -> Iterator[Values]:
    """After each task those of all tasks so far; a run that stopped has none from then on."""
    for k in range(row.tasks):
        yield Values(
            k + 1,
            {
                f"{head}/task {j + 1}": value
                for head in HEADS
                for j, value in enumerate(row.accuracy[head][k][: k + 1])
                if value is not None
            },
        )


def export(tracker: Tracker, rows: Iterable[Row], curves: Curves) -> int:
    """Show every row that the tool does not have yet; how many those were."""
    known = tracker.known()
    new = [row for row in rows if known.get(row.hash) != digest(row)]
    for row in new:
        tracker.show(row, history(row, curves))
    return len(new)


class Shows:
    """Calls a tracker in a thread of its own, while a study runs; its first error is its last call."""

    def __init__(self, tracker: Tracker, curves: Curves) -> None:
        self._tracker, self._curves = tracker, curves
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._failed = False
        self._thread = threading.Thread(target=self._work, name=f"tracker {tracker.name}", daemon=True)

    def watch(self, event: Event) -> None:
        if isinstance(event, RowDone):
            row, found = event.row, history(event.row, self._curves)
            self._calls.put(lambda: self._tracker.show(row, found))

    def attach(self, page: Path) -> None:
        self._calls.put(lambda: self._tracker.attach(page))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._calls.put(None)
        self._thread.join(PATIENCE)
        if self._thread.is_alive():
            self._give_up("it does not answer")

    def _work(self) -> None:
        try:
            with self._tracker:
                while (call := self._calls.get()) is not None:
                    call()
        except Exception as error:  # no failure of a server or a disk may stop the study
            self._give_up(first_line(error))

    def _give_up(self, reason: str) -> None:
        if not self._failed:
            self._failed = True
            name, folder = self._tracker.name, self._tracker.subject.folder
            later = f"`rwalk export {shlex.quote(str(folder))} --to {name}` shows it later"
            logger.warning("the tracker %s failed (%s), the study continues without it: %s", name, reason, later)
