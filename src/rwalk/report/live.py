"""The live display of a study: what is running, how fast, how long it will take."""

from __future__ import annotations

from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TaskID, TextColumn, TimeRemainingColumn
from rich.text import Text

from rwalk.specs import RunSpec
from rwalk.studies import Event, Study


class Live:
    """A bar for the whole study and a line for every job at work; `watch` is given to `Study.execute`."""

    def __init__(self, study: Study, runs: int, console: Console) -> None:
        self.study = study
        self.bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=28),
            TextColumn("{task.percentage:>3.0f}%"),
            _Speed(),
            TimeRemainingColumn(compact=True),
            console=console,
            transient=True,
        )
        self.total = self.bars.add_task("[bold]study", total=None, runs=runs)
        self.jobs: dict[str, tuple[TaskID, int]] = {}
        self.expected = 0.0

    def expect(self, specs: list[RunSpec]) -> None:
        """These runs will be watched."""
        self.expected = sum(self.study.steps(spec) for spec in specs)
        self.bars.update(self.total, total=self.expected)

    def __enter__(self) -> Live:
        self.bars.start()
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.bars.stop()

    def watch(self, event: Event) -> None:
        first = event.runs[0]
        key = first.hash()
        if key not in self.jobs:
            steps = self.study.steps(first)
            self.jobs[key] = self.bars.add_task(_name(event.runs), total=steps * len(event.runs)), 0
        bar, before = self.jobs[key]
        if event.progress is None:
            self.bars.remove_task(bar)
            done = self.study.steps(first) * len(event.runs)
        else:
            tasks = event.progress.tasks
            text = f"{_name(event.runs)}  task {event.progress.task + 1}/{tasks}"
            share = (event.progress.task + event.progress.step / event.progress.steps) / tasks
            done = int(share * self.study.steps(first)) * len(event.runs)
            self.bars.update(bar, completed=done, description=text)
        self.jobs[key] = bar, done
        self.bars.advance(self.total, done - before)


def _name(runs: tuple[RunSpec, ...]) -> str:
    first = runs[0]
    if first.reference is not None:
        name = f"reference a*{first.reference + 1}"
    else:
        name = first.method + (f" λ={first.lam:g}" if first.lam else "")
    return f"{name} " + (f"seed {first.seed}" if len(runs) == 1 else f"× {len(runs)} runs")


class _Speed(ProgressColumn):
    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        return Text(f"{speed:,.0f} steps/s" if speed else "", style="cyan")
