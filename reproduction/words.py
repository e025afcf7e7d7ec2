"""Means in words, for those who judge claims by them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from reproduction.settings import METHODS
from rwalk.report.statistics import Mean

NAMES = {"ewc": "EWC", "ewc++": "EWC++", "pi": "PI", "rwalk": "RWalk", "icarl": "iCaRL", "gem": "GEM"}
REGULARISED = tuple(method for method in METHODS if method != "vanilla")
NEAR = 0.5  # points: as good as
INSENSITIVE = 2.0  # points between any two settings of what does not matter


def named(label: str) -> str:
    """A method's name as people write it; -S stays, where there are samples."""
    method = label.removesuffix("-S")
    return NAMES.get(method, method) + label[len(method) :]


def extreme(means: Mapping[str, Mean], largest: bool = True) -> str:
    """The name of the largest, or of the smallest."""
    return (max if largest else min)(means, key=lambda name: means[name].value)


def spread(means: Iterable[Mean]) -> Mean:
    ordered = sorted(means, key=lambda mean: mean.value)
    return ordered[-1] - ordered[0]


def listed(means: Mapping[str, Mean], digits: int = 1) -> str:
    return ", ".join(f"{named(name)} {mean.value:.{digits}f}" for name, mean in means.items())


def ranged(means: Iterable[Mean], digits: int = 1) -> str:
    values = [mean.value for mean in means]
    low, high = f"{min(values):.{digits}f}", f"{max(values):.{digits}f}"
    return low if low == high else f"{low} to {high}"
