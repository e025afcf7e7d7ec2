"""A study while it runs, and the time left: a bar on a terminal; an occasional line in a file or a pipe."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from rwalk.report.wording import duration
from rwalk.studies import Study
from rwalk.studies.study_events import Event, RowDone, Started, Stepped, Trained

EVERY = 10.0  # seconds between two lines


class Display:
    """Counts from events how many steps are done, over all runs; pass `watch` to `Study.execute`."""

    def __init__(self, study: Study, console: Console, write: Callable[[str], None]) -> None:
        self._study, self._write = study, write
        self._expected = self._missing = self._rows = 0
        self._done: dict[str, int] = {}  # steps of running and finished fleets, by the hash of their first run
        self._begun = self._told = time.monotonic()
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=28),
            TextColumn("{task.percentage:>3.0f}%"),
            TimeRemainingColumn(compact=True),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._line = self._bar.add_task("", total=None)

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.stop()

    def watch(self, event: Event) -> None:
        if isinstance(event, Started):
            self._expected = sum(self._study.steps(run) for run in event.runs)
            self._missing = sum(run.counts for run in event.runs)
            if self._bar.disable:
                self._write(f"{self._missing} of {event.total} runs to train, {self._expected:,} steps")
        elif isinstance(event, Stepped | Trained):
            self._done[event.runs[0].hash()] = self._steps_of(event)
        elif isinstance(event, RowDone):
            self._rows += 1
        done, runs = sum(self._done.values()), f"{self._rows} of {self._missing} runs done"
        self._bar.update(self._line, total=self._expected or None, completed=done, description=runs)
        now = time.monotonic()
        if self._bar.disable and now - self._told >= EVERY:
            self._told = now
            share = done / max(1, self._expected)
            left = (now - self._begun) * (1 - share) / share if share else float("inf")
            rest = f", about {duration(left)} left" if left < 1e7 else ""
            self._write(f"{runs}, {share:.0%} of the steps{rest}")

    def _steps_of(self, event: Stepped | Trained) -> int:
        """The steps that the runs of an event have done, including references and tasks of any length."""
        everything = self._study.steps(event.runs[0]) * len(event.runs)
        if isinstance(event, Trained):
            return everything
        task, tasks, step, steps, _ = event.progress
        return int((task + step / steps) / tasks * everything)
