"""What would go wrong silently: a pull that overshoots, and parameters that are no numbers any more."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn
from torch.optim import SGD, Optimizer

from rwalk.errors import InputError
from rwalk.guard.pieces import Piece
from rwalk.methods import Method

EVERY = 100  # steps between two looks at the parameters: each look waits for the device


def overshoot(
    optimizer: Optimizer, group: Mapping[str, Any], pieces: Mapping[nn.Parameter, Piece | None], method: Method
) -> float:
    """How many times stiffer than a step can follow the stiffest spring of a group is; 0 where nobody knows."""
    limit = steady_limit(optimizer, group)
    if limit is None:
        return 0.0
    pulled = (pieces[parameter] for parameter in group["params"] if parameter.grad is not None)
    stiffest = max((piece.stiffness(method) for piece in pulled if piece is not None), default=0.0)
    return float(group["lr"] * stiffest / limit)


def steady_limit(optimizer: Optimizer, group: Mapping[str, Any]) -> float | None:
    """From which learning rate × stiffness on the pull overshoots by more at every step; None where nobody knows.

    Gradient descent with momentum μ on ½ h θ² diverges from η h = 2 (1 + μ) on, with Nesterov's momentum from
    2 (1 + μ) / (1 + 2 μ) on; dampening makes the gradient smaller.
    """
    if not isinstance(optimizer, SGD) or not isinstance(group["lr"], int | float):
        return None
    momentum, dampening = group["momentum"], group["dampening"] if group["momentum"] else 0.0
    if group["nesterov"]:
        return float(2 * (1 + momentum) / (1 + 2 * momentum))
    return float(2 * (1 + momentum) / (1 - dampening)) if dampening < 1 else None


def warn_of_overshooting(method: Method, optimizer: Optimizer, times: float) -> None:
    warn(
        f"SGD will diverge at lam = {method.lam:g} and {_learning_rate(optimizer)}, for the pull overshoots by "
        "more at every step: use penalty='proximal', which is stable for any lam, or lam below "
        f"{method.lam / times:.2g}"
    )


def are_finite(pieces: Iterable[Piece]) -> bool:
    """Whether all parameters are numbers still; the device is waited for once."""
    sums = [piece.sum() for piece in pieces]
    return not sums or bool(torch.stack([each.to(sums[0].device) for each in sums]).isfinite().all())


def not_finite(what: str, method: Method, optimizer: Optimizer, pulled: bool) -> InputError:
    """The error for numbers that are none any more, with the likely cause."""
    cause = ""
    if pulled and method.penalty == "gradient":
        at = f"lam = {method.lam:g} at {_learning_rate(optimizer)}"
        cause = f"if {at} was too strong, use penalty='proximal', stable for any lam; "
    return InputError(
        f"{what}: {cause}go back to weights and guard as they were saved before (Guard.load), and train the task "
        "again"
    )


def _learning_rate(optimizer: Optimizer) -> str:
    rates = [float(group["lr"]) for group in optimizer.param_groups if "lr" in group]
    return f"a learning rate of {max(rates):g}" if rates else "this optimizer's step size"


def warn(message: str) -> None:
    """At the line of the user's that led here, past all frames of ours and torch's."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and _is_machinery(frame.f_globals.get("__name__", "")):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, stacklevel=level)


def _is_machinery(module: str) -> bool:
    return module.partition(".")[0] in ("rwalk", "torch", "contextlib")
