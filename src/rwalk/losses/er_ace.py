"""ER-ACE (Caccia et al. 2022): new examples do not push down the old classes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from rwalk.data.memory import Replay
from rwalk.losses.heads import each_cross_entropy, mean_over
from rwalk.losses.loss import Batch, Loss


@dataclass(frozen=True)
class ERACE(Loss):
    """Asymmetric cross entropy: of new examples over the classes among them, of exemplars over all classes seen.

    Only exemplars push down the logits of old classes, and old classes are among them.
    """

    name: ClassVar[str] = "er-ace"
    summary: ClassVar[str] = "experience replay where new examples compete with the classes of their batch alone"
    replay: ClassVar[Replay | None] = "beside"
    needs_memory: ClassVar[bool] = True
    tells_kept: ClassVar[bool] = True

    def __call__(self, logits: Tensor, batch: Batch) -> Tensor:
        kept = torch.zeros_like(batch.y, dtype=torch.bool) if batch.is_kept is None else batch.is_kept
        present = (F.one_hot(batch.y, logits.shape[-1]).bool() & ~kept[..., None]).any(1, keepdim=True)
        competing = (logits + batch.head).masked_fill(~(present | kept[..., None]), -torch.inf)
        wrong = each_cross_entropy(competing, batch.y)
        return mean_over(wrong, ~kept) + mean_over(wrong, kept)
