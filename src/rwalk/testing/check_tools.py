"""The tools of the checks: claims that fail with one sentence, and other values of hyper-parameters."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from functools import partial
from typing import Any, Literal, get_args, get_origin, get_type_hints

import torch
from torch import Tensor

from rwalk.errors import InputError, first_line
from rwalk.parts import Part

Check = tuple[str, Callable[[], None]]  # its name, and the check itself


def claim(condition: Any, sentence: str) -> None:
    """Not `assert`, which `python -O` skips."""
    if not condition:
        raise AssertionError(sentence)


def claim_close(found: Tensor, expected: Tensor, near: float, sentence: str) -> None:
    """Equal up to rounding; NaN in both counts as equal."""
    claim(found.shape == expected.shape, f"{sentence} (shape {list(found.shape)}, not {list(expected.shape)})")
    both_nan = found.isnan() & expected.isnan()
    apart = float((found - expected).abs().masked_fill(both_nan, 0).max()) if found.numel() else 0.0
    claim(apart <= near, f"{sentence} (apart by {apart:.1e}, where rounding explains {near:.0e})")


def named_checks(subject: Any, name: str, *checks: Callable[[Any], None]) -> Iterator[Check]:
    """Checks of a subject under the names of their functions."""
    for check in checks:
        yield check.__name__, partial(_told, check, subject, name)


def _told(check: Callable[[Any], None], subject: Any, name: str) -> None:
    """Run a check; a failure is reported in one line that begins with the name of the part."""
    __tracebackhide__ = True  # pytest shows the place in the part
    try:
        check(subject)
    except AssertionError as error:
        raise AssertionError(f"{name}: {first_line(error)}") from error.__cause__
    except Exception as error:
        what = check.__name__.replace("_", " ")
        raise AssertionError(f"{name}: {type(error).__name__} in '{what}': {first_line(error)}") from error


def draws(*shape: int, seed: int) -> Tensor:
    """Normal numbers, in float64."""
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


# ── hyper-parameters: each can be set by name, swept, written to JSON and read again ───────────────────────────


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
    """A value as it comes back from a file."""
    return json.loads(json.dumps(value))
