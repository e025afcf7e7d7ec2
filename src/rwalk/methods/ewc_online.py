"""Online EWC (Schwarz et al. 2018, "Progress & compress"): one Fisher that fades, one anchor. O(P)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from rwalk.methods.method import Default, Method, Number, Ranges, Spring, State, require


@dataclass(frozen=True)
class EWCOnline(Method):
    """Penalty λ · ½ Σ_i F*_i (θ_i − θ*_i)², F* ← γ F* + F of every task's data at its end.

    The one anchor is where the last task ended: it was learned under the springs of all before it, and holding θ
    by their anchors too would count them twice (Huszár 2018).

    Args:
        lam: λ.
        gamma: γ ∈ [0, 1], the share of the older tasks' Fisher that is left after a task; 1 forgets none of it.
        penalty: "gradient" or "proximal".
        fisher: "batch", "example" or "exact" squares in that pass.
    """

    name: ClassVar[str] = "ewc-online"
    summary: ClassVar[str] = "online EWC: one Fisher of all tasks, which fades, and one anchor"
    data_pass: ClassVar[bool] = True

    lam: Number = Default(1e6, proximal=1e9)
    gamma: Number = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.gamma, "gamma", minimum=0.0, maximum=1.0)

    def consolidate(
        self, state: State, theta: Tensor, fisher: Tensor | None = None, ranges: Ranges | None = None
    ) -> None:
        assert fisher is not None, "EWC needs a pass over the data (data_pass)"
        state["importance"] = fisher + self.gamma * state["importance"] if "importance" in state else fisher
        state["anchor"] = theta.clone()

    def springs(self, state: State) -> list[Spring]:
        return [(0.5 * strength, fisher, anchor) for strength, fisher, anchor in super().springs(state)]
