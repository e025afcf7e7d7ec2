"""What our learners are called, with a line about each: read from their sources, without waiting for torch."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path

FOLDERS = ("methods", "losses", "projectors", "solvers")  # what a learner may be named after
ORDER = ("vanilla", "ewc", "ewc++", "pi", "rwalk", "icarl", "icarl-hb1", "gem", "a-gem")


def summaries() -> dict[str, str]:
    """Every named learner, with a one-line description; oldest first, so that colours in reports do not change."""
    files = (file for folder in FOLDERS for file in (Path(__file__).parent / folder).glob("*.py"))
    found = dict(pair for file in files for pair in _described(file))
    return {name: found[name] for name in in_order(found)}


def in_order(names: Iterable[str]) -> list[str]:
    return [*ORDER, *sorted(set(names) - set(ORDER))]


def _described(file: Path) -> Iterator[tuple[str, str]]:
    """The `name` and `summary` of every class in a file that has a name."""
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if not isinstance(node, ast.ClassDef):
            continue
        told = {
            each.target.id: each.value.value
            for each in node.body
            if isinstance(each, ast.AnnAssign)
            and isinstance(each.target, ast.Name)
            and isinstance(each.value, ast.Constant)
        }
        if told.get("name"):
            yield str(told["name"]), str(told["summary"])
