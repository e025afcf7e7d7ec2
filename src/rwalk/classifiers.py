"""From a network's outputs to a decision: by its logits, or by the nearest mean of the exemplars' features."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor


class Classifier(Protocol):
    """Scores for every class; the largest among the head's classes wins."""

    @property
    def needs_exemplars(self) -> bool: ...

    def fit(self, features: Tensor, labels: Sequence[int]) -> Any:
        """Fit the exemplars' features [R, N, f], given class by class; called only if it needs exemplars."""

    def scores(self, features: Tensor, logits: Tensor, fitted: Any) -> Tensor:
        """[R, N, f], [R, N, C] → [R, N, C]."""


class Logits(NamedTuple):
    """The network's own outputs."""

    needs_exemplars: bool = False

    def fit(self, features: Tensor, labels: Sequence[int]) -> None:
        return None

    def scores(self, features: Tensor, logits: Tensor, fitted: None) -> Tensor:
        return logits


class NearestMean(NamedTuple):
    """iCaRL's rule: the class whose exemplars have the nearest mean; features and means have length one."""

    needs_exemplars: bool = True

    def fit(self, features: Tensor, labels: Sequence[int]) -> tuple[Tensor, list[int]]:
        """(means [R, classes, f], their labels): a class learned in several tasks has one mean."""
        counts = Counter(labels)
        unit = F.normalize(features, dim=-1)
        means = [part.mean(1) for part in unit.split(list(counts.values()), dim=1)]
        return F.normalize(torch.stack(means, 1), dim=-1), list(counts)

    def scores(self, features: Tensor, logits: Tensor, fitted: tuple[Tensor, list[int]]) -> Tensor:
        """Minus the squared distance; −∞ for a class without exemplars."""
        means, classes = fitted
        unit = F.normalize(features, dim=-1)
        scores = torch.full((*unit.shape[:2], logits.shape[-1]), -torch.inf, dtype=unit.dtype, device=unit.device)
        scores[..., classes] = -torch.cdist(unit, means).square()
        return scores
