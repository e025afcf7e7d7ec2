"""Penalties stiffer than a step can follow: the gradient form is stable for any λ.

Gradient descent with step η on a quadratic penalty of second derivative h (its stiffness) overshoots once η h
exceeds 1, and diverges beyond 2 (with momentum, later). So the optimizer is given a penalty that is softened to a
stiffness it can follow, and the rest is taken after its step, exactly, as a proximal step. Both leave a constant
gradient g at rest where the whole penalty would: at θ* − g / h.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import SGD, Optimizer

from rwalk.methods.method import Spring

FOLLOWED = 0.1  # step × stiffness that is left to the optimizer: room enough for the curvature of the loss itself


def step_size(optimizer: Optimizer, group: Mapping[str, Any]) -> float | None:
    """How far a steady unit gradient moves a parameter per step; None for an optimizer without a learning rate.

    SGD's momentum adds up to 1 / (1 − μ) steps. Adam's steps depend on the gradients' history, but not their size.
    """
    lr = group.get("lr")
    if lr is None:
        return None
    momentum = group.get("momentum", 0.0) if isinstance(optimizer, SGD) else 0.0
    if not momentum:
        return float(lr)
    return float(lr) * (1 - group["dampening"]) / (1 - momentum) if momentum < 1 else float(lr)


def followed(step: float | None, stiffest: float) -> float | None:
    """The stiffness that an optimizer's steps can follow; None if nothing is stiffer, or without a step size."""
    if not step or step * stiffest <= FOLLOWED:
        return None
    return FOLLOWED / step


def soft_pull(
    springs: Sequence[Spring], theta: Tensor, grad: Tensor, at_most: float, out: Tensor | None = None
) -> Tensor:
    """grad + ∂penalty/∂θ, as if the penalty were no stiffer than `at_most`."""
    if len(springs) == 1:  # nearly every method's, and worth fewer passes over all parameters
        ((strength, importance, anchor),) = springs
        soft = importance.clamp(max=at_most / (2.0 * float(strength)))
        way = torch.sub(theta, anchor, out=out)
        return torch.addcmul(grad, soft, way, value=2.0 * float(strength), out=out)
    force = torch.zeros_like(theta)
    for strength, importance, anchor in springs:
        force.addcmul_(importance, theta - anchor, value=2.0 * float(strength))
    share = (at_most / _stiffness(springs, theta)).clamp_(max=1.0)  # without a penalty: at_most / 0, so 1
    return torch.addcmul(grad, force, share, out=out)


def proximal_step(springs: Sequence[Spring], theta: Tensor, step: float, beyond: float) -> None:
    """θ ← argmin_u  penalty(u) + ‖u − θ‖²/(2η), of the part of the penalty that is stiffer than `beyond`."""
    if len(springs) == 1:
        ((strength, importance, anchor),) = springs
        stiff = (importance - beyond / (2.0 * float(strength))).clamp_(min=0.0).mul_(2.0 * step * float(strength))
        theta.addcmul_(stiff, anchor)
        theta /= stiff.add_(1.0)
        return
    share = (1.0 - beyond / _stiffness(springs, theta)).clamp_(min=0.0)
    weight = torch.ones_like(theta)
    for strength, importance, anchor in springs:
        stiff = (2.0 * step * float(strength)) * importance * share
        theta.addcmul_(stiff, anchor)
        weight += stiff
    theta /= weight


def _stiffness(springs: Sequence[Spring], theta: Tensor) -> Tensor:
    """The second derivative of the penalty, parameter by parameter."""
    total = torch.zeros_like(theta)
    for strength, importance, _ in springs:
        total.add_(importance, alpha=2.0 * float(strength))
    return total


def stiffest(springs: Sequence[Spring], theta: Tensor) -> float:
    return float(_stiffness(springs, theta).amax()) if theta.numel() else 0.0
