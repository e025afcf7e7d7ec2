"""What holds a model, as those who control its strength see it: a λ, and how it compares with the gradient."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from torch.optim import Optimizer

from rwalk.guard import measure
from rwalk.guard.learned import Learned
from rwalk.guard.old import Old
from rwalk.guard.pieces import Piece
from rwalk.guard.shards import Group
from rwalk.methods import Method


class Comparison(NamedTuple):
    """A pull and the gradient of the task."""

    balance: float  # the λ at which they would be equally long
    pull: float  # how many times as long as the gradient the pull is now


class Force(Protocol):
    """Something with a strength λ that keeps a model where it was."""

    lam: float
    holds_parameters: bool  # where they were; or only what the model says, wherever they are

    def compared(self, optimizer: Optimizer, old: Old, drift: float) -> Comparison: ...


class Springs:
    """The springs of a method."""

    holds_parameters = True

    def __init__(self, learned: Learned) -> None:
        self._learned = learned

    @property
    def lam(self) -> float:
        return float(self._learned.method.lam)

    @lam.setter
    def lam(self, lam: float) -> None:
        self._learned.method = replace(self._learned.method, lam=lam)

    def compared(self, optimizer: Optimizer, old: Old, drift: float) -> Comparison:
        method = replace(self._learned.method, lam=1.0)
        totals = _added(self._learned.started, lambda piece: _lengths(piece, method))
        gradient, pull, way = (math.sqrt(total) for total in totals)
        if method.penalty == "proximal":  # not rescaled as gradients are: compared with the steps themselves
            lr = max(float(group["lr"]) for group in optimizer.param_groups)
            gradient = ratio(way, lr * self._learned.steps)
        return Comparison(ratio(gradient, pull), self.lam * ratio(pull, gradient))


def _lengths(piece: Piece, method: Method) -> list[Tensor] | None:
    """The squares of those of the gradient, the pull and the way gone."""
    gradient = piece.gradient
    with piece.whole() as (state, theta):
        springs = method.springs(state)
        if not springs or gradient is None or gradient.shape != theta.shape:
            return None
        way = theta - springs[-1][2]
        gradient, pull = piece.storage.wide(gradient), method.pull(state, theta, torch.zeros_like(theta))
        return [vector.double().square().sum() for vector in (gradient, pull, way)]


def _added(pieces: list[Piece], lengths: Callable[[Piece], list[Tensor] | None]) -> list[float]:
    """The sums over all pieces, on all ranks; each device is waited for once."""
    totals = [0.0] * 3
    alike: dict[tuple[tuple[Group, ...], torch.device], list[Tensor]] = {}
    for piece in pieces:
        found = lengths(piece)
        if found is not None:
            alike.setdefault((piece.groups, piece.storage.home), []).append(torch.stack(found))
    for (groups, _), sums in alike.items():
        summed = torch.stack(sums).sum(0).tolist()
        totals = [a + b for a, b in zip(totals, measure.reduced(summed, groups, "SUM"), strict=True)]
    return totals


def ratio(one: float, other: float) -> float:
    """0 where there is nothing to compare."""
    return one / other if one > 0 and other > 0 else 0.0
