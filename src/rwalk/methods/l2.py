"""L2-SP (Li et al. 2018): every parameter is held equally, where it was. The simplest anchor there is. O(P)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from rwalk.errors import InputError
from rwalk.methods.method import Default, Method, Number, Ranges, State


@dataclass(frozen=True)
class L2SP(Method):
    """Penalty λ Σ_i (θ_i − θ*_i)².

    Args:
        lam: λ.
        anchor: θ*: where the "last" task ended, or the "first", a fixed starting point.
        penalty: "gradient" or "proximal".
    """

    name: ClassVar[str] = "l2"
    summary: ClassVar[str] = "L2-SP: every parameter is held equally, where the last or the first task left it"

    lam: Number = Default(0.01, proximal=10.0)
    anchor: Literal["last", "first"] = "last"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.anchor not in ("last", "first"):
            raise InputError(f"anchor must be 'last' or 'first', not {self.anchor!r}")

    def consolidate(
        self, state: State, theta: Tensor, fisher: Tensor | None = None, ranges: Ranges | None = None
    ) -> None:
        if "anchor" not in state or self.anchor == "last":
            state["anchor"] = theta.clone()
        state["importance"] = torch.ones_like(theta)
