"""The rows of a study on the terminal, and a figure of them in its folder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rwalk.studies.store import Row


def show(rows: list[Row], folder: Path) -> None:
    """One table per head, the runs that stopped and why, and what was written."""
    from rich.console import Console
    from rich.markup import escape

    from rwalk.report.summary import summarise
    from rwalk.report.tables import result_table
    from rwalk.studies.provenance import mixture

    console = Console()
    summaries = summarise(rows)
    if said := mixture(rows):
        console.print(escape(said), style="yellow", highlight=False)
    for head in ("single", "multi"):
        console.print(result_table(summaries, head))
    for row in rows:
        if row["stopped"]:
            reason = escape(row["stopped"])
            console.print(f"[red]stopped[/red]: {escape(row['method'])}, seed {row['seed']}: {reason}")
    written = "study.json, runs.jsonl"
    try:
        from rwalk.report.figures import HEAD_NAMES, Block, accuracy_over_time

        blocks = [Block(head, summaries, f"{name} accuracy %") for head, name in HEAD_NAMES.items()]
        accuracy_over_time(blocks, folder / "accuracy.png")
        written += ", accuracy.png"
    except ImportError:
        written += " (for a figure too: pip install 'rwalk[plots]')"
    except OSError as error:
        written += f" (no figure: {error.strerror})"
    console.print(f"{folder}: {written}", soft_wrap=True, highlight=False)
