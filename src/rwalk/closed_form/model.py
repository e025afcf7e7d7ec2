"""Features, statistics and their solution: a learner that is the same in whatever order it learned.

While there are too few examples to make a map of, they are held as they are. Then the map is made of them, they
are counted in, and from there on only sums are kept.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from rwalk.closed_form.features import LOOKED_AT, FeatureMap, Recipe, fingerprint, placed
from rwalk.closed_form.lda import discriminants
from rwalk.closed_form.probability import sharpness
from rwalk.closed_form.ridge import Solution, freedom, solve
from rwalk.closed_form.statistics import Centred, Statistics
from rwalk.errors import InputError

ROWS = 2048  # whose features are computed at a time
MOST_LEVERAGE = 0.95  # beyond it, an approximation by the mean has no meaning

STILL_KNOWN = (
    "what was learned from these examples is gone, but the feature map was made from the first examples and stays "
    "as it is: if they were among them, the map's scales or patches still reflect them"
)


@dataclass(frozen=True)
class Examples:
    """Inputs [n, *shape] in whatever type they came, targets (column numbers or values) and weights."""

    x: Tensor
    y: Tensor
    weight: Tensor

    def __len__(self) -> int:
        return len(self.x)

    def rows(self, which: Tensor | slice) -> Examples:
        return Examples(self.x[which], self.y[which], self.weight[which])


class Model:
    """Learns, forgets and merges; `columns` targets."""

    def __init__(
        self,
        recipe: Recipe,
        shape: tuple[int, ...],
        columns: int,
        *,
        ridge: float | None = None,
        warm_up: int = 0,
        dtype: torch.dtype | None = None,
        device: torch.device | str = "cpu",
        solver: str = "ridge",
        share: float = 1.0,
    ) -> None:
        self.recipe = recipe
        self.shape = shape
        self.columns = columns
        self.ridge = ridge
        self.warm_up = warm_up if recipe.needs_data(shape) else 0
        # Vectors are cheap enough to be exact to the last digits; convolutions and networks are not.
        default = torch.float64 if recipe.kind(shape) == "vectors" else torch.float32
        self.dtype = default if dtype is None else dtype
        self.device = torch.device(device)
        self.solver = solver
        self.share = share
        self.held: list[Examples] = []
        self.map: FeatureMap | None = None
        self.statistics: Statistics | None = None
        self._placed: FeatureMap | None = None
        self._settled: Model | None = None
        self._centred: Centred | None = None
        self._solution: Solution | None = None
        self._sharpness: float | None = None
        self._warned = False

    # ── learning ──────────────────────────────────────────────────────────────────────────────────────────────

    def learn(self, examples: Examples) -> None:
        """All of them, or, if something fails, none."""
        self._outdated()
        if self.map is None:
            held = replace(examples, x=examples.x.to(self.dtype, copy=True))  # the array's owner may change it
            self.held = [*self.held, held]
            if sum(len(each) for each in self.held) >= max(1, self.warm_up):
                self.settle()
            return
        assert self.statistics is not None
        if len(examples) <= ROWS:
            self.statistics.add(*self._features_of(examples))
        else:
            self.statistics.merge(self._sums(examples))

    def settle(self) -> None:
        """Make the map of what is held, if it is not made yet, and keep only sums from here on."""
        if self.map is None and self.held:
            held, self.held = self.held, []
            together = joined(held)
            some = together.rows(slice(None, None, -(-len(together) // LOOKED_AT)))
            self.take(self.recipe.make(some.x.to(self.device), some.weight.to(self.device)))
            self.learn(together)

    def take(self, features: FeatureMap) -> None:
        """Use this map; what is held will be counted in under it by the caller."""
        self.map = features
        self._placed = placed(features, self.dtype, self.device)
        self.statistics = Statistics.empty(sum(features.blocks), self.columns, self.device)

    def forget(self, examples: Examples) -> None:
        """Become what it would be without these, which were learned with the same targets and weights."""
        if self.map is None:
            self.held = _without(self.held, examples)
            self._outdated()
            return
        assert self.statistics is not None
        left = self.statistics.counts.cpu() - _counts(examples.y, self.columns)
        if (left < 0).any():
            raise InputError("more examples are to be forgotten than were learned: give only what was learned")
        if self.recipe.needs_data(self.shape) and not self._warned:
            self._warned = True
            warnings.warn(STILL_KNOWN, stacklevel=4)
        self._outdated()
        if len(examples) <= ROWS:
            self.statistics.remove(*self._features_of(examples))
        else:
            self.statistics.merge(self._sums(examples), sign=-1)

    def check_mergeable(self, other: Model) -> None:
        if self.shape != other.shape:
            raise InputError(f"inputs of shape {list(self.shape)} and {list(other.shape)} cannot be merged")
        if self.map is not None and other.map is not None and fingerprint(self.map) != fingerprint(other.map):
            raise InputError(
                "the two have different feature maps: begin one with fresh() of the other, then merge"
            )

    def merge(self, other: Model) -> None:
        """Learn all that another has learned, of the same columns."""
        self.check_mergeable(other)
        self._outdated()
        if self.map is None and other.map is not None:
            held, self.held = self.held, []
            self.take(other.map)
            for each in held:
                self.learn(each)
        if other.statistics is None:
            for each in other.held:
                self.learn(each)
        else:
            assert self.statistics is not None
            self.statistics.merge(other.statistics)

    def move_columns(self, places: list[int], columns: int) -> None:
        """Column i becomes places[i] of `columns`; it is dropped at −1."""
        self._outdated()
        self.columns = columns
        if self.statistics is not None:
            self.statistics = self.statistics.columns(places, columns)
        to = torch.tensor(places)
        self.held = [replace(each, y=to[each.y]) for each in self.held]

    def fresh(self, columns: int) -> Model:
        """One that has learned nothing, with the same map, which is made now if it was not yet."""
        self.settle()
        twin = copy.copy(self)
        twin._outdated()
        twin.columns, twin.held, twin._warned = columns, [], False
        if self.map is not None:
            twin.take(self.map)
        return twin

    @property
    def counts(self) -> Tensor:
        """Examples learned, per column."""
        if self.statistics is not None:
            return self.statistics.counts.cpu().clone()
        zero = torch.zeros(self.columns, dtype=torch.int64)
        return sum((_counts(each.y, self.columns) for each in self.held), start=zero)

    # ── using ─────────────────────────────────────────────────────────────────────────────────────────────────

    def scores(self, x: Tensor) -> Tensor:
        """[n, columns] in float64, on the CPU."""
        solution = self.solution
        parts = [(phi.double() @ solution.weights + solution.bias).cpu() for phi in self.features(x)]
        return torch.cat(parts)

    def features(self, x: Tensor) -> Iterator[Tensor]:
        """The features of these inputs, some rows at a time."""
        settled = self._as_settled()
        for rows in x.split(ROWS):
            yield settled._mapped(rows)

    def use_ridge(self, ridge: float | None) -> None:
        if ridge != self.ridge:
            self.ridge = ridge
            self._settled = self._solution = self._sharpness = None

    @property
    def centred(self) -> Centred:
        settled = self._as_settled()
        if settled._centred is None:
            if settled.statistics is None or not settled.counts.any():
                raise InputError("nothing is left to predict from: learn something first")
            settled._centred = settled.statistics.centred()
        return settled._centred

    @property
    def solution(self) -> Solution:
        settled = self._as_settled()
        if settled._solution is None:
            centred = settled.centred
            assert settled.map is not None and settled.statistics is not None
            if self.solver == "lda":
                sums = settled.statistics.tensors()
                settled._solution = discriminants(
                    centred, sums["cross"], sums["targets"], settled.map.blocks, self.ridge
                )
            else:
                settled._solution = solve(centred, settled.map.blocks, self.ridge, self.share)
        return settled._solution

    @property
    def sharpness(self) -> float:
        """What scores are multiplied by before their softmax is a probability."""
        settled = self._as_settled()
        if settled._sharpness is None:
            centred, solution = settled.centred, settled.solution
            assert settled.map is not None and settled.statistics is not None
            sums = settled.statistics.tensors()
            seen = sums["counts"] > 0
            leverage = 0.0  # discriminants are no regression: what an example does to its own is not known
            if self.solver == "ridge":
                own = freedom(centred, settled.map.blocks, solution.ridge) + 1
                leverage = min(own / centred.weight, MOST_LEVERAGE)
            solution = solution._replace(weights=solution.weights[:, seen], bias=solution.bias[seen])
            settled._sharpness = sharpness(
                centred, sums["cross"][:, seen], sums["targets"][seen], solution, leverage
            )
        return settled._sharpness

    def _as_settled(self) -> Model:
        """Itself, or what it would be if the map were made now."""
        if self.map is not None:
            return self
        if self._settled is None:
            self._settled = copy.copy(self)
            self._settled.held = list(self.held)
            self._settled.settle()
        return self._settled

    def _mapped(self, x: Tensor) -> Tensor:
        assert self._placed is not None
        features = self._placed(x.to(self.device).to(self.dtype)).to(self.dtype)
        if not features.isfinite().all():
            raise InputError(
                "the features of an input are not finite: check the network, or bring inputs to scale"
            )
        return features

    def _features_of(self, examples: Examples) -> tuple[Tensor, Tensor, Tensor]:
        return self._mapped(examples.x), examples.y.to(self.device), examples.weight.to(self.device)

    def _sums(self, examples: Examples) -> Statistics:
        assert self.map is not None
        sums = Statistics.empty(sum(self.map.blocks), self.columns, self.device)
        for start in range(0, len(examples), ROWS):
            sums.add(*self._features_of(examples.rows(slice(start, start + ROWS))))
        return sums

    def _outdated(self) -> None:
        self._settled = self._centred = self._solution = self._sharpness = None


def joined(parts: Sequence[Examples]) -> Examples:
    x, y, weight = zip(*((each.x, each.y, each.weight) for each in parts), strict=True)
    return Examples(torch.cat(x), torch.cat(y), torch.cat(weight))


def _counts(y: Tensor, columns: int) -> Tensor:
    if y.ndim == 1:
        return torch.bincount(y, minlength=columns)
    return torch.full((columns,), len(y), dtype=torch.int64)


def _without(held: list[Examples], gone: Examples) -> list[Examples]:
    """What is held, less one equal example for each that is to go."""
    together = joined([*held, gone.rows(slice(0))])
    left = list(range(len(together)))
    for index in range(len(gone)):
        x, y, weight = gone.x[index], gone.y[index], gone.weight[index]
        for place in left:
            same = torch.equal(together.x[place], x) and torch.equal(together.y[place], y)
            if same and together.weight[place] == weight:
                left.remove(place)
                break
        else:
            raise InputError("an example is to be forgotten that was not learned: give only what was learned")
    return [together.rows(torch.tensor(left))] if left else []
