"""DER and DER++ (Buzzega et al. 2020): exemplars are stored with their logits, and pulled back to them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from rwalk.data.memory import Replay
from rwalk.losses.heads import cross_entropy, each_cross_entropy, mean_over
from rwalk.losses.loss import Batch, Loss
from rwalk.methods.method import Number, require


@dataclass(frozen=True)
class DERpp(Loss):
    """Cross entropy on new examples + α · squared distance of exemplars to their logits + β · their cross entropy.

    With a reservoir, as published, the logits are those of the step in which an example came in; with exemplars
    chosen at a task's end, those at that end. Either way one draw of exemplars serves both terms: the authors draw
    twice.

    Args:
        alpha: α.
        beta: β; 0 is DER.
    """

    name: ClassVar[str] = "der++"
    summary: ClassVar[str] = "dark experience replay: exemplars kept with their logits, and with their labels"
    replay: ClassVar[Replay | None] = "beside"
    needs_memory: ClassVar[bool] = True
    keeps: ClassVar[tuple[str, ...]] = ("logits",)

    alpha: Number = 0.1
    beta: Number = 0.5

    def __post_init__(self) -> None:
        require(self.alpha, "alpha", minimum=0.0)
        require(self.beta, "beta", minimum=0.0)

    def __call__(self, logits: Tensor, batch: Batch) -> Tensor:
        if batch.is_kept is None:
            return cross_entropy(logits + batch.head, batch.y)
        wrong = each_cross_entropy(logits + batch.head, batch.y)
        moved = (logits - batch.kept["logits"]).square().mean(-1)
        kept = batch.is_kept
        return mean_over(wrong, ~kept) + self.alpha * mean_over(moved, kept) + self.beta * mean_over(wrong, kept)


@dataclass(frozen=True)
class DER(DERpp):
    """The same without the exemplars' labels: α alone."""

    name: ClassVar[str] = "der"
    summary: ClassVar[str] = "dark experience replay: exemplars kept with their logits alone"

    beta: Number = 0.0
