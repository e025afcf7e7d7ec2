"""The rows of a study on the terminal, and a figure of them in its folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from rich.table import Table
    from rich.text import Text

    from rwalk.report.seed_summaries import Summary
    from rwalk.studies.rows import Row

ASKED_FOR = ("gap", "calibration")  # measured only on request


def show(rows: list[Row], folder: Path) -> None:
    """Print the results of a study and the files written; the demonstration has its own table."""
    from rwalk.cli import demonstrate
    from rwalk.demonstration.story import are_all_in

    (demonstrate.show if are_all_in(rows) else _show_tables)([row.shown() for row in rows], folder)


def _show_tables(rows: list[Row], folder: Path) -> None:
    """One table per head, the runs that stopped with the reason, and the files written."""
    from rich.console import Console
    from rich.markup import escape

    from rwalk.escaping import shown
    from rwalk.report.seed_summaries import heads_agree, summarise
    from rwalk.report.wording import BOTH, HEAD_NAMES
    from rwalk.studies.provenance import mixture

    console = Console()
    summaries = summarise(rows)
    if said := mixture(row.made for row in rows):
        console.print(escape(said), style="yellow", highlight=False)
    heads = ["single"] if heads_agree(summaries) else ["single", "multi"]
    for head in heads:
        console.print(_table(summaries, head, BOTH if len(heads) == 1 else ""))
    for row in rows:
        if row.stopped:
            reason = escape(row.stopped)
            console.print(f"[red]stopped[/red]: {escape(row.method)}, seed {row.seed}: {reason}")
    written = "study.json, runs.jsonl"
    try:
        from rwalk.report.matplotlib_figures import Block, accuracy_over_time

        named = {"single": ""} if len(heads) == 1 else HEAD_NAMES
        blocks = [Block(head, summaries, f"{name} accuracy %".lstrip()) for head, name in named.items()]
        accuracy_over_time(blocks, folder / "accuracy.png")
        written += ", accuracy.png"
    except ImportError:
        written += " (for a figure too: pip install 'rwalk[plots]')"
    except OSError as error:
        written += f" (no figure: {error.strerror})"
    console.print(shown(f"{folder}: {written}"), soft_wrap=True, highlight=False, markup=False)


def _table(summaries: Sequence[Summary], head: str, title: str) -> Table:
    """A_K in percent, F_K and I_K as the paper writes them; mean ± standard deviation over the seeds."""
    from rich.table import Table
    from rich.text import Text

    from rwalk.report.seed_summaries import MORE
    from rwalk.report.wording import TITLES, number

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
    import numpy as np
    from rich.text import Text

    from rwalk.report.welch_test import mean_and_deviation

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
