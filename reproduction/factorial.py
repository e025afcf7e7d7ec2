"""What the authors' public code changes: the effect of each of its differences from the paper's text."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import permutations, product

import numpy as np
from numpy.typing import NDArray

from reproduction.budgets import load
from reproduction.markdown import row
from reproduction.measured import Measured
from reproduction.published import TABLE1, Published
from reproduction.questions import FACTORS, FACTORS_OF, VARIANTS, combinations, factor_label
from rwalk.report.statistics import Mean
from rwalk.report.summary import Summary

Values = NDArray[np.float64]
Factors = tuple[str, ...]
Outcome = Callable[[Factors], Values]  # which factors are on → one value per seed

TOLD = ("vanilla's F", "A of rwalk", "plasticity lost by rwalk")
LARGE = 5.0  # points of A by which what a factor does must depend on another to be worth a sentence
NONE = "None of them: torch's own initial weights, trained for as long as table 1's"
PLASTICITY = "Plasticity lost: how many points worse than by vanilla each task is learned when it is new."


def lines_of(name: str, measured: Measured) -> Iterator[str]:
    """Main effects: each factor on minus off, averaged over combinations of the others; and what is published."""
    factors = FACTORS_OF[name]
    shown, seeds = outcomes(name, measured)
    effects = {what: {each: main_effect(of, factors, each) for each in factors} for what, of in shown.items()}
    told = [moved(what, effects[what]) for what in TOLD] + dependence(shown["A of rwalk"], factors)
    half = "half of all combinations, so that one factor's is mixed with what three do together"
    over = half if len(factors) > 3 else "all combinations"
    yield (
        f"{' '.join(told)} Mean effects, on minus off, over {over}; λ is table 1's. ± is half a 95 % interval "
        f"over {seeds} seed{'s' * (seeds != 1)}:"
    )
    yield ""
    yield from row("", *shown)
    yield from row("none of them", *(_value(of(()), what) for what, of in shown.items()), head=False)
    for factor in factors:
        cells = [_signed(by[factor], what) for what, by in effects.items()]
        yield from row(f"{factor}: {FACTORS[factor]}", *cells, head=False)
    yield from row("all of them", *(_value(of(factors), what) for what, of in shown.items()), head=False)
    published = TABLE1[_block_of(name)]
    nearest = min(
        combinations(factors), key=lambda on: abs(shown["vanilla's F"](on).mean() - (published["vanilla"].F or 0))
    )
    label = f"{factor_label(nearest)}: nearest to vanilla's published F"
    yield from row(label, *(_value(of(nearest), what) for what, of in shown.items()), head=False)
    yield from row("published", *_published(published, shown), head=False)
    yield ""
    yield f"{NONE}{', which begin as with init' * _begins_otherwise(name)}. {PLASTICITY}"


def outcomes(name: str, measured: Measured) -> tuple[dict[str, Outcome], int]:
    """What is looked at, each as a function of the factors that are on; and the number of seeds."""
    cells = {
        (method, on): measured.cell(name, method, factor_label(on))
        for method, on in product(VARIANTS, combinations(FACTORS_OF[name]))
    }
    seeds = sorted(set.intersection(*(set(summary.seeds) for _, summary in cells.values())))  # that all have

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
    }, len(seeds)


def main_effect(of: Outcome, factors: Factors, factor: str, **fixed: bool) -> Mean:
    """On minus off, over all combinations in which others are `fixed`; one effect per seed."""
    tried = [each for each in combinations(factors) if all((f in each) == is_on for f, is_on in fixed.items())]
    on, off = ([of(each) for each in tried if (factor in each) == is_on] for is_on in (True, False))
    return Mean.over(np.mean(on, axis=0) - np.mean(off, axis=0))


def moved(what: str, effects: Mapping[str, Mean]) -> str:
    """Which factors raise it and which lower it, by a 95 % interval without zero."""
    rising = {factor: mean for factor, mean in effects.items() if mean.value - mean.reach > 0}
    falling = {factor: mean for factor, mean in effects.items() if mean.value + mean.reach < 0}
    moves = [
        f"{verb} with {', '.join(f'{factor} ({_digits(mean.value, what)})' for factor, mean in by.items())}"
        for verb, by in (("rises", rising), ("falls", falling))
        if by
    ]
    return f"{what[0].upper()}{what[1:]} {' and '.join(moves) or 'is moved by none'}."


def dependence(of: Outcome, factors: Factors) -> list[str]:
    """Where a factor does the opposite with another one: a mean over both says little then.

    Of several, the one of the strongest factors. Of half of all combinations two others may be the reason.
    """
    found = {}
    for factor, other in permutations(factors, 2):
        without, with_it = (main_effect(of, factors, factor, **{other: on}).value for on in (False, True))
        if without * with_it < 0 and min(abs(without), abs(with_it)) > LARGE:
            found[factor, other] = f"{without:+.1f} without, {with_it:+.1f} with it"
    if not found:
        return []
    alone = {each: abs(main_effect(of, factors, each).value) for each in factors}
    factor, other = max(found, key=lambda pair: sum(alone[each] for each in pair))
    others = [each for each in factors if each not in (factor, other)]
    unsure = f"; or {' and '.join(others)} depend on each other: half of all combinations cannot tell" * (
        len(factors) > 3
    )
    return [f"What {factor} does to A of rwalk depends on {other} ({found[factor, other]}{unsure})."]


def _block_of(name: str) -> tuple[str, str]:
    """The dataset and the block of table 1 that it varies."""
    _, dataset, *samples = name.split("-")
    return dataset, "samples" if samples else "multi"


def _begins_otherwise(name: str) -> bool:
    """Whether tuning chose the authors' initial weights for table 1."""
    return str(load()["-".join(_block_of(name))].get("network")).endswith("-normal")


def _published(table: Mapping[str, Published], shown: Iterable[str]) -> list[str]:
    known = {"vanilla's F": table["vanilla"].F, **{f"A of {method}": of.A for method, of in table.items()}}
    return ["" if (value := known.get(what)) is None else _digits(value, what, "") for what in shown]


def _measure(summary: Summary, name: str) -> Mapping[str, Values]:
    """By head, one value per seed."""
    found: Mapping[str, Values] = summary.more[name] if name in summary.more else getattr(summary, name)
    return found


def _digits(value: float, what: str, sign: str = "+") -> str:
    return f"{value:{sign}.{3 if what.endswith(' F') else 1}f}"


def _value(values: Values, what: str) -> str:
    return _digits(float(values.mean()), what, "")


def _signed(mean: Mean, what: str) -> str:
    return f"{_digits(mean.value, what)} ± {_digits(mean.reach, what, '')}"
