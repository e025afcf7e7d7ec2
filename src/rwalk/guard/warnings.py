"""Warnings at the user's own line, and the error for numbers that are not finite."""

from __future__ import annotations

import sys
import warnings

from rwalk.errors import InputError


def not_finite(what: str) -> InputError:
    return InputError(
        f"{what}: go back to weights and guard as they were saved before (Guard.load), and train the task again, "
        "at a smaller learning rate"
    )


def warn(message: str) -> None:
    """Warn at the line of the user's that led here, past all frames of ours and torch's."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and _is_machinery(frame.f_globals.get("__name__", "")):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, stacklevel=level)


def _is_machinery(module: str) -> bool:
    return module.partition(".")[0] in ("rwalk", "torch", "contextlib")
