"""Statistics → a fit: the weights, and how sure to be of the scores. Each is computed when it is asked for."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from torch import Tensor

from rwalk.closed_form.counted import Counted
from rwalk.closed_form.lda import discriminants
from rwalk.closed_form.probability import sharpness
from rwalk.closed_form.ridge import Solution, freedom, solve
from rwalk.closed_form.statistics import Centred
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


class Fit:
    """The solution of these sums by this rule, as long as no more examples are learned."""

    def __init__(self, counted: Counted, rule: Rule) -> None:
        self.counted = counted
        self.rule = rule

    @cached_property
    def centred(self) -> Centred:
        if not self.counted.statistics.counts.any():
            raise InputError("nothing is left to predict from: learn something first")
        return self.counted.centred()

    @cached_property
    def classes(self) -> tuple[Tensor, Tensor, Tensor]:
        """Sums of features [D, C] and weights [C], scaled as `centred` is, and which classes have any weight."""
        sums = self.counted.statistics.tensors()
        factor = self.centred.weight / float(sums["weight"])
        seen = (sums["counts"] > 0) & (sums["targets"] > 1e-12 * sums["weight"])
        return sums["cross"] * factor, sums["targets"] * factor, seen

    @cached_property
    def solution(self) -> Solution:
        """Weights of the centred features."""
        rule, blocks = self.rule, self.counted.map.blocks
        if rule.solver == "lda":
            sums, weights, seen = self.classes
            found = discriminants(self.centred, sums, weights.where(seen, 0), blocks, rule.ridge)
        else:
            found = solve(self.centred, blocks, rule.ridge, rule.share)
        return found._replace(weights=found.weights.contiguous())  # as a file gives it back: products round alike

    @cached_property
    def sharpness(self) -> float:
        """The factor of scores before their softmax is a probability."""
        centred, solution = self.centred, self.solution
        sums, weights, seen = self.classes
        leverage = 0.0  # discriminants are no regression: what an example does to its own is not known
        if self.rule.solver == "ridge":
            own = freedom(centred, self.counted.map.blocks, solution.ridge) + 1
            leverage = min(own / centred.weight, MOST_LEVERAGE)
        solution = solution._replace(weights=solution.weights[:, seen], bias=solution.bias[seen])
        return sharpness(centred, sums[:, seen], weights[seen], solution, leverage)

    def scores(self, features: Tensor) -> Tensor:
        """[n, columns] in float64, on the CPU, of features as the map gives them."""
        shift = self.counted.shift
        features = features.double() if shift is None else features.double() - shift
        return (features @ self.solution.weights + self.solution.bias).cpu()

    @property
    def intercept(self) -> Tensor:
        """The bias [C] that belongs to the map's own features."""
        shift, solution = self.counted.shift, self.solution
        return solution.bias if shift is None else solution.bias - shift @ solution.weights
