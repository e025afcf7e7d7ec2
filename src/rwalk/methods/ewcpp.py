"""EWC++ (the paper, section 4.1): one Fisher, kept as a moving average while training. O(P)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from rwalk.errors import InputError
from rwalk.methods.method import Default, Method, Number, Ranges, Spring, State, require, unit


@dataclass(frozen=True)
class EWCpp(Method):
    """Penalty λ · ½ Σ_i F_i (θ_i − θ*_i)², F a moving average over the steps of all tasks.

    Args:
        lam: λ.
        alpha: α ∈ [0, 1], the weight of the NEW batch in F ← α g² + (1 − α) F.
        normalize: Whether F is min–max normalised to [0, 1] at a task's end.
        penalty: "gradient" or "proximal".
        fisher: "batch" or "example" squares.
    """

    name: ClassVar[str] = "ewc++"
    summary: ClassVar[str] = "EWC with one running Fisher: constant memory, no extra pass over the data"
    wants: ClassVar[frozenset[str]] = frozenset({"square"})

    lam: Number = Default(1e3, proximal=1e6)
    alpha: Number = 0.01
    normalize: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.alpha, "alpha", minimum=0.0, maximum=1.0)
        if not isinstance(self.normalize, bool):
            raise InputError(f"normalize must be true or false, not {self.normalize!r}")

    @property
    def scales(self) -> tuple[str, ...]:
        return ("fisher",) if self.normalize else ()

    def start(self, theta: Tensor) -> State:
        return {"fisher": torch.zeros_like(theta)}

    def observe(self, state: State, grad: Tensor, move: Tensor, square: Tensor) -> None:
        state["fisher"].lerp_(square, self.alpha)  # eq. (6)

    def consolidate(
        self, state: State, theta: Tensor, fisher: Tensor | None = None, ranges: Ranges | None = None
    ) -> None:
        state["importance"] = unit(state, "fisher", ranges) if self.normalize else state["fisher"].clone()
        state["anchor"] = theta.clone()

    def springs(self, state: State) -> list[Spring]:
        return [(0.5 * strength, fisher, anchor) for strength, fisher, anchor in super().springs(state)]
