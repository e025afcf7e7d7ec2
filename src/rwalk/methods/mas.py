"""MAS, memory aware synapses (Aljundi et al. 2018): what outputs depend on is held. Needs no labels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from rwalk.methods.method import Default, Method, Number, Ranges, State


@dataclass(frozen=True)
class MAS(Method):
    """Penalty λ Σ_i Ω_i (θ_i − θ*_i)², Ω += mean |∂‖f(x)‖²/∂θ_i| over the task's inputs at its end.

    f(x) are the outputs that were trained: the task's own, or with exemplars those of all classes seen. It takes
    O(P) memory.

    Args:
        lam: λ.
        penalty: "gradient" or "proximal".
        fisher: Mean of "batch" gradients, as in the authors' code, or of "example" gradients, as in the paper.
    """

    name: ClassVar[str] = "mas"
    summary: ClassVar[str] = "memory aware synapses: importance from how much the outputs depend on a parameter"
    data_pass: ClassVar[bool] = True
    of_outputs: ClassVar[bool] = True

    lam: Number = Default(1.0, proximal=1e2)

    def in_pass(self, square: Tensor) -> Tensor:
        return square.sqrt()  # eqs. (2) and (3): the gradient's size

    def consolidate(
        self, state: State, theta: Tensor, fisher: Tensor | None = None, ranges: Ranges | None = None
    ) -> None:
        assert fisher is not None, "MAS needs a pass over the data (data_pass)"
        state["importance"] = fisher + state.get("importance", 0)
        state["anchor"] = theta.clone()
