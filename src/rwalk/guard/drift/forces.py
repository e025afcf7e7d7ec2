"""What holds a model, as those who control its strength see it: a λ, and how it compares with the gradient."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from rwalk.guard.drift.reference import Old
from rwalk.guard.importance import measure
from rwalk.guard.state import sharded as shards
from rwalk.guard.state.guard_state import Learned
from rwalk.guard.state.parameter import Piece
from rwalk.guard.state.sharded import Group
from rwalk.methods import Method


class Force(Protocol):
    """Something with a strength λ that keeps a model where it was.

    holds_parameters  where they were; or only what the model says, wherever they are
    start             the λ to begin with where a budget was reached; None: found from `response`
    """

    lam: float
    holds_parameters: bool

    @property
    def start(self) -> float | None: ...

    def compared(self, optimizer: Optimizer) -> float:
        """How many times as long as the gradient, or as a step, the pull is now."""
        ...

    def most(self) -> float:
        """The λ beyond which more of it changes nothing."""
        ...

    def response(self) -> float:
        """A guess, rather too large, of how fast a pull back shortens the way."""
        ...

    def back(self, model: nn.Module, old: Old, pull: float) -> None:
        """Towards the old model, by so many units of λ times learning rates."""
        ...


class Springs:
    """The springs of a method."""

    holds_parameters = True
    start = None

    def __init__(self, learned: Learned) -> None:
        self._learned = learned

    @property
    def lam(self) -> float:
        return float(self._learned.method.lam)

    @lam.setter
    def lam(self, lam: float) -> None:
        self._learned.method = replace(self._learned.method, lam=lam)

    def compared(self, optimizer: Optimizer) -> float:
        gradient, pull, way = self._measured()
        if self._learned.method.penalty == "proximal":  # taken after the step: compared with the steps themselves
            lr = max(float(group["lr"]) for group in optimizer.param_groups)
            gradient = ratio(way, lr * self._learned.steps)
        return self.lam * ratio(pull, gradient)

    def most(self) -> float:
        return math.inf

    def response(self) -> float:
        _, pull, way = self._measured()
        return ratio(pull, way)

    def back(self, model: nn.Module, old: Old, pull: float) -> None:
        method = replace(self._learned.method, lam=pull)
        for piece in self._learned.started:
            piece.pull_back(method)

    def _measured(self) -> tuple[float, float, float]:
        """The lengths of the gradient, of the pull at λ = 1, and of the way gone."""
        method = replace(self._learned.method, lam=1.0)
        gradient, pull, way = _added(self._learned.started, lambda piece: _lengths(piece, method))
        return math.sqrt(gradient), math.sqrt(pull), math.sqrt(way)


def _lengths(piece: Piece, method: Method) -> list[Tensor] | None:
    """The squares of those of the gradient, the pull and the way gone."""
    gradient = piece.gradient
    found: list[list[Tensor]] = []
    for part in piece.storage.parts():
        springs = method.springs(part.state)
        if not springs:
            return None
        known = gradient is not None and gradient.shape == piece.storage.theta().shape
        slope = part.of(gradient) if known and gradient is not None else torch.zeros_like(part.theta)
        way = part.theta - springs[-1][2]
        slope, pull = piece.storage.wide(slope), method.pull(part.state, part.theta, torch.zeros_like(part.theta))
        found.append([vector.double().square().sum() for vector in (slope, pull, way)])
    return [torch.stack(column).sum() for column in zip(*found, strict=True)]


def _added(pieces: list[Piece], lengths: Callable[[Piece], list[Tensor] | None]) -> list[float]:
    """The sums over all pieces, on all ranks; each device is waited for once."""
    totals = [0.0] * 3
    alike: dict[tuple[tuple[Group, ...], torch.device], list[Tensor]] = {}
    for piece in pieces:
        found = lengths(piece)
        if found is not None:
            alike.setdefault((shards.groups(piece.parameter), piece.storage.home), []).append(torch.stack(found))
    for (groups, _), sums in alike.items():
        summed = torch.stack(sums).sum(0).tolist()
        totals = [a + b for a, b in zip(totals, measure.reduced(summed, groups, "SUM"), strict=True)]
    return totals


def ratio(one: float, other: float) -> float:
    """0 where there is nothing to compare."""
    return one / other if one > 0 and other > 0 else 0.0
