"""How a check reports what is broken: one sentence, as an AssertionError."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from rwalk.errors import first_line

Check = tuple[str, Callable[[], None]]  # its name, and the check itself


def claim(condition: Any, sentence: str) -> None:
    """Not `assert`, which Python may be told to skip."""
    if not condition:
        raise AssertionError(sentence)


def claim_close(found: Tensor, expected: Tensor, near: float, sentence: str) -> None:
    """Equal up to rounding; NaN in both counts as equal."""
    claim(found.shape == expected.shape, f"{sentence} (shape {list(found.shape)}, not {list(expected.shape)})")
    both_nan = found.isnan() & expected.isnan()
    apart = float((found - expected).abs().masked_fill(both_nan, 0).max()) if found.numel() else 0.0
    claim(apart <= near, f"{sentence} (apart by {apart:.1e}, where rounding explains {near:.0e})")


def listed(subject: Any, name: str, *checks: Callable[[Any], None]) -> Iterator[Check]:
    """Checks of a subject under the names of their functions."""
    for check in checks:
        yield check.__name__, partial(_told, check, subject, name)


def _told(check: Callable[[Any], None], subject: Any, name: str) -> None:
    """Run a check; whatever breaks in it is reported in one line that begins with the name of the part."""
    __tracebackhide__ = True  # pytest shows where the part broke
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
