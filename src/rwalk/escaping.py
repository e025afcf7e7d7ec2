"""Text from files, folders and users, made safe to show on a terminal, in a page or in a spreadsheet."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

FORMULA = ("=", "+", "-", "@")  # how a cell begins that a spreadsheet computes


def shown(text: object, most: int | None = None) -> str:
    r"""The text, cut after `most` characters, in one line; characters that do not print as themselves are escaped.

    Control characters move a terminal's cursor or change its title, and lone surrogates cannot be encoded.

    >>> shown("cat\x1b]0;owned\x07\ndog"), shown("λ = 1", most=1)
    ('cat\\x1b]0;owned\\x07\\ndog', 'λ…')
    """
    words = str(text)
    words = words if most is None or len(words) <= most else words[:most] + "…"
    if words.isprintable():
        return words
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in words)


def all_shown(record: Any) -> Any:
    """A JSON value with every text in it, names included, as `shown`."""
    if isinstance(record, str):
        return shown(record)
    if isinstance(record, Mapping):
        return {shown(name): all_shown(value) for name, value in record.items()}
    return [all_shown(value) for value in record] if isinstance(record, list | tuple) else record


def cell(value: object) -> str:
    """A value as a cell of a CSV file: a text that a spreadsheet would compute begins with an apostrophe.

    >>> cell("=1+1"), cell(-1.5), cell("-1.5")
    ("'=1+1", '-1.5', '-1.5')
    """
    text = shown(value)
    if not text.startswith(FORMULA):
        return text
    try:
        float(text)
    except ValueError:
        return f"'{text}"
    return text
