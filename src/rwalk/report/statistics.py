"""Means over seeds, and whether two of them differ by more than chance: Welch's t-test, Holm's correction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rwalk.report.summary import mean_and_deviation


@dataclass(frozen=True)
class Mean:
    """A mean over seeds with its standard error. A single seed has none (NaN), and decides nothing."""

    value: float
    error: float = 0.0
    freedom: float = np.inf  # degrees of
    seeds: float = np.inf  # the fewest that any part of it was measured with

    @classmethod
    def over(cls, values: NDArray[np.float64]) -> Mean:
        value, deviation = mean_and_deviation(values)
        count = int(np.isfinite(values).sum())
        return cls(value, deviation / float(np.sqrt(count)) if count else np.nan, max(1.0, count - 1.0), count)

    def __sub__(self, other: Mean) -> Mean:
        """Welch's difference: the two may have different variances."""
        error = float(np.hypot(self.error, other.error))
        shares = self.error**4 / self.freedom + other.error**4 / other.freedom
        freedom = error**4 / shares if shares else np.inf
        return Mean(self.value - other.value, error, freedom, min(self.seeds, other.seeds))

    @property
    def chance(self) -> float:
        """How likely a value this far from zero would be, on either side, if the true one were zero."""
        from scipy import stats

        if self.error == 0:
            return float(self.value == 0)
        return 1.0 if np.isnan(self.error) else 2 * float(stats.t.sf(abs(self.value) / self.error, self.freedom))

    @property
    def reach(self) -> float:
        """Half the width of its 95 % confidence interval."""
        from scipy import stats

        return self.error * float(stats.t.ppf(0.975, self.freedom))

    def power(self, seeds: int, level: float) -> float:
        """How likely so many seeds tell it from zero at this level, if value and scatter are the true ones."""
        from scipy import stats

        freedom = self.freedom * (seeds - 1) / (self.seeds - 1)
        distance = abs(self.value) / (self.error * np.sqrt(self.seeds / seeds))
        return float(stats.nct.sf(stats.t.ppf(1 - level / 2, freedom), freedom, distance))


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
