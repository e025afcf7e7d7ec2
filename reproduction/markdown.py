"""Pages in Markdown: written by hand around computed tables."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

PAGES = Path(__file__).parents[1] / "docs"


def filled(page: str, blocks: Mapping[str, Iterable[str]]) -> str:
    """The page with all lines between `<!-- NAME -->` and `<!-- /NAME -->` computed anew."""
    for name, lines in blocks.items():
        text = "".join(f"{line}\n" for line in lines)
        marks = re.compile(rf"(<!-- {re.escape(name)} -->\n).*?(<!-- /{re.escape(name)} -->)", re.DOTALL)
        page = marks.sub(lambda found, text=text: f"{found[1]}{text}{found[2]}", page)  # type: ignore[misc]
    return page


def place_of(page: Path, results: Path) -> Path:
    """Where a page of docs/ is written for this results folder: in the docs beside it, else beside it."""
    docs = results.parent / "docs"
    return (docs if docs.is_dir() else results.parent) / page.name


def table(head: Iterable[object], rows: Iterable[Iterable[object]]) -> Iterator[str]:
    """A table, line by line."""
    names = list(head)
    yield line(names)
    yield "|---" * len(names) + "|"
    yield from map(line, rows)


def line(cells: Iterable[object]) -> str:
    return "| " + " | ".join(map(str, cells)) + " |"
