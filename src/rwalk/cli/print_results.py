"""The results of a study on the terminal: the demonstration's table and picture, or one table per head."""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Callable, Iterable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.bar import Bar
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from rwalk.atomic_files import write_atomically
from rwalk.cli.command_options import to_stderr
from rwalk.demonstration import guarded, story
from rwalk.demonstration.picture import picture
from rwalk.demonstration.story import Way
from rwalk.escaping import shown
from rwalk.report.method_colours import colour
from rwalk.report.page_data import differences
from rwalk.report.seed_summaries import MORE, Summary, heads_agree, summarise
from rwalk.report.welch_test import mean_and_deviation
from rwalk.report.wording import BOTH, TITLES, number
from rwalk.studies.provenance import mixture
from rwalk.studies.rows import Row

ASKED_FOR = ("gap", "calibration")  # measured only on request
BAR = 16  # characters of a bar of 100 %
GREY = "#888888"  # no protection: the colour of the picture is too dark for a dark terminal


def show(rows: list[Row], folder: Path) -> None:
    """Print the results of a study and the files written; the demonstration has its own table."""
    display = show_demonstration if story.are_all_in(rows) else show_tables
    display([row.shown() for row in rows], folder)


def show_tables(rows: list[Row], folder: Path) -> None:
    """One table per head, and the runs that stopped with the reason."""
    console = Console()
    summaries = summarise(rows)
    if said := mixture(row.made for row in rows):
        console.print(escape(said), style="yellow", highlight=False)
    titles = {"single": BOTH} if heads_agree(summaries) else TITLES
    for head, title in titles.items():
        console.print(_table(summaries, head, title))
    for row in rows:
        if row.stopped:
            reason = escape(row.stopped)
            console.print(f"[red]stopped[/red]: {escape(row.method)}, seed {row.seed}: {reason}")
    console.print(shown(f"{folder}: study.json, runs.jsonl"), soft_wrap=True, highlight=False, markup=False)


def _table(summaries: Sequence[Summary], head: str, title: str) -> Table:
    """A_K in percent, F_K and I_K as the paper writes them; mean ± standard deviation over the seeds."""
    last = str(summaries[0].tasks).translate(str.maketrans("0123456789", "₀₁₂₃₄₅₆₇₈₉"))
    asked = [name for name in ASKED_FOR if all(name in summary.more for summary in summaries)]
    columns = {
        f"accuracy A{last} %  ↑": _column((each.A[head] * 100 for each in summaries), "{:.1f}", best=max),
        f"forgetting F{last}  ↓": _column((each.F[head] for each in summaries), "{:.3f}", best=min),
        f"intransigence I{last}  ↓": _column((each.I[head] for each in summaries), "{:.3f}", best=min),
    }
    for name in asked:
        values = (each.more[name][head] for each in summaries)
        columns[f"{MORE[name][0]}  ↓"] = _column(values, "{:.3f}", best=min)
    table = Table("method", title=title, title_justify="left", title_style="bold")
    for header in ("λ", *columns):
        table.add_column(header, justify="right")
    names = [(summary.name, _strength(summary)) for summary in summaries]
    for (name, lam), told, *cells in zip(names, differences(summaries), *columns.values(), strict=True):
        is_clear = names.count((name, lam)) == 1
        table.add_row(Text(name if is_clear else f"{name}, {told}"), lam, *cells)
    return table


def _strength(summary: Summary) -> str:
    return f"auto: {summary.chosen}" if summary.chosen else number(summary.lam) if summary.lam else "–"


def _column(cells: Iterable[NDArray[np.float64]], form: str, best: Callable[..., Any]) -> list[Text]:
    """Formatted cells; the best, and any that print the same, in bold."""
    measured = [mean_and_deviation(values) for values in cells]
    finite = [mean for mean, _ in measured if np.isfinite(mean)]
    winner = _printed(best(finite), form) if finite else None
    column = []
    for mean, deviation in measured:
        text = _printed(mean, form) if np.isfinite(mean) else "–"
        spread = f" ± {form.format(deviation)}" if np.isfinite(deviation) else ""
        column.append(Text(text + spread, style="bold green" if text == winner else ""))
    return column


