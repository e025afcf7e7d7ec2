"""A few more examples, without solving again: recursive least squares from the last solution.

With P = (G + λ)⁻¹ over the features and a constant, an example u with weight w and target y changes

    g = P u     c = 1 / (1/w + uᵀ g)     W ← W + c g (y − uᵀ W)     P ← P − c g gᵀ

P itself stays as it was; the g are kept, and taken off P u as they come. λ and what it means for each feature stay
as they were too: the next solution, which is exact, differs by what a few more examples change about them.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rwalk.closed_form.ridge import Solution
from rwalk.closed_form.statistics import Centred

SHARE, MOST = 0.05, 1000  # of the examples solved for, and at all: more are worth another solution
IMPRECISE = 1e-5  # λ below this needs more digits than float32 has


class Updates:
    """A solution, and the examples learned since."""

    def __init__(
        self, centred: Centred, solution: Solution, root: Tensor, scale: Tensor, per_weight: float
    ) -> None:
        self.weights = torch.cat([solution.weights, solution.bias[None]])  # of the features and the constant
        self.ridge = solution.ridge
        self.per_weight = per_weight
        self.limit = min(int(SHARE * centred.weight), MOST)
        precision = torch.float64 if solution.ridge < IMPRECISE else torch.float32
        self._inverse = (torch.cholesky_inverse(root) * scale[:, None] * scale).to(precision)
        self._mean, self._count = centred.mean, centred.weight
        self._gains = root.new_zeros(self.limit, len(self.weights))
        self._factors = root.new_zeros(self.limit)
        self.done = 0

    def learn(self, features: Tensor, y: Tensor, weight: Tensor) -> bool:
        """Whether there was room for these examples; their features are centred as in the sums."""
        if self.done + len(features) > self.limit:
            return False
        for u, target, w in zip(features[:, : len(self._mean)].double(), y, weight.tolist(), strict=True):
            if y.ndim == 1:
                target = torch.zeros_like(self.weights[0]).index_fill_(0, target, 1.0)
            self._learn_one(torch.cat([u, u.new_ones(1)]), target, w * self.per_weight)
        return True

    def _learn_one(self, u: Tensor, target: Tensor, weight: float) -> None:
        along = (self._inverse @ (u[:-1] - self._mean).to(self._inverse.dtype)).double()
        gain = torch.cat([along, (1 / self._count - self._mean @ along)[None]])
        gains, factors = self._gains[: self.done], self._factors[: self.done]
        gain -= (factors * (gains @ u)) @ gains
        factor = 1 / (1 / weight + u @ gain)
        self.weights += torch.outer(factor * gain, target - u @ self.weights)
        self._gains[self.done], self._factors[self.done] = gain, factor
        self.done += 1

    @property
    def solution(self) -> Solution:
        return Solution(self.weights[:-1], self.weights[-1], self.ridge)
