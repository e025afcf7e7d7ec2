"""A study while it runs: its jobs, their speed, and the time left.

Progress bars on a terminal; an occasional line in a file or a pipe.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TaskID, TextColumn, TimeRemainingColumn
from rich.text import Text

from rwalk.escaping import shown
from rwalk.part_names import spelled
from rwalk.report.wording import duration
from rwalk.studies import Study
from rwalk.studies.specs import RunSpec
from rwalk.studies.study_events import Event, RowDone, Started, Stepped, Trained


class Tally:
    """Counts from events how many steps are done, over all runs; pass `watch` to `Study.execute`."""

    def __init__(self, study: Study) -> None:
        self.study = study
        self.expected = 0
        self._done: dict[str, int] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """End the display."""

    def watch(self, event: Event) -> None:
        if isinstance(event, Started):
            self.expected = sum(self.study.steps(run) for run in event.runs)
        elif isinstance(event, Stepped | Trained):
            self._done[event.runs[0].hash()] = self.steps_of(event)

    @property
    def done(self) -> int:
        return sum(self._done.values())

    def steps_of(self, event: Stepped | Trained) -> int:
        """The steps that the runs of an event have done, including references and tasks of any length."""
        everything = self.study.steps(event.runs[0])
        if isinstance(event, Trained):
            return everything * len(event.runs)
        task, tasks, step, steps, _ = event.progress
        return int((task + step / steps) / tasks * everything) * len(event.runs)


class Live(Tally):
    """A bar for the whole study and a line for every running job."""

    def __init__(self, study: Study, console: Console) -> None:
        super().__init__(study)
        self.bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=28),
            TextColumn("{task.percentage:>3.0f}%"),
            _Speed(),
            TimeRemainingColumn(compact=True),
            console=console,
            transient=True,
        )
        self.total = self.bars.add_task("[bold]study", total=None)
        self.jobs: dict[str, TaskID] = {}

    def __enter__(self) -> Self:
        self.bars.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.bars.stop()

    def watch(self, event: Event) -> None:
        super().watch(event)
        if isinstance(event, Stepped):
            key = event.runs[0].hash()
            if key not in self.jobs:
                steps = self.study.steps(event.runs[0]) * len(event.runs)
                self.jobs[key] = self.bars.add_task(_name(event.runs), total=steps)
            text = f"{_name(event.runs)}  task {event.progress.task + 1}/{event.progress.tasks}"
            self.bars.update(self.jobs[key], completed=self.steps_of(event), description=text)
        elif isinstance(event, Trained) and event.runs[0].hash() in self.jobs:
            self.bars.remove_task(self.jobs.pop(event.runs[0].hash()))
        self.bars.update(self.total, total=self.expected or None, completed=self.done)


class Lines(Tally):
    """A line every few seconds, for logs."""

    def __init__(self, study: Study, write: Callable[[str], None], every: float = 10.0) -> None:
        super().__init__(study)
        self.write = write
        self.every = every
        self.rows = self.missing = 0
        self._begun = self._last = time.monotonic()

    def watch(self, event: Event) -> None:
        super().watch(event)
        if isinstance(event, Started):
            self.missing = sum(run.counts for run in event.runs)
            self.write(f"{self.missing} of {event.total} runs to train, {self.expected:,} steps")
        elif isinstance(event, RowDone):
            self.rows += 1
        now = time.monotonic()
        if now - self._last >= self.every and not isinstance(event, Started):
            self._last = now
            self.write(f"{self.rows} of {self.missing} runs done, {self._share(now - self._begun)}")

    def _share(self, seconds: float) -> str:
        share = self.done / max(1, self.expected)
        left = seconds * (1 - share) / share if share else float("inf")
        return f"{share:.0%} of the steps" + (f", about {duration(left)} left" if left < 1e7 else "")


def _name(runs: tuple[RunSpec, ...]) -> str:
    first = runs[0]
    if first.reference is not None:
        name = f"reference a*{first.reference + 1}"
    else:
        name = spelled(first.method) + (" λ=auto" if first.seeks_lam else f" λ={first.lam:g}" if first.lam else "")
        name += " trial" if first.stream.trial else ""
    return f"{shown(name)} " + (f"seed {first.seed}" if len(runs) == 1 else f"× {len(runs)} runs")


class _Speed(ProgressColumn):
    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        return Text(f"{speed:,.0f} steps/s" if speed else "", style="cyan")