def _printed(value: float, form: str) -> str:
    """
    >>> _printed(-0.0001, "{:.3f}"), _printed(-0.01, "{:.3f}")
    ('0.000', '-0.010')
    """
    text = form.format(value)
    return text if float(text) else text.removeprefix("-")


# ── the demonstration ───────────────────────────────────────────────────────────────────────────────────────────


def show_demonstration(rows: list[Row], folder: Path) -> None:
    """Print the accuracy on the first task by method, write the picture, and propose three commands."""
    console = Console(highlight=False)
    ways = story.ways(summarise(rows))
    if any(way.is_known for way in ways):
        ways.insert(-1, guarded.way(folder, to_stderr))
    console.print(f"{story.setting(ways)}\n")
    console.print(table_of_ways(ways))
    console.print(f"\n[bold]{story.sentence(ways)}[/bold]\n")
    console.print(f"{story.WAYS} {story.CHOSEN}\n")
    drawn = folder / "demonstration.svg"
    try:
        write_atomically(drawn, picture(ways))
        console.print(shown(f"The picture: {drawn}"), soft_wrap=True, markup=False)
    except OSError as error:
        console.print(f"No picture could be written: {error.strerror}", soft_wrap=True, markup=False)
    console.print("Next:")
    for command, why in _next(folder):
        words = escape(shown(shlex.join([*this_program(), *command])))
        console.print(f"  [dim]# {why}[/dim]\n  {words}", soft_wrap=True)


def table_of_ways(ways: Sequence[Way]) -> Table:
    """Percent of the first task recognised after each task, a bar for the last, and percent of all tasks."""
    title = "Accuracy on task 1: % of its test digits recognised, after …"
    table = Table(title=title, box=None, padding=(0, 1, 0, 0), title_justify="left", title_style="bold")
    table.add_column("", no_wrap=True)
    for task in range(1, ways[0].first.shape[1] + 1):
        table.add_column(f"\ntask {task}", justify="right")
    table.add_column("", width=BAR)
    table.add_column("all tasks,\nat the end", justify="right", no_wrap=True)
    for way in ways:
        shade = GREY if way.method == story.UNPROTECTED else colour(way.method)
        bar = Bar(100, 0, way.left if way.is_known else 0, width=BAR, color=shade)
        mean, deviation = mean_and_deviation(way.average)
        spread = f" ± {deviation:.0f}" if np.isfinite(deviation) else ""
        table.add_row(Text(way.name, style="bold"), *map(_percent, way.curve), bar, _percent(mean) + spread)
    return table


def _percent(value: float) -> str:
    return f"{value:.0f}" if np.isfinite(value) else "–"


def _next(folder: Path) -> list[tuple[list[str], str]]:
    """Three commands that work here, as they are."""
    look = (["report", str(folder)], "these runs as one page for your browser")
    again = (["resume", str(folder)], "all this once more, without training")
    return [
        look if find_spec("jinja2") is not None else again,
        (["run", "--memory", "10", "--seeds", "2"], "harder: two new classes per task, ten examples of each kept"),
        (["methods"], "all methods; with your own data: rwalk fit --help"),
    ]


def this_program() -> list[str]:
    """The words that start this program again from the current folder."""
    called = Path(sys.argv[0])
    if called.name == "__main__.py":  # python -m rwalk
        return [_from_here(Path(sys.executable)), "-m", "rwalk"]
    found = shutil.which(called.name)
    return [called.name] if found and Path(found).resolve() == called.resolve() else [_from_here(called)]


def _from_here(path: Path) -> str:
    """Relative, if it is below the current folder; not resolved, for an environment's python is a link."""
    path = Path.cwd() / path
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)
