"""What would go wrong silently is said at the user's own line: parameters that are no numbers any more."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterable

import torch

from rwalk.errors import InputError
from rwalk.guard.state.parameter import ParameterState
from rwalk.guard.state.sharded import local

EVERY = 100  # steps between two looks at the parameters: each look waits for the device


def are_finite(pieces: Iterable[ParameterState]) -> bool:
    """Whether all parameters are numbers still; the device is waited for once."""
    trained = [(piece, parameter) for piece in pieces for parameter in piece.storage.trained]
    sums = [local(parameter.detach()).sum(dtype=piece.storage.worked_in) for piece, parameter in trained]
    return not sums or bool(torch.stack([each.to(sums[0].device) for each in sums]).isfinite().all())


def not_finite(what: str) -> InputError:
    """The error for numbers that are none any more."""
    return InputError(
        f"{what}: go back to weights and guard as they were saved before (Guard.load), and train the task again, "
        "at a smaller learning rate"
    )


def warn(message: str) -> None:
    """At the line of the user's that led here, past all frames of ours and torch's."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and _is_machinery(frame.f_globals.get("__name__", "")):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, stacklevel=level)


def _is_machinery(module: str) -> bool:
    return module.partition(".")[0] in ("rwalk", "torch", "contextlib")
