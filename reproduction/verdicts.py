"""From margins to verdicts: those that our seeds decide, and the seeds that would decide the rest.

A claim is a few margins that must all be above zero. Each is tested by Welch's t-test, two-sided; Holm's
correction keeps the chance of any error among the margins of one claim below 5 %.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rwalk.report.welch_test import Mean, holm

LEVEL = 0.05
POWER = 0.8
MOST_SEEDS = 1000  # more are not worth the cost
YES, NO, UNDECIDED = "confirmed", "**refuted**", "undecided"


def decided(margins: Sequence[Mean]) -> list[bool]:
    """Which margins differ from zero, by Holm's step-down procedure."""
    return [chance <= LEVEL for chance in holm([margin.chance for margin in margins])]


def verdict(margins: Sequence[Mean]) -> str:
    """Yes, if every margin is known to be above zero; no, if one is known to be below it."""
    known = decided(margins)
    if any(each and margin.value < 0 for each, margin in zip(known, margins, strict=True)):
        return NO
    return YES if margins and all(known) else UNDECIDED


def seeds_to_decide(margins: Sequence[Mean]) -> float:
    """About how many seeds would decide an undecided claim; infinite if more than MOST_SEEDS.

    This takes the measured differences and scatter for the true ones, and requires a power of 80 % in each
    margin that matters, at the strictest of Holm's levels. If all margins are positive, all of them matter (the
    claim would be confirmed); otherwise the negative one that is easiest to establish does (it would be refuted).
    """
    level = LEVEL / max(1, len(margins))
    open_ = [margin for margin, known in zip(margins, decided(margins), strict=True) if not known]
    against = [margin for margin in open_ if margin.value < 0]
    if against:
        return min(_seeds(margin, level) for margin in against)
    return max((_seeds(margin, level) for margin in open_), default=np.inf)


def _seeds(margin: Mean, level: float) -> float:
    if not (np.isfinite(margin.error) and margin.seeds > 1 and margin.error > 0):
        return np.inf  # a single seed, or none, has no scatter
    few, many = 2, MOST_SEEDS
    if _power(margin, many, level) < POWER:
        return np.inf
    while few < many:
        middle = (few + many) // 2
        few, many = (few, middle) if _power(margin, middle, level) >= POWER else (middle + 1, many)
    return float(few)


def _power(margin: Mean, seeds: int, level: float) -> float:
    """The probability that so many seeds find a mean different from zero, if its value and scatter are true."""
    from scipy import stats

    freedom = margin.freedom * (seeds - 1) / (margin.seeds - 1)
    distance = abs(margin.value) / (margin.error * np.sqrt(margin.seeds / seeds))
    return float(stats.nct.sf(stats.t.ppf(1 - level / 2, freedom), freedom, distance))
