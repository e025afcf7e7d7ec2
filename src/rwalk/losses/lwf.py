"""LwF (Li & Hoiem 2017): on the new data, distillation from the network before the task. No exemplars."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from rwalk.losses.heads import cross_entropy
from rwalk.losses.loss import Batch, Taught, spread
from rwalk.methods.method import Number, require


@dataclass(frozen=True)
class LwF(Taught):
    """Cross entropy on the task's labels, and λ T² times that of the old outputs to those before the task.

    The old outputs are those of the classes seen before. Where a scenario groups the classes, the outputs of every
    group are distilled among themselves, once for each task that taught it (van de Ven et al. 2022).

    T² keeps the gradient's size as T grows (Hinton et al. 2015). The paper has no T²: its weight of 1 is λ = 1/T²
    here.

    Args:
        lam: λ.
        temperature: T softens both distributions, so that unlikely classes count too.
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
        if batch.rivals is None or batch.times is None:
            return learned + self.lam * self._distilled(logits, batch.taught, batch.old)
        each = [self._distilled(logits, batch.taught, group) for group in batch.rivals]
        return learned + self.lam * (torch.stack(each, dim=-1) * batch.times).sum(-1)

    def _distilled(self, logits: Tensor, taught: Tensor, among: Tensor) -> Tensor:
        """T² times the cross entropy to the teacher's outputs, among some classes [C]."""
        soft = spread(self.temperature, logits)
        # Among no classes at all the cross entropy is 0, not NaN.
        mask = torch.where(among | ~among.any(), 0.0, -torch.inf).to(logits.dtype)
        said = (taught / soft + mask).softmax(-1)
        says = (logits / soft + mask).log_softmax(-1).masked_fill(~among, 0.0)
        return -(self.temperature**2) * (said * says).sum(-1).mean(-1)
