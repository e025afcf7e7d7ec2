"""The surface steps × λ: how accurate RWalk is, and how much λ matters, by how long it trains."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rwalk.data.batches import REPLAYS
from rwalk.paper.measured import Measured, NotRun
from rwalk.paper.questions import SURFACE_LAMBDAS, SURFACE_STEPS, SURFACES, surface_label

FLAT = 3.0  # points between the best and the worst λ
CLOSE = 1.0  # points from the best of all
HOW_REPLAYED = f"balanced: {REPLAYS['balanced']}; concat: {REPLAYS['concat']}"


@dataclass(frozen=True)
class Surface:
    """One panel: mean A in percent, [steps, λ]."""

    panel: str
    accuracy: NDArray[np.float64]
    seeds: int

    @classmethod
    def of(cls, measured: Measured, panel: str) -> Surface:
        """NotRun unless all of its cells have rows."""
        cells = [
            [measured.mean("A", "surface-mnist", panel, surface_label(steps, lam)) for lam in SURFACE_LAMBDAS]
            for steps in SURFACE_STEPS
        ]
        accuracy = np.array([[cell.value for cell in row] for row in cells])
        return cls(panel, accuracy, int(min(cell.seeds for row in cells for cell in row)))

    @classmethod
    def all_of(cls, measured: Measured) -> list[Surface]:
        """Those that are complete; NotRun if none is."""
        found = []
        for panel in SURFACES:
            try:
                found.append(cls.of(measured, panel))
            except NotRun:
                continue
        if not found:
            raise NotRun("surface-mnist")
        return found

    @property
    def replays(self) -> bool:
        """Whether there are exemplars; only such surfaces can be compared with each other."""
        return SURFACES[self.panel][0] is not None

    @property
    def best(self) -> NDArray[np.float64]:
        """By steps: A at the best λ."""
        best: NDArray[np.float64] = self.accuracy.max(1)
        return best

    @property
    def spread(self) -> NDArray[np.float64]:
        """By steps: A at the best λ minus A at the worst."""
        worst: NDArray[np.float64] = self.accuracy.min(1)
        return self.best - worst


def decade(number: float) -> str:
    """
    >>> decade(0.1), decade(100.0), decade(1e5)
    ('0.1', '100', '10⁵')
    """
    exponent = round(math.log10(number))
    return (
        f"{number:g}"
        if exponent < 3
        else "10" + str(exponent).translate(str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹"))
    )


def advice(surfaces: list[Surface]) -> str:
    """For practitioners, from the numbers alone."""
    said = []
    for replays, opening in (
        (True, "On held-out data, with ten exemplars per class in single-head evaluation,"),
        (False, "Without exemplars, in multi-head evaluation,"),
    ):
        if chosen := [each for each in surfaces if each.replays == replays]:
            said.append(f"{opening} {_compared(chosen)}")
    missing = [panel for panel in SURFACES if panel not in {each.panel for each in surfaces}]
    seeds = min(each.seeds for each in surfaces)
    said.append(f"α and ε are at their defaults, {seeds} seed{'s' * (seeds != 1)} each.")
    said.append(f"Not run yet: {'; '.join(missing)}." * bool(missing))
    return " ".join(filter(None, said))


def _compared(surfaces: list[Surface]) -> str:
    """Where A is highest, where λ matters least, and whether one can have both."""
    rows = {
        (each.panel, steps): (each.best[i], each.spread[i], SURFACE_LAMBDAS[int(each.accuracy[i].argmax())])
        for each in surfaces
        for i, steps in enumerate(SURFACE_STEPS)
    }
    top = max(rows, key=lambda key: rows[key][0])
    flattest = min(rows, key=lambda key: rows[key][1])
    safest = max(rows, key=lambda key: rows[key][0] - rows[key][1])
    highest, its_spread, lam = rows[top]
    both = [key for key, (a, spread, _) in rows.items() if spread <= FLAT and a >= highest - CLOSE]
    price = highest - rows[flattest][0]
    ways = [f"{each.panel} {each.best.max():.1f}" for each in surfaces]
    decades = f"from {decade(SURFACE_LAMBDAS[0])} to {decade(SURFACE_LAMBDAS[-1])}"
    said = (
        f"A is highest ({highest:.1f}) at {_where(top)} and λ = {lam:g}; there the choice of λ "
        f"{decades} is worth {its_spread:.1f} points. λ matters least at {_where(flattest)}: "
        f"{rows[flattest][1]:.1f} points, at the price of {price:.1f} points of A. "
    )
    said += f"The best A of each way: {'; '.join(ways)} ({HOW_REPLAYED}). " * (len(ways) > 1)
    if both:
        return said + f"Within {CLOSE:g} point of the best and flat to {FLAT:g} points: {_listed(both, rows)}."
    return said + (
        f"No setting here is both within {CLOSE:g} point of the best and flat to {FLAT:g} points: if you can tune "
        f"λ on held-out data, train for {top[1]} steps; if not, take {_where(safest)}: whatever λ is then, A is "
        f"{rows[safest][0] - rows[safest][1]:.1f} to {rows[safest][0]:.1f}."
    )


def _where(key: tuple[str, int]) -> str:
    replay, _, optimizer = key[0].partition(", ")
    batches = f"{replay} batches, " if SURFACES[key[0]][0] else ""
    return f"{key[1]} steps per task ({batches}optimizer {optimizer})"


def _listed(keys: list[tuple[str, int]], rows: Mapping[tuple[str, int], tuple[float, float, float]]) -> str:
    return "; ".join(f"{_where(key)}, A {rows[key][0]:.1f}, spread {rows[key][1]:.1f}" for key in keys)
