"""The surface steps × λ: how accurate RWalk is, and how much λ matters, by how long it trains."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from reproduction.markdown import row
from reproduction.measured import Measured, NotRun
from reproduction.questions import FACTORS, SURFACE_LAMBDAS, SURFACE_STEPS, SURFACES, surface_label
from rwalk.data.batches import REPLAYS
from rwalk.parts import defaults

FLAT = 3.0  # points between the best and the worst λ
CLOSE = 1.0  # points from the best of all
SIX_DECADES = 7  # λ's, from the first to the last: more than anyone is wrong by
MEANINGS = (
    f"Balanced: {REPLAYS['balanced']}; concat: {REPLAYS['concat']}. Reset, kept: Adam's moments. "
    f"Normal: {FACTORS['init']}, as the authors' code begins; else torch's own."
)


class Stretch(NamedTuple):
    """A length of training and six decades of λ, with A in percent at each."""

    panel: str
    steps: int
    lambdas: tuple[float, ...]
    accuracy: list[float]

    @property
    def low(self) -> float:
        return min(self.accuracy)

    @property
    def spread(self) -> float:
        return max(self.accuracy) - self.low

    @property
    def a(self) -> str:
        return f"{self.low:.1f} to {max(self.accuracy):.1f}"

    @property
    def lam(self) -> str:
        return f"{decade(self.lambdas[0])} to {decade(self.lambdas[-1])}"


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

    @property
    def stretches(self) -> list[Stretch]:
        """Of every length all six decades that were tried."""
        width = min(SIX_DECADES, self.accuracy.shape[1])
        windows = [slice(begin, begin + width) for begin in range(self.accuracy.shape[1] - width + 1)]
        return [
            Stretch(self.panel, steps, SURFACE_LAMBDAS[window], accuracy[window].tolist())
            for steps, accuracy in zip(SURFACE_STEPS, self.accuracy, strict=True)
            for window in windows
        ]


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
        top, safest = int(each.best.argmax()), max(each.stretches, key=lambda stretch: stretch.low)
        where = f"{SURFACE_STEPS[top]}, {decade(SURFACE_LAMBDAS[int(each.accuracy[top].argmax())])}"
        cells = (f"{each.best[top]:.1f}", where, f"{each.spread[top]:.1f}")
        whatever = (f"{safest.steps}, {safest.lam}", safest.a, f"{safest.spread:.1f}")
        yield from row(each.panel, *cells, *whatever, head=False)
    yield ""
    yield (
        f"What λ is worth: A at the best λ minus A at the worst, of all from {decade(SURFACE_LAMBDAS[0])} to "
        f"{decade(SURFACE_LAMBDAS[-1])}; whatever λ is: in six decades, those where the worst is best. {MEANINGS} "
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
    lengths = {
        (each.panel, steps): (each.best[i], each.spread[i], SURFACE_LAMBDAS[int(each.accuracy[i].argmax())])
        for each in surfaces
        for i, steps in enumerate(SURFACE_STEPS)
    }
    top = max(lengths, key=lambda key: lengths[key][0])
    highest, its_spread, lam = lengths[top]
    stretches = [stretch for each in surfaces for stretch in each.stretches]
    both = [each for each in stretches if each.spread <= FLAT and max(each.accuracy) >= highest - CLOSE]
    as_wished = f"within {CLOSE:g} point of the best and flat to {FLAT:g} points over six decades"
    safest = max(both or stretches, key=lambda each: each.low)
    where, tuned = _where(safest.panel, safest.steps), _where(*top)
    if both:
        others = dict.fromkeys(_where(each.panel, each.steps) for each in both)
        also = f" So are {', '.join(other for other in others if other != where)}." * (len(others) > 1)
        return (
            f"take {where}; whatever λ is then from {safest.lam}, A is {safest.a}. That is {as_wished}.{also} "
            f"The best is {highest:.1f}: {tuned} at λ = {decade(lam)}, where a bad λ costs {its_spread:.1f}."
        )
    return (
        f"if you can tune λ on held-out data, take {tuned}, where A is {highest:.1f} at λ = {decade(lam)} "
        f"and a bad λ costs {its_spread:.1f} points; if not, {where}, where A is {safest.a} "
        f"whatever λ is from {safest.lam}. Nothing tried is {as_wished}."
    )


def _where(name: str, steps: int) -> str:
    panel = SURFACES[name]
    if panel.replay is None:
        return f"{steps} steps per task"
    optimizer = f"optimizer {'kept' if panel.keep_optimizer else 'reset'}"
    return (
        f"{steps} steps per task ({panel.replay} batches, {optimizer}{', normal initial weights' * panel.normal})"
    )
