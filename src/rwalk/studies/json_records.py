"""Records as JSON and back: one codec for runs, rows, outcomes and studies, and hashes of their content."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from rwalk.errors import InputError, first_line

Record = TypeVar("Record")
# The settings that every row names. A setting that was added later is named only where it differs from its
# default, so that rows which do not use it stay the same, byte for byte.
FIRST = {
    "RunSpec": {
        *("stream", "network", "method", "numbers", "memory"),
        *("training", "seed", "dtype", "autocast", "reference"),
    },
    "StreamSpec": {"dataset", "classes_per_task", "tasks", "order_seed", "permuted", "validation"},
    "Training": {"epochs", "steps", "batch", "lr", "optimizer", "augment"},
    "MemorySpec": {"per_class", "total", "sampler", "replay"},
}
UNREADABLE = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)  # raised by malformed records


def to_json(value: Any) -> Any:
    """A record, or anything in one, as JSON values: records become objects, tuples become lists."""
    if is_dataclass(value):
        always = FIRST.get(type(value).__name__)
        named = ((each, getattr(value, each.name)) for each in fields(value))
        return {
            each.name: to_json(content)
            for each, content in named
            if always is None or each.name in always or content != each.default
        }
    if isinstance(value, Mapping):
        return {str(name): to_json(content) for name, content in value.items()}
    return [to_json(each) for each in value] if isinstance(value, list | tuple) else value


def from_json(kind: type[Record], content: Any, what: str) -> Record:
    """A record of this kind from JSON values: names must be known, and values of the fields' types.

    Raises:
        InputError: The content is not such a record; `what` names it.
    """
    types = _types_of(kind)  # type: ignore[arg-type]
    if not isinstance(content, Mapping):
        raise InputError(f"{what} is not a JSON object: the file was altered")
    for name in content:
        if name not in types:
            raise InputError(f"{what} has no field {name!r}: it was written by a newer version of rwalk")
    found = {name: _field(types[name], value, f"{name} of {what}") for name, value in content.items()}
    try:
        return kind(**found)
    except InputError:
        raise
    except UNREADABLE as error:
        raise InputError(f"{what} cannot be read ({first_line(error)}): the file was altered") from None


def _field(kind: Any, value: Any, what: str) -> Any:
    options = _options_of(kind)
    if value is None and any(wanted is NoneType for wanted, *_ in options):
        return None
    for wanted, origin, inner, is_record in options:
        if type(value) is wanted or wanted is Any or (origin is Literal and value in inner):
            return value
        if is_record:
            return from_json(wanted, value, what)
        if origin is tuple and isinstance(value, list | tuple):
            return tuple(_field(inner[0], each, what) for each in value)
        if origin in (Mapping, dict) and isinstance(value, Mapping):
            return {str(name): _field(inner[1], each, what) for name, each in value.items()}
        if wanted is float and type(value) is int:
            return value
    raise InputError(f"{what} cannot be {value!r}: the file was altered")


@cache
def _options_of(kind: Any) -> tuple[tuple[Any, Any, tuple[Any, ...], bool], ...]:
    """The types that a field may have, each with its origin, its arguments, and whether it is a record."""
    types = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    return tuple((each, get_origin(each), get_args(each), is_dataclass(each)) for each in types)


@cache
def _types_of(kind: type[Any]) -> dict[str, Any]:
    return get_type_hints(kind)


def content_hash(record: Any) -> str:
    """A hash that does not depend on the order of keys."""
    return hashlib.sha256(json.dumps(record, sort_keys=True, default=list).encode()).hexdigest()[:32]


def flat(content: Any, name: str = "") -> dict[str, Any]:
    """The values of a JSON object by dotted names.

    >>> flat({"a": {"b": 1, "c": [1, 2]}})
    {'a.b': 1, 'a.c': [1, 2]}
    """
    if isinstance(content, Mapping):
        parts = (flat(value, f"{name}.{key}".lstrip(".")) for key, value in content.items())
        return {key: value for part in parts for key, value in part.items()}
    return {name: content}
