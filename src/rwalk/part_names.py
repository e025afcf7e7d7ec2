"""The names of our learners, with a line about each: read from their sources, without waiting for torch."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path

FOLDERS = ("methods", "losses", "projectors", "solvers")  # the parts that a learner may be named after
ORDER = ("vanilla", "ewc", "ewc++", "pi", "rwalk", "icarl", "icarl-hb1", "gem", "a-gem")

GUARD = "guard"  # no method of a study, but named beside them
# As people write them, in tables, figures and sentences; commands and files have the names that they are found by.
SPELLED = {
    "vanilla": "no protection",
    "ewc": "EWC",
    "ewc++": "EWC++",
    "ewc-online": "online EWC",
    "pi": "PI",
    "rwalk": "RWalk",
    "mas": "MAS",
    "l2": "L2",
    "icarl": "iCaRL",
    "icarl-hb1": "iCaRL-hb1",
    "gem": "GEM",
    "a-gem": "A-GEM",
    "der": "DER",
    "der++": "DER++",
    "er": "ER",
    "er-ace": "ER-ACE",
    "gdumb": "GDumb",
    "lwf": "LwF",
    "joint": "joint training",
    "ridge": "closed form",
    "slda": "streaming LDA",
    GUARD: "Guard",
}


def spelled(name: str) -> str:
    """The name of a method as people write it; names that are not ours stay as they are.

    >>> spelled("ridge"), spelled("package.module:Own")
    ('closed form', 'package.module:Own')
    """
    return SPELLED.get(name, name)


def summaries() -> dict[str, str]:
    """Every named learner with a one-line description, oldest first."""
    files = (file for folder in FOLDERS for file in (Path(__file__).parent / folder).glob("*.py"))
    found = dict(pair for file in files for pair in _described(file))
    return {name: found[name] for name in in_order(found)}


def in_order(names: Iterable[str]) -> list[str]:
    """The paper's methods first, in its order, then all others by name."""
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
