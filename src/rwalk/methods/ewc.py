"""EWC (Kirkpatrick et al. 2017): one Fisher and one anchor per task, all of them kept. O(kP)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from rwalk.methods.method import Default, Method, Number, Ranges, Spring, State


@dataclass(frozen=True)
class EWC(Method):
    """Penalty λ · ½ Σ_k Σ_i F^k_i (θ_i − θ^k_i)², F^k from a pass over task k's data at its end.

    Args:
        lam: λ.
        penalty: "gradient" or "proximal".
        fisher: Squares of gradients of a "batch", of each "example" (eq. (1) of the RWalk paper), or "exact":
            expected over the predicted labels. The λ of "batch", the default, depends on the batch size.
    """

    name: ClassVar[str] = "ewc"
    summary: ClassVar[str] = "elastic weight consolidation: one Fisher per task, memory grows with the tasks"
    data_pass: ClassVar[bool] = True
    grows: ClassVar[bool] = True

    lam: Number = Default(1e6, proximal=1e9)  # a batch's squared gradient is tiny at a minimum

    def consolidate(
        self, state: State, theta: Tensor, fisher: Tensor | None = None, ranges: Ranges | None = None
    ) -> None:
        assert fisher is not None, "EWC needs a pass over the data (data_pass)"
        task = len(state) // 2
        state[f"fisher.{task}"] = fisher
        state[f"anchor.{task}"] = theta.clone()

    def springs(self, state: State) -> list[Spring]:
        tasks = range(len(state) // 2)
        return [(0.5 * self.lam, state[f"fisher.{k}"], state[f"anchor.{k}"]) for k in tasks]
