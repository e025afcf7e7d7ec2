"""iCaRL (Rebuffi et al. 2017): distillation on the old outputs, and the nearest mean of exemplars."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def distillation(logits: Tensor, y: Tensor, new: Tensor, old: Tensor, teacher: Tensor | None) -> Tensor:
    """Sigmoid cross entropy: new outputs learn the labels, old outputs what the previous network said: [R].

    `new` and `old` are boolean masks [C]; `teacher` are the previous network's logits [R, B, C].
    """
    target = F.one_hot(y, logits.shape[-1]).to(logits.dtype)
    if teacher is not None:
        target = torch.where(old, teacher.sigmoid(), target)
    each = F.binary_cross_entropy_with_logits(logits, target, reduction="none")
    return (each * (new | old)).sum(-1).mean(-1)


def class_means(features: Tensor, counts: list[int]) -> Tensor:
    """Mean of L2-normalised features of each class's exemplars, normalised again: [R, N, f] → [R, classes, f].

    `features` holds the exemplars class after class, counts[c] of class c.
    """
    unit = F.normalize(features, dim=-1)
    return F.normalize(torch.stack([part.mean(1) for part in unit.split(counts, dim=1)], 1), dim=-1)


def nearest_mean_scores(features: Tensor, means: Tensor, classes: list[int], total: int) -> Tensor:
    """Score of a class: minus the squared distance to its mean; −∞ for a class without exemplars: [R, N, C]."""
    unit = F.normalize(features, dim=-1)
    scores = torch.full((*unit.shape[:2], total), -torch.inf, dtype=unit.dtype, device=unit.device)
    scores[..., classes] = -torch.cdist(unit, means).square()
    return scores
