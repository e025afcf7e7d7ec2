"""Statistics → a fit: the weights, and how sure to be of the scores. Each is computed on first use."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from rwalk.closed_form.calibration import (
    ENOUGH,
    Certainty,
    Distances,
    Familiar,
    certainty,
    familiar,
    left_out_scores,
    sharpness,
)
from rwalk.closed_form.examples import Sample
from rwalk.closed_form.feature_sums import Counted
from rwalk.closed_form.solve import (
    SHARE,
    Coordinates,
    Solution,
    Updates,
    discriminants,
    evidence,
    freedom,
    root_of,
    solve,
)
from rwalk.closed_form.sums import Centred
from rwalk.errors import InputError

SOLVERS = ("ridge", "lda")
MOST_CLASSES = 1000
GIVEN, MEASURED = ("counted", "rule", "earlier"), ("solution", "certainty", "familiar")  # of a fit, when stored
MOST_LEVERAGE = 0.95  # beyond it, an approximation by the mean has no meaning


Measures = tuple[Certainty | None, Familiar | None]


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

    def __init__(self, counted: Counted, rule: Rule, earlier: Measures = (None, None)) -> None:
        self.counted = counted
        self.rule = rule
        self.earlier = earlier  # measures, from before the sample was dropped

    def __getstate__(self) -> dict[str, Any]:
        """Without matrices that the sums give again: they are larger than the sums."""
        return {name: each for name, each in self.__dict__.items() if name in (*GIVEN, *MEASURED)}

    @cached_property
    def centred(self) -> Centred:
        """The sums of the features in use, about their means."""
        used = self.used  # solves, unless a file gave the solution
        return self.__dict__["centred"] if "centred" in self.__dict__ else self._centred(used)

    def _centred(self, used: int) -> Centred:
        if not self.counted.statistics.counts.any() or float(self.counted.statistics.weight) <= 0:
            raise InputError("nothing is left to predict from: learn something first")
        centred = self.counted.centred(used)
        self.per_weight = centred.weight / float(self.counted.statistics.tensors()["weight"])
        return centred

    @cached_property
    def blocks(self) -> list[int]:
        """Sizes of the groups of features in use: those that have weights."""
        weights, choices = self.solution.weights, self.counted.choices
        return choices[-1] if weights[sum(choices[0]) :].any() else choices[0]

    @property
    def used(self) -> int:
        return sum(self.blocks)

    @cached_property
    def classes(self) -> tuple[Tensor, Tensor, Tensor]:
        """Sums of features [D, C] and weights [C], scaled as the centred sums, and which classes have weight."""
        sums = self.counted.statistics.tensors()
        factor = self.counted.examples / max(float(sums["weight"]), 1e-300)
        seen = (sums["counts"] > 0) & (sums["targets"] > 1e-12 * sums["weight"])
        return sums["cross"] * factor, sums["targets"] * factor, seen

    @cached_property
    def solution(self) -> Solution:
        """Weights of the centred features; those of features that are not in use are 0."""
        choices = [self._solved(blocks) for blocks in self.counted.choices]
        best = choices[0] if len(choices) == 1 else min(choices, key=self._evidence)
        self.centred, self.blocks, found = best
        weights = found.weights.new_zeros(self.counted.statistics.size, found.weights.shape[1])
        weights[: len(found.weights)] = found.weights
        return found._replace(weights=weights)

    def _solved(self, blocks: list[int]) -> tuple[Centred, list[int], Solution]:
        centred, rule = self._centred(sum(blocks)), self.rule
        if rule.solver == "lda":
            sums, weights, seen = self.classes
            sums, weights = sums[: sum(blocks)], weights.where(seen, 0)
            return centred, blocks, discriminants(centred, sums, weights, blocks, rule.ridge)
        return centred, blocks, solve(centred, blocks, rule.ridge, rule.share)

    def _evidence(self, solved: tuple[Centred, list[int], Solution]) -> float:
        """−2 log evidence, at the λ of which a share is used."""
        centred, blocks, found = solved
        return evidence(centred, blocks, found.ridge / (1.0 if self.rule.ridge else self.rule.share))

    @cached_property
    def certainty(self) -> Certainty:
        """How scores become probabilities: measured on a sample, now or before, or reckoned from the sums."""
        if self.rule.solver != "ridge":
            return Certainty(self._reckoned_sharpness())
        if self._left_out is None:
            return self.earlier[0] or Certainty(self._reckoned_sharpness())
        _, weights, seen = self.classes
        return certainty(*self._left_out, weights[seen] / weights[seen].sum())

    @cached_property
    def familiar(self) -> Familiar | None:
        """How novel known inputs look; None without a sample."""
        if self._left_out is None:
            return self.earlier[1]
        sample, removed = self._sample
        distance = self.distances.left_out(sample.features[:, : self.used], sample.y, removed)
        return familiar(self._top(self._left_out[0]).cpu(), distance.cpu())

    @cached_property
    def distances(self) -> Distances:
        sums, weights, seen = self.classes
        return Distances(self.centred, sums[: self.used, seen], weights[seen], self.blocks)

    @cached_property
    def _sample(self) -> tuple[Sample, Tensor]:
        """Examples, by their places among the classes with weight, and the weight removed to leave each out.

        There are none unless the sample stands for most of the learned weight.
        """
        sample, (_, weights, seen) = self.counted.sample, self.classes
        sums, unit = self.counted.statistics.tensors(), self.counted.unit
        total, drawn = float(sums["weight"]), torch.zeros_like(seen)
        drawn[sample.y] = True
        removed = (torch.full_like(sample.weight, unit) if unit > 0 else sample.weight) * (
            self.centred.weight / total
        )
        kept = (removed < 0.999 * weights[sample.y]) & seen[sample.y]
        covered = float(sums["targets"][drawn].sum())
        if sample.seen < 0.5 * total or (sample.seen < 0.99 * total and covered < 0.9 * total):
            kept = torch.zeros_like(kept)
        sample = sample.rows(kept)
        return sample._replace(y=(seen.cumsum(0) - 1)[sample.y]), removed[kept]

    @cached_property
    def _left_out(self) -> tuple[Tensor, Tensor, Tensor] | None:
        """Scores of the sample's examples, each left out, their columns and shares; None if they are too few."""
        sample, removed = self._sample
        unit = self.counted.unit
        repeated = sample.given / (unit if unit > 0 else sample.given.mean().clamp(min=1e-300))
        if float(repeated.sum()) < ENOUGH:
            return None
        _, _, seen = self.classes
        scores = (sample.features.double() @ self.solution.weights + self.solution.bias)[:, seen]
        if self.rule.solver == "ridge":
            scores = left_out_scores(
                self.centred, *self.root, scores, sample.features[:, : self.used], sample.y, removed
            )
        return scores, sample.y, repeated / repeated.sum()

    def _top(self, scores: Tensor) -> Tensor:
        """The highest score; discriminants are known up to a constant, so their highest share."""
        return (scores.softmax(1) if self.rule.solver == "lda" else scores).max(1).values

    def novelty(self, features: Tensor) -> Tensor:
        """[n] on the CPU: the share of known inputs that are less novel than these."""
        if self.familiar is None:
            raise InputError(
                f"novelty is measured on examples of all classes, and too few are at hand: learn {ENOUGH} or "
                "more, of classes that have at least two"
            )
        shift, (_, _, seen) = self.counted.shift, self.classes
        top = self._top(self.scores(features)[:, seen.cpu()])
        features = features.double() if shift is None else features.double() - shift
        return self.familiar.novelty(top, self.distances.of(features[:, : self.used]).cpu())

    def _reckoned_sharpness(self) -> float:
        centred, solution = self.centred, self._used_solution
        sums, weights, seen = self.classes
        if not seen.any():  # targets are numbers, whose sums are not positive
            return 1.0
        if int(seen.sum()) > MOST_CLASSES:  # the largest ones will do
            seen = torch.zeros_like(seen).index_fill_(0, weights.topk(MOST_CLASSES).indices, True)
        leverage = 0.0  # discriminants are no regression: what an example does to its own is not known
        if self.rule.solver == "ridge":
            own = freedom(centred, self.blocks, solution.ridge) + 1
            leverage = min(own / centred.weight, MOST_LEVERAGE)
        solution = solution._replace(weights=solution.weights[:, seen], bias=solution.bias[seen])
        return sharpness(centred, sums[: self.used, seen], weights[seen], solution, leverage)

    @property
    def _used_solution(self) -> Solution:
        return self.solution._replace(weights=self.solution.weights[: self.used])

    @cached_property
    def root(self) -> tuple[Tensor, Coordinates]:
        """Cholesky factor of G + λ of a regression, and the coordinates that it is in."""
        return root_of(self.centred, self.blocks, self.solution.ridge)

    def updates(self, classes: bool) -> Updates | None:
        """To learn a few more examples without solving again; None unless this is a regression of enough examples.

        The sums may have changed since, so everything must have been computed from them before.
        """
        needed = {"centred", "solution", "certainty"} if classes else {"centred", "solution"}
        if self.rule.solver != "ridge" or not needed <= self.__dict__.keys():
            return None
        if SHARE * self.centred.weight < 1:
            return None
        return Updates(self.centred, self._used_solution, *self.root, self.per_weight)

    def scores(self, features: Tensor, solution: Solution | None = None) -> Tensor:
        """[n, columns] in float64, on the CPU, of features as the map gives them."""
        shift, solution = self.counted.shift, solution or self.solution
        features = features.double() if shift is None else features.double() - shift
        return (features[:, : len(solution.weights)] @ solution.weights + solution.bias).cpu()

    @property
    def intercept(self) -> Tensor:
        """The bias [C] that belongs to the map's own features."""
        shift, solution = self.counted.shift, self.solution
        return solution.bias if shift is None else solution.bias - shift @ solution.weights
