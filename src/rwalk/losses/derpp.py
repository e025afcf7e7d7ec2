"""DER and DER++ (Buzzega et al. 2020): exemplars are stored with their logits, and pulled back to them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor

from rwalk.data.batches import Replay
from rwalk.losses.base import Batch, Loss
from rwalk.losses.heads import cross_entropy
from rwalk.methods.base import Number, require


@dataclass(frozen=True)
class DERpp(Loss):
    """Cross entropy on new examples + α · squared distance of exemplars to their logits + β · their cross entropy.

    The logits are those at the end of an exemplar's task.

    alpha  α
    beta   β; 0 is DER
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
        wrong = F.cross_entropy((logits + batch.head).flatten(0, 1), batch.y.flatten(), reduction="none")
        wrong = wrong.view(batch.y.shape)
        moved = (logits - batch.kept["logits"]).square().mean(-1)
        kept = batch.is_kept
        return _mean(wrong, ~kept) + self.alpha * _mean(moved, kept) + self.beta * _mean(wrong, kept)


@dataclass(frozen=True)
class DER(DERpp):
    """The same without the exemplars' labels: α alone."""

    name: ClassVar[str] = "der"
    summary: ClassVar[str] = "dark experience replay: exemplars kept with their logits alone"

    beta: Number = 0.0


def _mean(values: Tensor, where: Tensor) -> Tensor:
    """The mean over some of the examples of a batch, [R, B] → [R]; 0 if there are none."""
    return (values * where).sum(-1) / where.sum(-1).clamp(min=1)
