"""RWalk (the paper, sections 4.1 and 4.2): EWC++'s Fisher plus a path score on the Riemannian manifold. O(P)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

import torch
from torch import Tensor

from rwalk.errors import InputError
from rwalk.methods.method import Default, Method, Number, Ranges, State, require, unit

UNSET = -1.0  # in "metric" until a window's first step; a Fisher is never negative


@dataclass(frozen=True)
class RWalk(Method):
    """Penalty λ Σ_i (F_i + s_i)(θ_i − θ*_i)² (equation 8).

    Args:
        lam: λ.
        alpha: α ∈ [0, 1], the weight of the NEW batch in F ← α g² + (1 − α) F.
        dt: Δt ≥ 1, steps in a window of the path score: 10 for MNIST, 50 for CIFAR in the paper.
        eps: ε > 0, keeps the score finite for a parameter whose movement changed nothing.
        penalty: "gradient" or "proximal".
        fisher: "batch" or "example" squares.
        fisher_at: Which F divides the score of a window of steps t to t + Δt. "end": F after its last step.
            "start": F at θ(t), with the window's first batch, as the paper writes it; needs one more vector.
    """

    name: ClassVar[str] = "rwalk"
    summary: ClassVar[str] = "Riemannian walk: the Fisher and the path, both normalised"
    wants: ClassVar[frozenset[str]] = frozenset({"move", "square"})
    carried: ClassVar[float] = 0.5  # of the score, from task to task

    lam: Number = Default(1.0, proximal=1e3)
    alpha: Number = 0.9
    dt: int = 10
    eps: Number = 1e-3
    fisher_at: Literal["start", "end"] = field(default="end", metadata={"later": True})

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.alpha, "alpha", minimum=0.0, maximum=1.0)
        require(self.eps, "eps", minimum=0.0, open_=True)
        if not isinstance(self.dt, int) or self.dt < 1:
            raise InputError(f"dt must be a whole number of steps, at least 1, not {self.dt!r}")
        if self.fisher_at not in ("start", "end"):
            raise InputError(f"fisher_at must be one of start, end, not {self.fisher_at!r}")
        if self.fisher_at == "start" and type(self).distance is not RWalk.distance:
            raise InputError(f"{self.name} measures a window in its own way: leave fisher_at out")

    @property
    def window(self) -> int:
        return self.dt

    @property
    def scales(self) -> tuple[str, ...]:
        return "fisher", "score"

    def start(self, theta: Tensor) -> State:
        zeros = torch.zeros_like(theta)
        state = {"fisher": zeros, "path": zeros.clone(), "score": zeros.clone(), "origin": theta.clone()}
        if self.fisher_at == "start":
            state["metric"] = torch.full_like(theta, UNSET)
        return state

    def observe(self, state: State, grad: Tensor, move: Tensor, square: Tensor) -> None:
        state["fisher"].lerp_(square, self.alpha)  # eq. (6)
        state["path"].addcmul_(grad, move, value=-1)  # eq. (7): L ← L − g·Δθ
        if "metric" in state:  # the first step of a window sets it
            metric = state["metric"]
            metric.lerp_(state["fisher"], metric.sign().clamp_(max=0).abs())

    def distance(self, move: Tensor, fisher: Tensor) -> Tensor:
        """The distance of a window, parameter by parameter: the KL divergence of eq. (2). Overwrites `move`."""
        return move.square_().mul_(fisher).mul_(0.5)

    def score(self, state: State, theta: Tensor) -> None:
        path, origin = state["path"], state["origin"]
        fisher = state["metric"].clamp_(min=0) if "metric" in state else state["fisher"]
        # Path and origin are overwritten below, so the arithmetic is done in place.
        distance = self.distance(torch.sub(theta, origin, out=origin), fisher)
        gained = path.div_(distance.add_(self.eps)).clamp_(min=0)
        # s ← ½ (s + s_task): halving s at a task's end and adding halves from then on needs no second vector.
        state["score"].add_(gained, alpha=0.5 if "anchor" in state else 1.0)
        path.zero_()
        origin.copy_(theta)
        if "metric" in state:
            state["metric"].zero_().add_(UNSET)

    def consolidate(
        self, state: State, theta: Tensor, fisher: Tensor | None = None, ranges: Ranges | None = None
    ) -> None:
        self.score(state, theta)  # the rest of the last window
        state["importance"] = unit(state, "fisher", ranges) + unit(state, "score", ranges)
        state["anchor"] = theta.clone()
        state["score"] *= self.carried
