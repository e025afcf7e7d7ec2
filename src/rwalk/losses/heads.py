"""Which logits count: a head is a mask, added to the logits.

Every class of the stream has an output row from the start. A class outside the mask has logit −∞,
probability 0 and gradient 0, so allocating all rows at once equals adding them task by task.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Tensor


def mask(classes: Iterable[int], total: int, like: Tensor) -> Tensor:
    """0 for the classes that count, −∞ for the others: [total].

    >>> mask([0, 2], 3, torch.zeros(1))
    tensor([0., -inf, 0.])
    """
    out = torch.full((total,), -torch.inf, dtype=like.dtype, device=like.device)
    out[list(classes)] = 0.0
    return out


def cross_entropy(logits: Tensor, y: Tensor) -> Tensor:
    """Mean cross entropy of each run: [R, B, C], [R, B] → [R]."""
    if logits.shape[0] == 1:
        return F.cross_entropy(logits[0], y[0])[None]
    runs, batch = y.shape
    return F.cross_entropy(logits.flatten(0, 1), y.flatten(), reduction="none").view(runs, batch).mean(1)


def each_cross_entropy(logits: Tensor, y: Tensor) -> Tensor:
    """Cross entropy of each example: [R, B, C], [R, B] → [R, B]."""
    return F.cross_entropy(logits.flatten(0, 1), y.flatten(), reduction="none").view(y.shape)


def mean_over(values: Tensor, where: Tensor) -> Tensor:
    """Mean over some of the examples of a batch: [R, B] → [R]; 0 over none."""
    return (values * where).sum(-1) / where.sum(-1).clamp(min=1)
