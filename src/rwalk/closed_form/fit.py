"""Statistics → a fit: the weights, and how sure to be of the scores. Each is computed when it is asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from torch import Tensor

from rwalk.closed_form.lda import discriminants
from rwalk.closed_form.probability import sharpness
from rwalk.closed_form.ridge import Solution, freedom, solve
from rwalk.closed_form.statistics import Centred, Statistics
from rwalk.errors import InputError

SOLVERS = ("ridge", "lda")
MOST_LEVERAGE = 0.95  # beyond it, an approximation by the mean has no meaning


@dataclass(frozen=True)
class Rule:
    """How weights follow from sums.

    solver  "ridge" or "lda"
    ridge   how strongly weights are held back, or None to have it chosen
    share   of the ridge that predicts targets best, where it is chosen
    """

    solver: str = "ridge"
    ridge: float | None = None
    share: float = 1.0


@dataclass(frozen=True)
class Fit:
    """What these statistics say by this rule, as long as nothing more is counted in."""

    statistics: Statistics
    blocks: Sequence[int]
    rule: Rule

    @cached_property
    def centred(self) -> Centred:
        if not self.statistics.counts.any():
            raise InputError("nothing is left to predict from: learn something first")
        return self.statistics.centred()

    @cached_property
    def solution(self) -> Solution:
        rule = self.rule
        if rule.solver == "lda":
            centred, sums = self.centred, self.statistics.tensors()
            return discriminants(centred, sums["cross"], sums["targets"], self.blocks, rule.ridge)
        return solve(self.centred, self.blocks, rule.ridge, rule.share)

    @cached_property
    def sharpness(self) -> float:
        """What scores are multiplied by before their softmax is a probability."""
        centred, solution, sums = self.centred, self.solution, self.statistics.tensors()
        seen = sums["counts"] > 0
        leverage = 0.0  # discriminants are no regression: what an example does to its own is not known
        if self.rule.solver == "ridge":
            own = freedom(centred, self.blocks, solution.ridge) + 1
            leverage = min(own / centred.weight, MOST_LEVERAGE)
        solution = solution._replace(weights=solution.weights[:, seen], bias=solution.bias[seen])
        return sharpness(centred, sums["cross"][:, seen], sums["targets"][seen], solution, leverage)

    def scores(self, features: Tensor) -> Tensor:
        """[n, columns] in float64, on the CPU."""
        return (features.double() @ self.solution.weights + self.solution.bias).cpu()
