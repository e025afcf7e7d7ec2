"""Our own questions, answered in tables; RESULTS.md, written by hand, interprets them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from reproduction.markdown import table
from reproduction.measured_cells import Measured, NotRun
from reproduction.own_questions import (
    FACTORS,
    FACTORS_OF,
    IN_BOTH_PRECISIONS,
    SURFACE_LAMBDAS,
    SURFACE_STEPS,
    SURFACES,
    VARIANTS,
    combinations,
    factor_label,
    surface_label,
)
from reproduction.published_values import TABLE1
from reproduction.tuning_settings import ABLATIONS, RWALKS_BLOCKS
from rwalk.report.seed_summaries import Summary
from rwalk.report.welch_test import Mean

NO_CELLS = ("surface-mnist",)  # its table would be long
Values = NDArray[np.float64]
Factors = tuple[str, ...]
Outcome = Callable[[Factors], Values]  # which factors are on → one value per seed


def signed(mean: Mean, digits: int = 1) -> str:
    """A difference with half its 95 % confidence interval."""
    return f"{mean.value:+.{digits}f} ± {mean.reach:.{digits}f}"


# ── RWalk's distance, the precision of convolutions, ResNet-18 ────────────────────────────────────────────────

ABLATED = {"Δθ² instead of ½FΔθ²": ("rwalk", ABLATIONS[0]), "no denominator": ("rwalk", ABLATIONS[1])}
PRECISIONS = {each: (f"{each}, bfloat16", f"{each}, float32") for each in IN_BOTH_PRECISIONS}


def gaps(name: str, pairs: Mapping[str, tuple[str, str]], measured: Measured) -> dict[tuple[str, str], Mean]:
    """A of one minus A of the other of each pair of labels, in points, by (block, the pair's name)."""
    mean = partial(measured.mean, "A", name)
    return {
        (block, said): mean(block, one) - mean(block, other)
        for block, (said, (one, other)) in product(RWALKS_BLOCKS, pairs.items())
    }


def differences(name: str, what: str, pairs: Mapping[str, tuple[str, str]], measured: Measured) -> Iterator[str]:
    found = gaps(name, pairs, measured)
    rows = ([block, *(signed(found[block, said]) for said in pairs)] for block in RWALKS_BLOCKS)
    yield from table([what, *pairs], rows)


def multihead(measured: Measured) -> Iterator[str]:
    """What was tried beside RWalk as in table 1, and by how much it changed A on held-out data."""
    first, *others = (entry.label for entry, _ in measured.entries("multihead-cifar100"))
    base, *means = (measured.mean("A", "multihead-cifar100", "held out", each) for each in (first, *others))
    rows = ([label, f"{mean.value:.1f}", signed(mean - base)] for label, mean in zip(others, means, strict=True))
    yield from table(["RWalk", "A, held out", "change"], ([first, f"{base.value:.1f}", ""], *rows))


def spread_of_lambda(measured: Measured) -> Iterator[str]:
    """A at the best minus at the worst λ of table S2, under its budget and longer, from the authors' weights."""
    names = {"tableS2-mnist": "table S2", "tableS2-mnist-normal": "authors' weights, 1000 steps"}
    rows: dict[tuple[str, str], dict[str, list[float]]] = {}
    for name in names:
        for entry, _ in measured.entries(name):
            found = rows.setdefault((entry.run.method, entry.block), {}).setdefault(name, [])
            found.append(measured.mean("A", name, entry.block, entry.label).value)
    said = ([method, form, *(_spread(found[name]) for name in names)] for (method, form), found in rows.items())
    yield from table(["method", "form", *(f"A, worst to best λ: {each}" for each in names.values())], said)


def _spread(values: list[float]) -> str:
    return f"{min(values):.1f} to {max(values):.1f} ({max(values) - min(values):.1f})"


# ── the authors' public code ──────────────────────────────────────────────────────────────────────────────────


def factorial(name: str, measured: Measured) -> Iterator[str]:
    """Main effects (each factor on minus off, averaged over the others), and the published values."""
    factors, shown = FACTORS_OF[name], outcomes(name, measured)
    published = TABLE1[block_of(name)]
    known = {"vanilla's F": published["vanilla"].F, **{f"A of {method}": of.A for method, of in published.items()}}

    def values(label: str, on: Factors) -> list[str]:
        return [label, *(_digits(float(of(on).mean()), what) for what, of in shown.items())]

    nearest = min(
        combinations(factors), key=lambda on: abs(shown["vanilla's F"](on).mean() - (published["vanilla"].F or 0))
    )
    effects = [
        [
            f"{each}: {FACTORS[each]}",
            *(signed(main_effect(of, factors, each), _decimals(what)) for what, of in shown.items()),
        ]
        for each in factors
    ]
    given = ["" if (value := known.get(what)) is None else _digits(value, what) for what in shown]
    ends = (
        values("all of them", factors),
        values(f"{factor_label(nearest)}: nearest to vanilla's published F", nearest),
        ["published", *given],
    )
    yield from table(["", *shown], [values("none of them", ()), *effects, *ends])


def outcomes(name: str, measured: Measured) -> dict[str, Outcome]:
    """The measures, each as a function of the factors that are on; by seeds that all combinations have."""
    cells = {
        (method, on): measured.cell(name, method, factor_label(on))
        for method, on in product(VARIANTS, combinations(FACTORS_OF[name]))
    }
    seeds = sorted(set.intersection(*(set(summary.seeds) for _, summary in cells.values())))

    def values(method: str, measure: str, on: Factors) -> Values:
        entry, summary = cells[method, on]
        by_seed = dict(zip(summary.seeds, _measure(summary, measure)[entry.head], strict=True))
        return np.array([by_seed[seed] for seed in seeds]) * (1 if measure == "F" else 100)

    def lost(method: str, on: Factors) -> Values:
        return values("vanilla", "learning", on) - values(method, "learning", on)

    return {
        "vanilla's F": partial(values, "vanilla", "F"),
        **{f"A of {m}": partial(values, m, "A") for m in VARIANTS},
        **{f"plasticity lost by {m}": partial(lost, m) for m in VARIANTS[1:]},
    }


def main_effect(of: Outcome, factors: Factors, factor: str, **fixed: bool) -> Mean:
    """On minus off, over all combinations in which others are `fixed`; one effect per seed."""
    tried = [each for each in combinations(factors) if all((f in each) == is_on for f, is_on in fixed.items())]
    on, off = ([of(each) for each in tried if (factor in each) == is_on] for is_on in (True, False))
    return Mean.over(np.mean(on, axis=0) - np.mean(off, axis=0))


def block_of(name: str) -> tuple[str, str]:
    """The dataset and the block of table 1 that it varies."""
    _, dataset, *samples = name.split("-")
    return dataset, "samples" if samples else "multi"


def _measure(summary: Summary, name: str) -> Mapping[str, Values]:
    """By head, one value per seed."""
    found: Mapping[str, Values] = summary.more[name] if name in summary.more else getattr(summary, name)
    return found


def _digits(value: float, what: str) -> str:
    return f"{value:.{_decimals(what)}f}"


def _decimals(what: str) -> int:
    return 3 if what.endswith(" F") else 1


# ── the surface steps × λ ─────────────────────────────────────────────────────────────────────────────────────

SIX_DECADES = 7  # λ's, from the first to the last


class Stretch(NamedTuple):
    """A length of training and six decades of λ, with A in percent at each."""

    steps: int
    lambdas: tuple[float, ...]
    accuracy: list[float]


@dataclass(frozen=True)
class Surface:
    """One panel: mean A in percent, [steps, λ]."""

    panel: str
    accuracy: NDArray[np.float64]

    @classmethod
    def of(cls, measured: Measured, panel: str) -> Surface:
        """NotRun unless all of its cells have rows."""
        cells = [
            [
                measured.mean("A", "surface-mnist", panel, surface_label(steps, lam)).value
                for lam in SURFACE_LAMBDAS
            ]
            for steps in SURFACE_STEPS
        ]
        return cls(panel, np.array(cells))

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
    def spread(self) -> NDArray[np.float64]:
        """By steps: A at the best λ minus A at the worst."""
        return np.asarray(np.ptp(self.accuracy, axis=1))

    @property
    def safest(self) -> Stretch:
        """The length and the six decades of λ whose worst λ is best."""
        width = min(SIX_DECADES, self.accuracy.shape[1])
        windows = [slice(begin, begin + width) for begin in range(self.accuracy.shape[1] - width + 1)]
        stretches = [
            Stretch(steps, SURFACE_LAMBDAS[window], accuracy[window].tolist())
            for steps, accuracy in zip(SURFACE_STEPS, self.accuracy, strict=True)
            for window in windows
        ]
        return max(stretches, key=lambda each: min(each.accuracy))


def decade(number: float) -> str:
    """
    >>> decade(0.1), decade(100.0), decade(1e5)
    ('0.1', '100', '10⁵')
    """
    exponent = round(math.log10(number))
    raised = str(exponent).translate(str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹"))
    return f"{number:g}" if exponent < 3 else f"10{raised}"


def surface(measured: Measured) -> Iterator[str]:
    rows = []
    for each in Surface.all_of(measured):
        steps, lam = np.unravel_index(each.accuracy.argmax(), each.accuracy.shape)
        best = (f"{each.accuracy.max():.1f}", f"{SURFACE_STEPS[steps]}, {decade(SURFACE_LAMBDAS[lam])}")
        safe = each.safest
        low, high = min(safe.accuracy), max(safe.accuracy)
        decades = f"{safe.steps}, {decade(safe.lambdas[0])} to {decade(safe.lambdas[-1])}"
        rows.append((each.panel, *best, f"{each.spread[steps]:.1f}", decades, f"{low:.1f} to {high:.1f}"))
    head = ("", "best A", "at steps, λ", "best minus worst λ there", "safest: steps, six decades of λ", "A there")
    yield from table(head, rows)


TABLES: dict[str, Callable[[Measured], Iterator[str]]] = {
    **{
        name: partial(differences, name, "A of RWalk minus A of RWalk with", ABLATED)
        for name in ("ablation-mnist", "ablation-cifar100")
    },
    "surface-mnist": surface,
    **{name: partial(factorial, name) for name in FACTORS_OF},
    "precision-cifar100": partial(
        differences, "precision-cifar100", "A in bfloat16 minus A in float32", PRECISIONS
    ),
    "tableS2-mnist-normal": spread_of_lambda,
    "multihead-cifar100": multihead,
}
