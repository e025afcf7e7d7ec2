"""Errors and warnings about what the user can correct: one line with the fault and the cure."""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path
from types import FrameType

from rwalk.escaping import shown

INSIDE = str(Path(__file__).parent), contextlib.__file__


class InputError(ValueError):
    """An input cannot be used. The command line prints it and exits with code 2."""


def first_line(error: BaseException) -> str:
    """The first line of its message, or its type's name if it has none."""
    return next(iter(str(error).splitlines()), type(error).__name__)


def warn_caller(message: str) -> None:
    """Warn about the line outside this package, and outside torch, that led here."""
    level, frame = 1, sys._getframe()
    while _is_inside(frame) and isinstance(frame.f_back, FrameType):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, stacklevel=level)


def _is_inside(frame: FrameType) -> bool:
    module = str(frame.f_globals.get("__name__")).partition(".")[0]
    return frame.f_code.co_filename.startswith(INSIDE) or module == "torch"


def unknown(kind: str, name: str, known: Iterable[str]) -> InputError:
    """An error for an unknown name, with the nearest known one suggested.

    >>> str(unknown("method", "rwlk", ["rwalk", "pi"]))
    "unknown method 'rwlk': did you mean 'rwalk'? (known: rwalk, pi)"
    """
    names = list(known)
    written = {each.lower(): each for each in names}
    near = get_close_matches(name.lower(), written, n=1)
    hint = f": did you mean {written[near[0]]!r}?" if near else ""
    listed = ", ".join(map(shown, names))
    return InputError(f"unknown {kind} {name!r}{hint} (known: {listed})")
