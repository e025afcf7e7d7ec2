"""What our rows answer to our own questions, in words and small tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import product

import numpy as np

from reproduction import budgets, factorial
from reproduction.experiments import Experiment
from reproduction.markdown import row
from reproduction.measured import Measured, NotRun
from reproduction.questions import FACTORS_OF, IN_BOTH_PRECISIONS, QUESTIONS
from reproduction.settings import ABLATIONS, RWALKS_BLOCKS
from reproduction.surface import Surface
from reproduction.surface import lines_of as lines_of_surfaces
from reproduction.verdicts import UNDECIDED, seeds_to_decide, verdict
from reproduction.words import NAMES, listed
from rwalk.report.statistics import Mean

DRAWN = ("surface-mnist",)  # as a figure: its table would be long
JUDGED = ("ewc-", "tasks-", "fisher-")  # answered by a claim's verdict


OTHERWISE = dict(zip(ABLATIONS, ("with Δθ² in place of ½FΔθ²", "with no denominator"), strict=True))


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
        return f"`python -m reproduction {experiment.name}`"
    tuning = f"`python -m reproduction --tune {','.join(experiment.awaits)}`"
    return f"{tuning}, then `python -m reproduction {experiment.name} --budgets results/tuning/budgets.json`"


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
    ahead = [said for other, said in OTHERWISE.items() if all(gaps[b, other].value < -0.05 for b in RWALKS_BLOCKS)]
    better = f" RWalk was more accurate {' and '.join(ahead)}, in every block." if ahead else ""
    yield f"{judged}{worth}{better}{_tuned_less(dataset)} A of RWalk minus A of the other, in points:"
    yield ""
    yield from row("", *OTHERWISE.values())
    for block in RWALKS_BLOCKS:
        yield from row(block, *(_signed(gaps[block, other]) for other in ABLATIONS), head=False)


def _tuned_less(dataset: str) -> str:
    """Said where the ablations' choices rest on fewer seeds than RWalk's own."""
    counts = [
        (
            budgets.seeds_behind(f"{dataset}-{block}-ablation", other),
            budgets.seeds_behind(f"{dataset}-{block}", "rwalk"),
        )
        for block, other in product(RWALKS_BLOCKS, ABLATIONS)
    ]
    fewest = min((theirs for theirs, ours in counts if theirs and ours and theirs < ours), default=None)
    if fewest is None:
        return ""
    return (
        f" The others' tuning was cut short (a choice by {fewest} seed{'s' * (fewest > 1)}, RWalk's by "
        f"{max(filter(None, (ours for _, ours in counts)))}), so they may do better than this."
    )


def precision(measured: Measured) -> Iterator[str]:
    gaps = {
        (block, method): measured.mean("A", "precision-cifar100", block, f"{method}, bfloat16")
        - measured.mean("A", "precision-cifar100", block, f"{method}, float32")
        for block, method in product(RWALKS_BLOCKS, IN_BOTH_PRECISIONS)
    }
    worst = min(gaps.values(), key=lambda mean: mean.value)
    most = max(gap.reach - gap.value for gap in gaps.values())
    seeds = f"{min(gap.seeds for gap in gaps.values()):.0f}"
    can_tell = any(gap.value + gap.reach < 0 for gap in gaps.values())
    said = "It does" if can_tell else f"Not that {seeds} seeds could tell"
    yield (
        f"{said}: A in bfloat16 minus A in float32 is {_signed(worst)} points at worst, and a loss of {most:.1f} "
        "is not excluded:"
    )
    yield ""
    yield from row("", *IN_BOTH_PRECISIONS)
    for block in RWALKS_BLOCKS:
        yield from row(block, *(_signed(gaps[block, method]) for method in IN_BOTH_PRECISIONS), head=False)


def resnets(measured: Measured) -> Iterator[str]:
    own, one = (partial(measured.mean, "A", "resnet", f"{budget} budget") for budget in ("own", "one"))
    masked, alone, full = own("rwalk"), own("vanilla"), own("rwalk, full width")
    shared = {NAMES.get(method, "exemplars alone"): one(method) for method in ("gem", "icarl", "rwalk", "vanilla")}
    yield (
        f"With exemplars under their own task's head RWalk has {masked.value:.1f}; its exemplars alone, without a "
        f"penalty, {alone.value:.1f} (a difference of {_signed(masked - alone)}). At full width RWalk has "
        f"{full.value:.1f}. All under one budget, GEM's of one epoch: {listed(shared)} (GEM in float32, as in "
        "table S1, the others in bfloat16)."
    )


def surface(measured: Measured) -> Iterator[str]:
    yield from lines_of_surfaces(Surface.all_of(measured))


ANSWERS: dict[str, Callable[[Measured], Iterator[str]]] = {
    "ablation-mnist": partial(ablation, "mnist"),
    "ablation-cifar100": partial(ablation, "cifar100"),
    "surface-mnist": surface,
    **{name: partial(factorial.lines_of, name) for name in FACTORS_OF},
    "resnet": resnets,
    "precision-cifar100": precision,
}
