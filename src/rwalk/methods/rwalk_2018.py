"""RWalk as its authors' public code of 2018 computes it, where that differs from the paper. O(P)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from rwalk.methods.base import Ranges, State
from rwalk.methods.rwalk import RWalk


@dataclass(frozen=True)
class RWalk2018(RWalk):
    """RWalk's penalty, with another Fisher and another score.

    α weighs windows instead of steps: after the score of a window, F ← (1 − α) F + α S / Δt, where S is the sum of
    all g² since the task began. It is not emptied between windows, so F grows with the length of a task. The
    distance is F Δθ², without ½. At a task's end s ← 1.5 s + ½ s_task: old scores grow instead of fading.

    lam, alpha, dt, eps, penalty, fisher as in RWalk
    """

    name: ClassVar[str] = "rwalk-2018"
    summary: ClassVar[str] = "RWalk as its authors' public code computes it, where that differs from the paper"
    carried: ClassVar[float] = 1.5

    def start(self, theta: Tensor) -> State:
        return {**super().start(theta), "squares": torch.zeros_like(theta)}

    def observe(self, state: State, grad: Tensor, move: Tensor, square: Tensor) -> None:
        state["squares"].add_(square)
        state["path"].addcmul_(grad, move, value=-1)

    def distance(self, move: Tensor, fisher: Tensor) -> Tensor:
        return move.square_().mul_(fisher)

    def score(self, state: State, theta: Tensor) -> None:
        # A window in which nothing happened is not counted: a task's end may ask twice for the last one.
        weight = state["path"].sign().abs() * self.alpha
        super().score(state, theta)
        state["fisher"].lerp_(state["squares"] / self.dt, weight)

    def consolidate(
        self, state: State, theta: Tensor, fisher: Tensor | None = None, ranges: Ranges | None = None
    ) -> None:
        super().consolidate(state, theta, fisher, ranges)
        state["squares"].zero_()
