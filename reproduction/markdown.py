"""Tables in Markdown."""

from __future__ import annotations

from collections.abc import Iterator


def row(*cells: object, head: bool = True) -> Iterator[str]:
    """A row, and the line under it if it is the table's head."""
    yield "| " + " | ".join(map(str, cells)) + " |"
    if head:
        yield "|---" * len(cells) + "|"
