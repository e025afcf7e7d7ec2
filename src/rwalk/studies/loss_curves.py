"""Files beside a study's rows: commands and losses. No row depends on them, and they stop no study."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from rwalk.studies.specs import RunSpec
from rwalk.studies.study_events import Event, Stepped

COMMANDS, LOSSES = "commands.txt", "losses.csv"
NOT_UTF8 = "surrogateescape"  # how Python reads the rest of a command line, and writes it back


def note_command(folder: Path, command: str) -> None:
    """Add a command to those that worked on a study, unless it is there."""
    if command and command not in commands(folder):
        with suppress(OSError), open(folder / COMMANDS, "a", encoding="utf-8", errors=NOT_UTF8) as file:
            file.write(command.replace("\n", " ") + "\n")


def commands(folder: Path) -> list[str]:
    """The commands that worked on a study, oldest first."""
    with suppress(OSError):
        text = (folder / COMMANDS).read_text(encoding="utf-8", errors=NOT_UTF8)
        return list(dict.fromkeys(text.splitlines()))
    return []


StepsBefore = Callable[[RunSpec, int], int]  # a run and a task → the steps of all tasks before it


class Curves:
    """Losses by run and step. If an interrupted run repeats steps, the later value counts.

    `steps_before` counts a running study's steps over the tasks, which may differ in length.
    """

    def __init__(self, folder: Path, steps_before: StepsBefore = lambda run, task: 0) -> None:
        self.file = folder / LOSSES
        self._steps_before = steps_before
        self._counted: dict[tuple[str, int], int] = {}  # steps before a task, by run and task, for every loss
        self._losses: dict[str, dict[int, float]] = {}
        for line in _lines(self.file):
            with suppress(ValueError):  # a crash truncated the line
                key, step, loss = line
                self._losses.setdefault(key, {})[int(step)] = float(loss)

    def watch(self, event: Event) -> None:
        """Add the loss of a run; a fleet reports one mean of all its losses."""
        if isinstance(event, Stepped) and len(event.runs) == 1 and event.runs[0].counts:
            (run,), (task, _, step, _, loss) = event.runs, event.progress
            if (key := (run.hash(), task)) not in self._counted:
                self._counted[key] = self._steps_before(run, task)
            if math.isfinite(loss):
                self.add(run, self._counted[key] + step, loss)

    def add(self, run: RunSpec, step: int, loss: float) -> None:
        self._losses.setdefault(run.hash(), {})[step] = loss
        _append(self.file, [[run.hash(), step, repr(loss)]])

    def of(self, run: RunSpec | str) -> list[tuple[int, float]]:
        """(step, loss) of a run, or of the run with this hash."""
        return sorted(self._losses.get(run if isinstance(run, str) else run.hash(), {}).items())


def _lines(file: Path) -> list[list[str]]:
    with suppress(OSError, UnicodeDecodeError, csv.Error):
        return list(csv.reader(file.read_text().splitlines()))
    return []


def _append(file: Path, lines: Iterable[list[Any]]) -> None:
    with suppress(OSError), open(file, "a", newline="") as opened:
        csv.writer(opened, lineterminator="\n").writerows(lines)
