"""The surface steps × λ: how accurate RWalk is, and how much λ matters, by how long it trains."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rwalk.data.batches import REPLAYS
from rwalk.paper.markdown import row
from rwalk.paper.measured import Measured, NotRun
from rwalk.paper.questions import FACTORS, SURFACE_LAMBDAS, SURFACE_STEPS, SURFACES, surface_label
from rwalk.parts import defaults

FLAT = 3.0  # points between the best and the worst λ
CLOSE = 1.0  # points from the best of all
MEANINGS = (
    f"Balanced: {REPLAYS['balanced']}; concat: {REPLAYS['concat']}. Reset, kept: Adam's moments. "
    f"Normal: {FACTORS['init']}, as the authors' code begins; else torch's own."
)


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
        return SURFACES[self.panel].replay is not None

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


OPENINGS = {
    True: "With ten exemplars per class, in single-head evaluation:",
    False: "Without exemplars, in multi-head evaluation:",
}


def lines_of(surfaces: list[Surface]) -> Iterator[str]:
    """For practitioners, from the numbers alone: what to do, and the numbers that say so."""
    chosen = {replays: [each for each in surfaces if each.replays == replays] for replays in OPENINGS}
    yield " ".join(
        f"{opening} {_advice(chosen[replays])}" for replays, opening in OPENINGS.items() if chosen[replays]
    )
    yield ""
    yield from row("", "best A", "steps, λ", "λ's worth there", "best whatever λ is", "A there", "λ's worth there")
    for each in surfaces:
        top, safest = int(each.best.argmax()), int(each.accuracy.min(1).argmax())
        where = f"{SURFACE_STEPS[top]}, {decade(SURFACE_LAMBDAS[int(each.accuracy[top].argmax())])}"
        there = f"{each.accuracy[safest].min():.1f} to {each.best[safest]:.1f}"
        cells = (f"{each.best[top]:.1f}", where, f"{each.spread[top]:.1f}", f"{SURFACE_STEPS[safest]} steps")
        yield from row(each.panel, *cells, there, f"{each.spread[safest]:.1f}", head=False)
    yield ""
    yield (
        f"What λ is worth: A at the best of the λ's {_decades()} minus A at the worst. {MEANINGS} "
        f"{_how_measured(surfaces)}"
    )


def _how_measured(surfaces: list[Surface]) -> str:
    seeds = min(each.seeds for each in surfaces)
    usual = defaults("rwalk")
    said = f"On held-out data, {seeds} seed{'s' * (seeds != 1)}, α = {usual['alpha']:g} and ε = {usual['eps']:g}."
    missing = [panel for panel in SURFACES if panel not in {each.panel for each in surfaces}]
    return f"{said} Not run yet: {'; '.join(missing)}." if missing else said


def _advice(surfaces: list[Surface]) -> str:
    """Whether one can have both, a high A and a λ that does not matter; if not, what to take."""
    rows = {
        (each.panel, steps): (each.best[i], each.spread[i], SURFACE_LAMBDAS[int(each.accuracy[i].argmax())])
        for each in surfaces
        for i, steps in enumerate(SURFACE_STEPS)
    }
    top = max(rows, key=lambda key: rows[key][0])
    highest, its_spread, lam = rows[top]
    both = [key for key, (a, spread, _) in rows.items() if spread <= FLAT and a >= highest - CLOSE]
    as_wished = f"within {CLOSE:g} point of the best and flat to {FLAT:g} points"
    safest = max(both or rows, key=lambda key: rows[key][0] - rows[key][1])
    if both:
        others = f" So are {', '.join(_where(key) for key in both if key != safest)}." * (len(both) > 1)
        return (
            f"take {_where(safest)}; whatever λ is then {_decades()}, A is {_range(rows[safest])}, where the best "
            f"of all is {highest:.1f}. That is {as_wished}.{others}"
        )
    return (
        f"if you can tune λ on held-out data, take {_where(top)}, where A is {highest:.1f} at λ = {decade(lam)} "
        f"and a bad λ costs {its_spread:.1f} points; if not, {_where(safest)}, where A is {_range(rows[safest])} "
        f"whatever λ is. Nothing tried is {as_wished}."
    )


def _decades() -> str:
    return f"from {decade(SURFACE_LAMBDAS[0])} to {decade(SURFACE_LAMBDAS[-1])}"


def _range(of: tuple[float, float, float]) -> str:
    best, spread, _ = of
    return f"{best - spread:.1f} to {best:.1f}"


def _where(key: tuple[str, int]) -> str:
    name, steps = key
    panel = SURFACES[name]
    if panel.replay is None:
        return f"{steps} steps per task"
    optimizer = f"optimizer {'kept' if panel.keep_optimizer else 'reset'}"
    return (
        f"{steps} steps per task ({panel.replay} batches, {optimizer}{', normal initial weights' * panel.normal})"
    )
