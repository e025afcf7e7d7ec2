"""The rows of a study on the terminal, and a figure of them in its folder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rwalk.studies.rows import Row


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
    from rwalk.report.terminal_table import result_table
    from rwalk.report.wording import BOTH, HEAD_NAMES
    from rwalk.studies.provenance import mixture

    console = Console()
    summaries = summarise(rows)
    if said := mixture(row.made for row in rows):
        console.print(escape(said), style="yellow", highlight=False)
    heads = ["single"] if heads_agree(summaries) else ["single", "multi"]
    for head in heads:
        console.print(result_table(summaries, head, BOTH if len(heads) == 1 else ""))
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
