"""Cross entropy over the classes that are trained: the loss of every learner without one of its own."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from rwalk.losses.heads import cross_entropy
from rwalk.losses.loss import Batch, Loss


@dataclass(frozen=True)
class CrossEntropy(Loss):
    """Mean cross entropy of the batch."""

    def __call__(self, logits: Tensor, batch: Batch) -> Tensor:
        return cross_entropy(logits + batch.head, batch.y)
