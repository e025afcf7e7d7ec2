"""`rwalk methods` and `rwalk datasets`: what there is to choose from."""

from __future__ import annotations


def methods() -> None:
    """List the methods, one line each."""
    from rwalk.part_names import summaries
    from rwalk.registry import installed

    _print(summaries() | {name: f"from {where}" for name, where in installed("methods").items()})


def datasets() -> None:
    """List the datasets, one line each."""
    from rwalk.data.datasets import describe

    _print(describe())


def _print(lines: dict[str, str]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2))
    for name, line in lines.items():
        table.add_row(Text(name, style="bold"), Text(line))
    Console().print(table)
