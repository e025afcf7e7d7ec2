"""Docstrings here are plain text; this makes reStructuredText of them.

A paragraph of aligned lines, a name and then its meaning, becomes a definition list. Asterisks, bars and names
that end in an underscore are themselves, not markup. Backticks stay: they are names or code.
"""

from __future__ import annotations

import re
from itertools import groupby
from typing import Any

NAMED = re.compile(r"(?P<name>\w+(?:, \w+)*)  +(?P<meaning>\S.*)")
MARKUP = re.compile(r"([*|])|(?<=\w)(_)(?!\w)")


def plain(lines: list[str]) -> list[str]:
    """A docstring's lines as reStructuredText."""
    out: list[str] = []
    for blank, paragraph in groupby(lines, key=lambda line: not line.strip()):
        out += [""] if blank else _paragraph(list(paragraph))
    return out


def _paragraph(lines: list[str]) -> list[str]:
    if lines[0].startswith((">>>", " ")):  # a doctest, or a block of code
        return lines
    if NAMED.fullmatch(lines[0]):
        return _definitions(lines)
    return [_escaped(line) for line in lines]


def _definitions(lines: list[str]) -> list[str]:
    """``name``, and below it the text of the aligned lines."""
    out: list[str] = []
    for line in lines:
        if (match := NAMED.fullmatch(line)) is not None:
            names = ", ".join(f"``{name}``" for name in match["name"].split(", "))
            out += [names, f"    {_escaped(match['meaning'])}"]
        else:
            out.append(f"    {_escaped(line.strip())}")
    return out


def _escaped(line: str) -> str:
    """What stands between backticks is left alone."""
    between = line.split("`")
    between[::2] = [MARKUP.sub(lambda found: "\\" + found[0], piece) for piece in between[::2]]
    return "`".join(between)


def _process(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    if name.startswith("rwalk"):
        lines[:] = plain(lines)


def _skip(app: Any, what: str, name: str, obj: Any, skip: bool, options: Any) -> bool | None:
    """What an estimator has from scikit-learn is explained there."""
    home = getattr(obj, "__module__", "") or ""
    return True if home.startswith("sklearn") else None


def setup(app: Any) -> dict[str, bool]:
    app.connect("autodoc-process-docstring", _process)
    app.connect("autodoc-skip-member", _skip)
    return {"parallel_read_safe": True}
