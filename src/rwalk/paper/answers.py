"""What our rows answer to our own questions, in words and small tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import product

import numpy as np
from numpy.typing import NDArray

from rwalk.paper.experiments import Experiment
from rwalk.paper.markdown import row
from rwalk.paper.measured import Measured, NotRun
from rwalk.paper.questions import (
    FACTORS,
    FACTORS_OF,
    IN_BOTH_PRECISIONS,
    QUESTIONS,
    VARIANTS,
    combinations,
    factor_label,
)
from rwalk.paper.settings import ABLATIONS, RWALKS_BLOCKS
from rwalk.paper.surface import Surface
from rwalk.paper.surface import lines_of as lines_of_surfaces
from rwalk.paper.verdicts import UNDECIDED, seeds_to_decide, verdict
from rwalk.paper.words import listed
from rwalk.report.statistics import Mean
from rwalk.report.summary import Summary

DRAWN = ("surface-mnist",)  # as a figure: its table would be long
JUDGED = ("ewc-", "tasks-", "fisher-")  # answered by a claim's verdict

Values = NDArray[np.float64]


def lines_of(measured: Measured) -> Iterator[str]:
    """Each question with its answer, or with the command that would give it."""
    for name, experiment in QUESTIONS.items():
        if name.startswith(JUDGED):
            continue
        try:
            answer = list(ANSWERS[name](measured))
        except NotRun:
            answer = [f"Not run yet: {command_for(experiment)} ({experiment.cost})."]
        yield f"**{experiment.title}.** {answer[0]}"
        yield from answer[1:]
        yield ""
    others = ", ".join(f"`{name}`" for name in QUESTIONS if name.startswith(JUDGED))
    yield f"Experiments behind claims above that the paper's own tables do not decide: {others}."


def command_for(experiment: Experiment) -> str:
    """What to run, after what has to be tuned first."""
    if not experiment.awaits:
        return f"`rwalk reproduce {experiment.name}`"
    tuning = f"`rwalk reproduce --tune {','.join(experiment.awaits)}`"
    return f"{tuning}, then `rwalk reproduce {experiment.name} --budgets results/tuning/budgets.json`"


def _signed(mean: Mean, digits: int = 1) -> str:
    """A difference with half its 95 % confidence interval."""
    return f"{mean.value:+.{digits}f} ± {mean.reach:.{digits}f}"


def ablation(dataset: str, measured: Measured) -> Iterator[str]:
    """RWalk against each of its ablations, block by block."""
    name = f"ablation-{dataset}"
    gaps = {
        (block, other): measured.mean("A", name, block, "rwalk") - measured.mean("A", name, block, other)
        for block in RWALKS_BLOCKS
        for other in ABLATIONS
    }
    held = verdict(list(gaps.values()))
    seeds = seeds_to_decide(list(gaps.values())) if held == UNDECIDED else 0
    more = f" ({'about ' + format(seeds, '.0f') if np.isfinite(seeds) else 'over 1000'} seeds)" if seeds else ""
    most = max(gap.value + gap.reach for gap in gaps.values())
    worth = f" Whatever it is worth, it is less than {most:.1f} points (95 % confidence)." if more else ""
    judged = f"RWalk is better than both in every block: {held}{more}."
    yield f"{judged}{worth} A of RWalk minus A of the other, in points:"
    yield ""
    yield from row("", "with Δθ² in place of ½FΔθ²", "with no denominator")
    for block in RWALKS_BLOCKS:
        yield from row(block, *(_signed(gaps[block, other]) for other in ABLATIONS), head=False)


def precision(measured: Measured) -> Iterator[str]:
    gaps = {
        (block, method): measured.mean("A", "precision-cifar100", block, f"{method}, bfloat16")
        - measured.mean("A", "precision-cifar100", block, f"{method}, float32")
        for block, method in product(RWALKS_BLOCKS, IN_BOTH_PRECISIONS)
    }
    worst = min(gaps.values(), key=lambda mean: mean.value)
    yield f"A in bfloat16 minus A in float32 is {_signed(worst)} points at worst:"
    yield ""
    yield from row("", *IN_BOTH_PRECISIONS)
    for block in RWALKS_BLOCKS:
        yield from row(block, *(_signed(gaps[block, method]) for method in IN_BOTH_PRECISIONS), head=False)


def resnets(measured: Measured) -> Iterator[str]:
    own, one = (partial(measured.mean, "A", "resnet", f"{budget} budget") for budget in ("own", "one"))
    masked, alone, full = own("rwalk"), own("vanilla"), own("rwalk, full width")
    shared = {method: one(method) for method in ("gem", "icarl", "rwalk")}
    yield (
        f"With exemplars under their own task's head RWalk has {masked.value:.1f}; its exemplars alone, without a "
        f"penalty, {alone.value:.1f} (a difference of {_signed(masked - alone)}). At full width RWalk has "
        f"{full.value:.1f}. All under one budget, GEM's of one epoch: {listed(shared)}."
    )


def surface(measured: Measured) -> Iterator[str]:
    yield from lines_of_surfaces(Surface.all_of(measured))


# ── what the authors' code changes ────────────────────────────────────────────────────────────────────────────


def authors(name: str, measured: Measured) -> Iterator[str]:
    """Main effects: each factor on minus off, averaged over combinations of the others."""
    factors = FACTORS_OF[name]
    cells = {
        (method, on): measured.cell(name, method, factor_label(on))
        for method, on in product(VARIANTS, combinations(factors))
    }
    # Those that every cell has: a run that table 1 has too may have more there.
    seeds = sorted(set.intersection(*(set(summary.seeds) for _, summary in cells.values())))

    def values(method: str, measure: str, on: tuple[str, ...]) -> Values:
        entry, summary = cells[method, on]
        by_seed = dict(zip(summary.seeds, _measure(summary, measure)[entry.head], strict=True))
        return np.array([by_seed[seed] for seed in seeds]) * (1 if measure == "F" else 100)

    def lost(method: str, on: tuple[str, ...]) -> Values:
        return values("vanilla", "learning", on) - values(method, "learning", on)

    shown: dict[str, Callable[[tuple[str, ...]], Values]] = {
        "vanilla's F": partial(values, "vanilla", "F"),
        **{f"A of {m}": partial(values, m, "A") for m in VARIANTS},
        **{f"plasticity lost by {m}": partial(lost, m) for m in VARIANTS[1:]},
    }
    effects = {what: {f: _main_effect(of, factors, f) for f in factors} for what, of in shown.items()}
    half = " (the half of them with an even number of changes)" if len(factors) > 3 else ""
    count = f"{len(seeds)} seed{'s' * (len(seeds) != 1)}"
    told = " ".join(
        _moved(what, effects[what]) for what in ("vanilla's F", "A of rwalk", "plasticity lost by rwalk")
    )
    how = f"Mean effects over {count}, on minus off, over all combinations{half}; ± is half a 95 % interval:"
    yield f"{told} {how}"
    yield ""
    yield from row("", *shown)
    start = [_value(Mean.over(of(())), what) for what, of in shown.items()]
    yield from row("as the paper says", *start, head=False)
    for factor in factors:
        cells_of = [_effect(by[factor], what) for what, by in effects.items()]
        yield from row(f"{factor}: {FACTORS[factor]}", *cells_of, head=False)
    together = [_value(Mean.over(of(factors)), what) for what, of in shown.items()]
    yield from row("all of them", *together, head=False)
    yield ""
    yield "Plasticity lost: how many points worse than by vanilla each task is learned when it is new."


def _moved(what: str, effects: Mapping[str, Mean]) -> str:
    """Which factors raise it and which lower it, by a 95 % interval without zero."""
    rising = [factor for factor, mean in effects.items() if mean.value - mean.reach > 0]
    falling = [factor for factor, mean in effects.items() if mean.value + mean.reach < 0]
    moves = [f"{verb} with {', '.join(by)}" for verb, by in (("rises", rising), ("falls", falling)) if by]
    return f"{what[0].upper()}{what[1:]} {' and '.join(moves) or 'is moved by none'}."


def _main_effect(of: Callable[[tuple[str, ...]], Values], factors: tuple[str, ...], factor: str) -> Mean:
    tried = combinations(factors)
    on, off = ([of(each) for each in tried if (factor in each) == is_on] for is_on in (True, False))
    return Mean.over(np.mean(on, axis=0) - np.mean(off, axis=0))  # the same seeds everywhere: one effect per seed


def _measure(summary: Summary, name: str) -> Mapping[str, Values]:
    """By head, one value per seed."""
    found: Mapping[str, Values] = summary.more[name] if name in summary.more else getattr(summary, name)
    return found


def _digits(what: str) -> int:
    return 3 if what.endswith(" F") else 1


def _value(mean: Mean, what: str) -> str:
    return f"{mean.value:.{_digits(what)}f}"


def _effect(mean: Mean, what: str) -> str:
    return _signed(mean, _digits(what))


ANSWERS: dict[str, Callable[[Measured], Iterator[str]]] = {
    "ablation-mnist": partial(ablation, "mnist"),
    "ablation-cifar100": partial(ablation, "cifar100"),
    "surface-mnist": surface,
    **{name: partial(authors, name) for name in FACTORS_OF},
    "resnet": resnets,
    "precision-cifar100": precision,
}
