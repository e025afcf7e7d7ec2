"""LwF (Li & Hoiem 2017): on the new data, distillation from the network before the task. No exemplars."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from rwalk.losses.base import Batch, Taught, spread
from rwalk.losses.heads import cross_entropy
from rwalk.methods.base import Number, require


@dataclass(frozen=True)
class LwF(Taught):
    """Cross entropy on the task's labels, and λ T² times that of the old outputs to those before the task.

    T² keeps the gradient's size as T grows (Hinton et al. 2015); the paper does without, so its weight of 1 is
    λ = 1/T² here.

    lam          λ
    temperature  T softens both distributions, so that unlikely classes count too
    """

    name: ClassVar[str] = "lwf"
    summary: ClassVar[str] = "learning without forgetting: distillation from the network as it was before the task"

    lam: Number = 1.0
    temperature: Number = 2.0

    def __post_init__(self) -> None:
        require(self.lam, "lam", minimum=0.0)
        require(self.temperature, "temperature", minimum=0.0, open_=True)

    def __call__(self, logits: Tensor, batch: Batch) -> Tensor:
        learned = cross_entropy(logits + batch.head, batch.y)
        if batch.taught is None:
            return learned
        soft = spread(self.temperature, logits)
        old = torch.where(batch.old, 0.0, -torch.inf).to(logits.dtype)
        said = (batch.taught / soft + old).softmax(-1)
        says = (logits / soft + old).log_softmax(-1).masked_fill(~batch.old, 0.0)
        return learned - self.lam * self.temperature**2 * (said * says).sum(-1).mean(-1)
