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
    """iCaRL's rule: the class whose exemplars have the nearest mean.

    unit  whether features and means are made unit length first
    """

    needs_exemplars: bool = True
    unit: bool = True

    def fit(self, features: Tensor, labels: Sequence[int]) -> tuple[Tensor, list[int]]:
        """(means [R, classes, f], their labels): a class learned in several tasks has one mean."""
        counts = Counter(labels)
        means = [part.mean(1) for part in self._compared(features).split(list(counts.values()), dim=1)]
        return self._compared(torch.stack(means, 1)), list(counts)

    def scores(self, features: Tensor, logits: Tensor, fitted: tuple[Tensor, list[int]]) -> Tensor:
        """Minus the squared distance; −∞ for a class without exemplars."""
        means, classes = fitted
        shape = (*features.shape[:2], logits.shape[-1])
        scores = torch.full(shape, -torch.inf, dtype=features.dtype, device=features.device)
        scores[..., classes] = -torch.cdist(self._compared(features), means).square()
        return scores

    def _compared(self, features: Tensor) -> Tensor:
        return F.normalize(features, dim=-1) if self.unit else features
