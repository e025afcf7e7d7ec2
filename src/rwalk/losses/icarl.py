"""iCaRL (Rebuffi et al. 2017): distillation on the old outputs, and the nearest mean of exemplars."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from rwalk.data.memory import Replay
from rwalk.decision_rules import Classifier, Logits, NearestMean
from rwalk.losses.loss import Batch, Taught, spread
from rwalk.methods.method import Number, require


@dataclass(frozen=True)
class ICaRL(Taught):
    """Sigmoid cross entropy: new outputs learn the labels, old outputs those of the network before the task.

    Args:
        temperature: Softens the old outputs; 1, as in the paper, leaves them as they are.
    """

    name: ClassVar[str] = "icarl"
    summary: ClassVar[str] = "iCaRL: distillation, herded exemplars, nearest mean of exemplars"
    replay: ClassVar[Replay | None] = "concat"  # on the union of new data and exemplars
    needs_memory: ClassVar[bool] = True
    classifier: ClassVar[Classifier] = NearestMean()

    temperature: Number = 1.0

    def __post_init__(self) -> None:
        require(self.temperature, "temperature", minimum=0.0, open_=True)

    def __call__(self, logits: Tensor, batch: Batch) -> Tensor:
        target = F.one_hot(batch.y, logits.shape[-1]).to(logits.dtype)
        if batch.taught is not None:
            soft = (batch.taught / spread(self.temperature, logits)).sigmoid()
            target = torch.where(batch.old, soft, target)
        each = F.binary_cross_entropy_with_logits(logits, target, reduction="none")
        return (each * (batch.new | batch.old)).sum(-1).mean(-1)


@dataclass(frozen=True)
class ICaRLHybrid(ICaRL):
    """iCaRL's network, classified by its own outputs."""

    name: ClassVar[str] = "icarl-hb1"
    summary: ClassVar[str] = "iCaRL, hybrid 1: as iCaRL, but classified by the network's own outputs"
    classifier: ClassVar[Classifier] = Logits()
