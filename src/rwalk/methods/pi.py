"""PI, Path Integral or Synaptic Intelligence (Zenke et al. 2017): importance from the path walked. O(P)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from rwalk.methods.method import Default, Method, Number, Ranges, State, require


@dataclass(frozen=True)
class PI(Method):
    """Penalty λ Σ_i Ω_i (θ_i − θ*_i)², Ω the loss reduction due to each parameter per squared distance.

    Args:
        lam: λ.
        xi: ξ > 0, keeps Ω finite for a parameter that did not move.
        penalty: "gradient" or "proximal".
    """

    name: ClassVar[str] = "pi"
    summary: ClassVar[str] = "path integral (synaptic intelligence): importance from the optimisation path"
    wants: ClassVar[frozenset[str]] = frozenset({"move"})

    lam: Number = Default(1.0, proximal=1e2)
    xi: Number = 1e-3

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.xi, "xi", minimum=0.0, open_=True)

    def start(self, theta: Tensor) -> State:
        return {"path": torch.zeros_like(theta), "origin": theta.clone()}

    def begin(self, state: State, fisher: Tensor) -> None:
        state["path"].copy_(fisher).mul_(0.5 * self.xi)  # so that Ω = ½F, by which the loss rises with distance²

    def observe(self, state: State, grad: Tensor, move: Tensor, square: Tensor) -> None:
        state["path"].addcmul_(grad, move, value=-1)  # ω ← ω − g·Δθ

    def consolidate(
        self, state: State, theta: Tensor, fisher: Tensor | None = None, ranges: Ranges | None = None
    ) -> None:
        distance = (theta - state["origin"]).square() + self.xi
        saved = (state["path"] / distance).clamp_(min=0)
        state["importance"] = saved + state.get("importance", 0)
        state["anchor"] = theta.clone()
        state["origin"].copy_(theta)
        state["path"].zero_()
