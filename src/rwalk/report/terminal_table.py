"""The terminal's tables: one per head, with one row per method and λ, the best in bold."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from rich.table import Table
from rich.text import Text

from rwalk.report.seed_summaries import MORE, Summary
from rwalk.report.welch_test import mean_and_deviation
from rwalk.report.wording import TITLES, number

ASKED_FOR = ("gap", "calibration")  # measured only on request


def result_table(summaries: Sequence[Summary], head: str, title: str = "") -> Table:
    """A_K in percent, F_K and I_K as the paper writes them; mean ± standard deviation over the seeds."""
    tasks = summaries[0].accuracy[head].shape[-1]
    table = Table(title=title or TITLES[head], title_justify="left", title_style="bold")
    table.add_column("method")
    table.add_column("λ", justify="right")
    table.add_column(f"accuracy A{_sub(tasks)} %  ↑", justify="right")
    table.add_column(f"forgetting F{_sub(tasks)}  ↓", justify="right")
    table.add_column(f"intransigence I{_sub(tasks)}  ↓", justify="right")
    asked = [name for name in ASKED_FOR if all(name in summary.more for summary in summaries)]
    for name in asked:
        table.add_column(f"{MORE[name][0]}  ↓", justify="right")
    columns = [
        _column([summary.A[head] * 100 for summary in summaries], "{:.1f}", best=max),
        _column([summary.F[head] for summary in summaries], "{:.3f}", best=min),
        _column([summary.I[head] for summary in summaries], "{:.3f}", best=min),
        *(_column([summary.more[name][head] for summary in summaries], "{:.3f}", best=min) for name in asked),
    ]
    for summary, *cells in zip(summaries, *columns, strict=True):
        lam = f"auto: {summary.chosen}" if summary.chosen else number(summary.lam) if summary.lam else "–"
        table.add_row(Text(summary.name), lam, *cells)
    return table


def _column(cells: Sequence[NDArray[np.float64]], form: str, best: object) -> list[Text]:
    """Formatted cells; the best, and any that print the same, in bold."""
    measured = [mean_and_deviation(values) for values in cells]
    printed = [form.format(mean) for mean, _ in measured]
    finite = [mean for mean, _ in measured if np.isfinite(mean)]
    winner = form.format(best(finite)) if finite else None  # type: ignore[operator]
    column = []
    for (mean, deviation), text in zip(measured, printed, strict=True):
        if not np.isfinite(mean):
            column.append(Text("–"))
            continue
        spread = f" ± {form.format(deviation)}" if np.isfinite(deviation) else ""
        column.append(Text(text + spread, style="bold green" if text == winner else ""))
    return column


def _sub(number: int) -> str:
    return str(number).translate(str.maketrans("0123456789", "₀₁₂₃₄₅₆₇₈₉"))
