"""Means over seeds, and whether two of them differ by more than chance: Welch's t-test, Holm's correction."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


def mean_and_deviation(values: NDArray[np.float64]) -> tuple[float, float]:
    """Mean and sample standard deviation, ignoring NaN; NaN if there is nothing else.

    >>> mean_and_deviation(np.array([1.0, 3.0, np.nan]))
    (2.0, 1.4142135623730951)
    """
    there = values[np.isfinite(values)]
    if len(there) == 0:
        return float("nan"), float("nan")
    return float(there.mean()), float(there.std(ddof=1)) if len(there) > 1 else float("nan")


@dataclass(frozen=True)
class Mean:
    """A mean over seeds with its standard error. A single seed has no error (NaN), and decides nothing."""

    value: float
    error: float = 0.0
    freedom: float = math.inf  # degrees of
    seeds: float = math.inf  # the fewest that any part of it was measured with

    @classmethod
    def over(cls, values: NDArray[np.float64]) -> Mean:
        value, deviation = mean_and_deviation(values)
        count = int(np.isfinite(values).sum())
        return cls(value, deviation / float(np.sqrt(count)) if count else np.nan, max(1.0, count - 1.0), count)

    def __sub__(self, other: Mean) -> Mean:
        """Welch's difference: the two may have different variances."""
        error = math.hypot(self.error, other.error)
        shares = self.error**4 / self.freedom + other.error**4 / other.freedom
        freedom = error**4 / shares if shares else math.inf
        return Mean(self.value - other.value, error, freedom, min(self.seeds, other.seeds))

    @property
    def chance(self) -> float:
        """The probability of a value at least this far from zero, on either side, if the true one is zero."""
        from scipy import stats

        if math.isnan(self.error):
            return 1.0
        if self.error == 0:
            return float(self.value == 0)
        return 2 * float(stats.t.sf(abs(self.value) / self.error, self.freedom))

    @property
    def reach(self) -> float:
        """Half the width of its 95 % confidence interval."""
        from scipy import stats

        return self.error * float(stats.t.ppf(0.975, self.freedom))


def holm(chances: Sequence[float]) -> list[float]:
    """p-values of several comparisons, corrected by Holm's rule: one in twenty of many is no surprise.

    >>> [round(p, 3) for p in holm([0.04, 0.01, 0.03])]
    [0.06, 0.03, 0.06]
    """
    corrected, floor = [0.0] * len(chances), 0.0
    for rank, place in enumerate(sorted(range(len(chances)), key=lambda each: chances[each])):
        floor = max(floor, min(1.0, chances[place] * (len(chances) - rank)))
        corrected[place] = floor
    return corrected
