"""Features, statistics and their solution: a learner that is the same in whatever order it learned.

While there are too few examples to make a map of, they are held as they are. Then the map is made of them, they
are counted in, and from there on only sums are kept.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from rwalk.closed_form.examples import Examples, Sample, joined, without
from rwalk.closed_form.feature_sums import ROWS, SEVERAL, Counted, check_inputs, outside, range_of
from rwalk.closed_form.features import LOOKED_AT, FeatureMap, Recipe, fingerprint
from rwalk.closed_form.features.vectors import mark
from rwalk.closed_form.solution import MEASURED, Fit, Measures, Rule
from rwalk.closed_form.solve import Solution, Updates
from rwalk.errors import InputError, warn_caller

FEW = 32  # examples of a call that update a solution one by one
STILL_KNOWN = (
    "these examples were removed, but the feature map was made from the first examples and stays as it is: if "
    "they were among them, the map (scales, patches) still reflects them"
)


class Model:
    """Learns, forgets and merges; `columns` targets."""

    def __init__(
        self,
        recipe: Recipe,
        shape: tuple[int, ...],
        columns: int,
        rule: Rule = Rule(),  # noqa: B008 - frozen
        *,
        warm_up: int = 0,
        dtype: torch.dtype | None = None,
        device: torch.device | str = "cpu",
        half_life: float | None = None,
    ) -> None:
        self.recipe = recipe
        self.shape = shape
        self.columns = columns
        self.rule = rule
        self.warm_up = warm_up if recipe.needs_data(shape) else 0
        # Vectors are cheap enough to be exact to the last digits; convolutions and networks are not.
        default = torch.float64 if recipe.kind(shape) == "vectors" else torch.float32
        self.dtype = default if dtype is None else dtype
        self.products = torch.float64 if dtype is None else dtype  # float32 only on request
        self.device = torch.device(device)
        self.half_life = half_life
        self.held: list[Examples] = []  # until there is a map,
        self.counted: Counted | None = None  # and then
        self._fit: tuple[Counted, Fit] | None = None
        self._warned = False
        self._updates: tuple[Fit, Updates] | None = None
        self.measured: Measures = (None, None)  # when the sample was last dropped

    # ── learning ──────────────────────────────────────────────────────────────────────────────────────────────

    def learn(self, examples: Examples) -> None:
        """All of them, or, if something fails, none."""
        if self.counted is not None:
            self._since(self.counted.learn(examples))
            return
        self._fit = None
        check_inputs(examples.x, self.dtype)
        held = replace(examples, x=examples.x.to(self.dtype, copy=True))  # the array's owner may change it
        self.held = [*self.held, held]
        if sum(len(each) for each in self.held) >= max(1, self.warm_up):
            self.settle()

    def _since(self, learned: tuple[Tensor, Tensor, Tensor] | None) -> None:
        """Update the solution by a few examples, or have it solved again when it is needed."""
        before, self._fit = self._fit, None
        if before is None or before[0] is not self.counted or learned is None or len(learned[1]) > FEW:
            self._updates = None
            return
        if self._updates is None:
            if self.half_life is not None or (updates := before[1].updates(learned[1].ndim == 1)) is None:
                return
            self._updates = before[1], updates
        if self._updates[1].learn(*learned):
            self._fit = before
        else:
            self._updates = None

    def settle(self) -> None:
        """Make the map of the held examples, unless there is one, and keep only sums from here on."""
        if self.counted is None and self.held:
            self.counted, self.held = self._settled(), []

    def take(self, features: FeatureMap) -> None:
        """Use this map, and keep only sums from here on."""
        counted = self._empty(features)
        for each in self.held:
            counted.learn(each)
        self.counted, self.held = counted, []

    def forget(self, examples: Examples) -> None:
        """Remove these, which were learned with the same targets and weights."""
        if self.counted is None:
            self.held = without(self.held, replace(examples, x=examples.x.to(self.dtype)))  # as they are held
            self._fit = None
            return
        if (self.counts < examples.counts(self.columns)).any():
            raise InputError("more examples are to be forgotten than were learned: give only learned examples")
        measured = self.fit.certainty, self.fit.familiar
        self.counted.forget(examples)
        self._fit, self.measured = None, measured
        if self.recipe.needs_data(self.shape) and not self._warned:
            self._warned = True
            warn_caller(STILL_KNOWN)

    def merge(self, other: Model) -> None:
        """Learn all that another has learned, of the same columns."""
        check_mergeable(self, other)
        self._fit = None
        if self.counted is None and other.counted is not None:
            self.take(other.counted.map)
        if other.counted is None:
            for each in other.held:
                self.learn(each)
        else:
            assert self.counted is not None
            self.counted.merge(other.counted)

    def move_columns(self, places: list[int], columns: int) -> None:
        """Column i becomes places[i] of `columns`; it is dropped at −1."""
        self._fit = None
        self.columns = columns
        if self.counted is not None:
            self.counted = self.counted.moved(places, columns)
        to = torch.tensor(places)
        self.held = [replace(each, y=to[each.y]) for each in self.held]

    def fresh(self, columns: int) -> Model:
        """One that has learned nothing, with the same map, which is made now if it was not yet."""
        self.settle()
        twin = copy.copy(self)
        twin.columns, twin.held, twin._fit, twin._warned = columns, [], None, False
        twin.measured = (None, None)
        twin.counted = None if self.counted is None else self.counted.fresh(columns)
        return twin

    @property
    def counts(self) -> Tensor:
        """Examples learned, per column."""
        if self.counted is not None:
            return self.counted.statistics.counts.cpu().clone()
        zero = torch.zeros(self.columns, dtype=torch.int64)
        return sum((each.counts(self.columns) for each in self.held), start=zero)

    @property
    def prior(self) -> Tensor:
        """Logarithms of the classes' shares of all weight [columns]; of next to none, where there is none."""
        if self.counted is not None:
            weight = self.counted.statistics.targets.cpu()
        else:
            weight = torch.zeros(self.columns, dtype=torch.float64)
            for each in self.held:
                weight.index_add_(0, each.y, each.weight)
        return (weight.clamp(min=0) / weight.sum()).clamp(min=1e-12).log()

    def warn_outside(self, x: Tensor, y: Tensor | None, names: Sequence[str]) -> None:
        """Warn if a column of these inputs lies far outside its learned range: its unit may have changed.

        Of inputs with targets only those of known classes count, because a new class may lie anywhere.
        """
        column, ends = self._outside(x, y)
        if column is None or ends is None:
            return
        known = [float(end[column]) for end in ends]
        now = [float(end[column]) for end in range_of(x, self.dtype)]
        name = repr(names[column]) if len(names) > column else str(column)
        kind = "channel" if x.ndim > 2 else "column"
        warn_caller(
            f"{kind} {name} was between {known[0]:g} and {known[1]:g} so far and now is between {now[0]:g} and "
            f"{now[1]:g}: if its unit has changed, convert it; if the data have moved, fit again with examples of "
            "both, because the features are made for the first range"
        )

    def warn_mark(self, x: Tensor, names: Sequence[str]) -> None:
        """Warn if a value among the first vectors seems to mark missing ones."""
        scaled = self.recipe.kind(self.shape) == "vectors" and self.recipe.standardize
        if self.counted is not None or not scaled or (found := mark(x.flatten(1).to(self.dtype))) is None:
            return
        value, count, column = found
        name = repr(names[column]) if len(names) > column else str(column)
        warn_caller(
            f"{value:g} occurs {count} times, first in column {name}, far from all others there: if it marks "
            "missing values, fill them in"
        )

    def _outside(self, x: Tensor, y: Tensor | None) -> tuple[int | None, tuple[Tensor, Tensor] | None]:
        """The column outside its range, if any, and the ranges."""
        labels = y if y is not None and y.ndim == 1 else None
        if self.counted is not None:
            if labels is not None:
                x = x[(self.counts > 0)[labels.cpu()].to(x.device)]
            return self.counted.outside(x), self.counted.range
        if not self.held:
            return None, None
        held = joined(self.held)
        if labels is not None:
            x = x[torch.isin(labels, held.y)]
        ends = range_of(held.x, self.dtype)
        if len(held) < SEVERAL or not len(x):
            return None, None
        scale = None
        if held.x.ndim == 2:
            scale = held.x.double().std(0)
            scale = torch.where(scale > 1e-9 * ends[1].abs(), scale, torch.inf)  # it may just not have varied yet
        return outside(x, ends, scale), ends

    # ── using ─────────────────────────────────────────────────────────────────────────────────────────────────

    def scores(self, x: Tensor) -> Tensor:
        """[n, columns] in float64, on the CPU."""
        fit, solution = self.quick_fit, None
        if self._updates is not None and self._updates[0] is fit:
            solution = self._updates[1].solution
        return torch.cat([fit.scores(rows, solution) for rows in self.features(x)])

    def features(self, x: Tensor) -> Iterator[Tensor]:
        """The features of these inputs, some rows at a time."""
        for rows in x.split(ROWS):
            yield self.quick_fit.counted.features(rows)

    def novelty(self, x: Tensor) -> Tensor:
        """[n] on the CPU: the share of known inputs that are less novel than these."""
        fit = self.fit
        if self.counted is None and not fit.counted.statistics.counts.any():  # a file has no sums of held examples
            counted = self._empty(fit.counted.map)
            counted.learn(joined(self.held))
            found = {name: each for name, each in fit.__dict__.items() if name in MEASURED and each is not None}
            fit = Fit(counted, fit.rule)
            fit.__dict__ |= found
            self._fit = counted, fit
        return torch.cat([fit.novelty(rows) for rows in self.features(x)])

    def use_ridge(self, ridge: float | None) -> None:
        if ridge != self.rule.ridge:
            self.rule = replace(self.rule, ridge=ridge)
            self._fit, self.measured = None, (None, self.measured[1])

    def use_half_life(self, half_life: float | None) -> None:
        """Fade by another half-life from now on."""
        if half_life != self.half_life:
            self.half_life = half_life
            if self.counted is not None:
                self.counted.use_half_life(half_life)

    @property
    def fit(self) -> Fit:
        """The solution of all examples so far, under a map made now if there is none yet."""
        if self._updates is not None:
            self._updates = self._fit = None
        return self._now()[1]

    @property
    def quick_fit(self) -> Fit:
        """The same, or the last solution while it is being updated by a few examples."""
        return self._now()[1]

    def stored_fit(self) -> Fit | None:
        """The solution, for a file, so that predicting from it need not solve again."""
        return self.fit if self.counts.any() else None

    def drop_sample(self) -> None:
        """Keep the measures and drop the sample: a file has none either."""
        if self.counted is not None and self.counts.any():
            self.measured = self.fit.certainty, self.fit.familiar
            self.counted.sample = Sample.empty(self.counted.statistics.size, self.device)

    def use_stored_fit(
        self,
        features: FeatureMap,
        shift: Tensor | None,
        rule: Rule,
        solution: Solution,
        measured: Measures,
    ) -> None:
        """Predict by a file's solution, as long as nothing changes."""
        self.measured = measured
        if rule != self.rule:
            self.measured = None, measured[1]  # scores are others
            return
        counted = self.counted
        if counted is None:
            counted = self._empty(features)
            counted.shift = shift
        fit = Fit(counted, rule)
        fit.__dict__ |= dict(zip(MEASURED, (solution, *measured), strict=True))
        self._fit = counted, fit

    def _now(self) -> tuple[Counted, Fit]:
        if self._fit is None:
            counted = self._settled() if self.counted is None else self.counted
            self._fit = counted, Fit(counted, self.rule, self.measured)
        return self._fit

    def _settled(self) -> Counted:
        """The sums of the held examples, under a map made of them."""
        if not self.held:
            raise InputError("nothing is left to predict from: learn something first")
        together = joined(self.held)
        some = together.rows(slice(None, None, -(-len(together) // LOOKED_AT)))
        features = self.recipe.make(some.x.to(self.device), some.weight.to(self.device))
        counted = self._empty(features)
        counted.learn(together)
        return counted

    def _empty(self, features: FeatureMap) -> Counted:
        return Counted(features, self.columns, self.dtype, self.device, self.products, self.half_life)


def check_mergeable(one: Model, other: Model) -> None:
    if one.shape != other.shape:
        raise InputError(f"inputs of shape {list(one.shape)} and {list(other.shape)} cannot be merged")
    maps = [fingerprint(each.counted.map) for each in (one, other) if each.counted is not None]
    if len(set(maps)) > 1:
        raise InputError("the two have different feature maps: begin one with fresh() of the other, then merge")
