"""Hyper-parameters: each can be set by name, swept, written down and read back."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any, Literal, get_args, get_origin, get_type_hints

from rwalk.errors import InputError
from rwalk.parts import Part


def others(part: Part) -> dict[str, Any]:
    """For each hyper-parameter a different value that the part accepts, if one can be found."""
    types, found = get_type_hints(type(part)), {}
    for each in fields(part):
        value = getattr(part, each.name)
        for candidate in _candidates(types[each.name], value):
            if candidate != value and _accepts(part, each.name, candidate):
                found[each.name] = candidate
                break
    return found


def _candidates(kind: Any, value: Any) -> Iterator[Any]:
    """Values of a type, nearby first."""
    if kind is bool:
        yield not value
    elif kind is int:
        yield from ([value + 1, value - 1, 2 * value] if isinstance(value, int) else [2, 1])
    elif kind is float:
        number = float(value) if isinstance(value, int | float) else 1.0
        yield from (number / 2, 1.5 * number, 0.5, number + 1)
    elif get_origin(kind) is Literal:
        yield from get_args(kind)
    else:
        for arm in get_args(kind):  # a union
            yield from _candidates(arm, value)


def _accepts(part: Part, name: str, value: Any) -> bool:
    try:
        replace(part, **{name: value})
    except InputError:
        return False
    return True


def as_json(value: Any) -> Any:
    """As it comes back from a file."""
    return json.loads(json.dumps(value))
