"""The demonstration on the terminal: one table, with a bar for the accuracy on the first task at the end."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from rich.bar import Bar
from rich.table import Table
from rich.text import Text

from rwalk.demonstration.story import UNPROTECTED, Way
from rwalk.report.method_colours import colour
from rwalk.report.welch_test import mean_and_deviation

BAR = 16  # characters of a bar of 100 %
GREY = "#888888"  # no protection: the colour of the picture is too dark for a dark terminal


def table(ways: Sequence[Way]) -> Table:
    """Percent of the first task recognised after each task, and of all tasks in the end."""
    tasks = ways[0].first.shape[1]
    shown = Table(box=None, padding=(0, 1, 0, 0), title_justify="left", title_style="bold")
    shown.title = "Accuracy on task 1: % of its test digits recognised, after …"
    shown.add_column("", no_wrap=True)
    for task in range(1, tasks + 1):
        shown.add_column(f"\ntask {task}", justify="right")
    shown.add_column("", width=BAR)
    shown.add_column("all tasks,\nat the end", justify="right", no_wrap=True)
    for way in ways:
        shade = GREY if way.method == UNPROTECTED else colour(way.method)
        bar = Bar(100, 0, way.left if way.is_known else 0, width=BAR, color=shade)
        shown.add_row(Text(way.name, style="bold"), *map(_percent, way.curve), bar, _spread(way))
    return shown


def _percent(value: float) -> str:
    return f"{value:.0f}" if np.isfinite(value) else "–"


def _spread(way: Way) -> str:
    mean, deviation = mean_and_deviation(way.average)
    spread = f" ± {deviation:.0f}" if np.isfinite(deviation) else ""
    return _percent(mean) + spread
