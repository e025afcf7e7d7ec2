"""The claims of the paper's text, each judged by our rows: confirmed, refuted, or undecided with these seeds.

A claim is a few margins that must be above zero. Where the paper gives no number (how near is "nearly"?), the
threshold is ours and is given with what we saw.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from rwalk.paper.budgets import METHODS, load
from rwalk.paper.experiments import LAMBDA_DECADES, SAMPLE_SIZES, SAMPLERS
from rwalk.paper.measured import Mean, Measured, NotRun
from rwalk.paper.published import TABLE_S2

DATASETS = {"mnist": "MNIST", "cifar100": "CIFAR-100"}
REGULARISED = tuple(method for method in METHODS if method != "vanilla")
CATCHES_UP = {"mnist": 20, "cifar100": 200}  # samples per class, by the paper's text

Verdict = tuple[str, str]  # "yes", "**no**" or "undecided"; what we saw
Judge = Callable[[Measured, str], Verdict]


@dataclass(frozen=True)
class Claim:
    text: str
    by: Judge
    datasets: tuple[str, ...] = tuple(DATASETS)

    def judge(self, measured: Measured, dataset: str) -> Verdict | None:
        """None, unless everything needed to judge it has been run."""
        try:
            return self.by(measured, dataset)
        except NotRun:
            return None


def verdict(margins: Iterable[Mean], seen: str) -> Verdict:
    """Yes, if every margin's whole confidence interval is above zero; no, if that of one is below it."""
    margins = list(margins)
    if any(margin.value < -margin.reach for margin in margins):
        return "**no**", seen
    held = margins and all(margin.value > margin.reach for margin in margins)
    return "yes" if held else "undecided", seen


def _largest(means: Iterable[Mean]) -> Mean:
    return max(means, key=lambda mean: mean.value)


def _spread(means: Sequence[Mean]) -> Mean:
    return _largest(means) - min(means, key=lambda mean: mean.value)


def _listed(means: Mapping[str, Mean], digits: int = 1) -> str:
    return ", ".join(f"{name} {mean.value:.{digits}f}" for name, mean in means.items())


def _best_of_block(block: str, measured: Measured, dataset: str, within: float = 0) -> Verdict:
    suffix = "-S" if block == "samples" else ""
    scores = {m: measured.mean("A", f"table1-{dataset}", block, m + suffix) for m in METHODS}
    others = [score for method, score in scores.items() if method != "rwalk"]
    seen = _listed(scores) + f" (within {within:g} points of the best?)" * (within > 0)
    return verdict([scores["rwalk"] - _largest(others) - Mean(-within)], seen)


def _hardly_anything_is_lost(measured: Measured, dataset: str) -> Verdict:
    lost = {
        f"{measure} of {method}": measured.mean(measure, f"table1-{dataset}", "multi", method)
        for method in REGULARISED
        for measure in ("F", "I")
    }
    return verdict([Mean(0.1) - each for each in lost.values()], f"{_listed(lost, 3)} (below 0.1?)")


def _single_head_is_worse(measured: Measured, dataset: str) -> Verdict:
    """Forgetting and intransigence of the methods that the paper has in both blocks."""
    grows: dict[str, Mean] = {}
    for m in ("vanilla", "ewc++", "pi"):
        for measure in ("F", "I"):
            multi, single = (measured.mean(measure, f"table1-{dataset}", head, m) for head in ("multi", "single"))
            grows[f"{measure} of {m}"] = single - multi
    seen = ", ".join(f"{name} {mean.value:+.2f}" for name, mean in grows.items())
    return verdict(grows.values(), seen)


def _multi_head_hides(measured: Measured, dataset: str) -> Verdict:
    """The same networks, evaluated with both heads."""
    read = {method: measured.cell(f"table1-{dataset}", "multi", method)[1].A for method in REGULARISED}
    gaps = {method: Mean.over(100 * (a["multi"] - a["single"])) for method, a in read.items()}
    return verdict([gap - Mean(20) for gap in gaps.values()], f"points lost: {_listed(gaps)} (more than 20?)")


def _samples_cure(measured: Measured, dataset: str) -> Verdict:
    without = {m: measured.mean("I", f"table1-{dataset}", "single", m) for m in REGULARISED}
    within = {m: measured.mean("I", f"table1-{dataset}", "samples", f"{m}-S") for m in REGULARISED}
    seen = ", ".join(f"{m} {without[m].value:.2f} → {within[m].value:.2f}" for m in REGULARISED)
    return verdict([without[m] - within[m] for m in REGULARISED], f"I: {seen} (each block at its own budget)")


def _plane(measured: Measured, dataset: str) -> dict[str, tuple[Mean, Mean, Mean]]:
    """Figure 3: F, I and the distance from (0, 0) of everything in single-head evaluation."""
    plane = {}
    for entry, _ in measured.entries(f"table1-{dataset}"):
        if entry.head == "single":
            _, rows = measured.cell(f"table1-{dataset}", entry.block, entry.label)
            f, i = rows.F["single"], rows.I["single"]
            plane[entry.label] = Mean.over(f), Mean.over(i), Mean.over(np.hypot(f, i))
    return plane


def _nearest_to_zero(measured: Measured, dataset: str) -> Verdict:
    plane = _plane(measured, dataset)
    far = {label: distance for label, (_, _, distance) in plane.items()}
    return verdict([far[label] - far["rwalk-S"] for label in far if label != "rwalk-S"], _listed(far, 2))


def _top_right_but_hybrid(measured: Measured, dataset: str) -> Verdict:
    plane = _plane(measured, dataset)
    margins = [each for label, (f, i, _) in plane.items() if label != "icarl-hb1" for each in (f, i)]
    margins.append(Mean(0) - plane["icarl-hb1"][1])
    return verdict(margins, "I: " + _listed({label: i for label, (_, i, _) in plane.items()}, 2))


def _samples_give_forward_transfer(measured: Measured, dataset: str) -> Verdict:
    refused = {m: measured.mean("I", f"table1-{dataset}", "samples", f"{m}-S") for m in REGULARISED}
    return verdict([Mean(0) - each for each in refused.values()], f"I: {_listed(refused, 3)} (below 0?)")


def _icarl_falls_behind(measured: Measured, dataset: str) -> Verdict:
    scores = {m: measured.mean("A", f"table1-{dataset}", "single", m) for m in ("ewc++", "pi", "icarl")}
    return verdict([scores["ewc++"] - scores["icarl"], scores["pi"] - scores["icarl"]], _listed(scores))


def _by_sampler(measured: Measured, dataset: str) -> dict[str, dict[str, Mean]]:
    """A for every method and sampler."""
    return {
        method: {each: measured.mean("A", f"figure5-{dataset}", each, f"{method}-S") for each in SAMPLERS}
        for method in METHODS
    }


def _mof_is_best(measured: Measured, dataset: str) -> Verdict:
    scores = _by_sampler(measured, dataset)
    leads = {
        method: by["mof"] - _largest(by[sampler] for sampler in SAMPLERS if sampler != "mof")
        for method, by in scores.items()
    }
    return verdict(leads.values(), f"points ahead of the next: {_listed(leads)}")


def _uniform_is_enough(measured: Measured, dataset: str) -> Verdict:
    scores = _by_sampler(measured, dataset)
    seen = ", ".join(f"{m} {by['mof'].value:.1f} and {by['uniform'].value:.1f}" for m, by in scores.items())
    margins = [Mean(3) - (by["mof"] - by["uniform"]) for by in scores.values()]
    return verdict(margins, f"MoF and uniform: {seen} (within 3 points?)")


def _only_vanilla_minds_the_sampler(measured: Measured, dataset: str) -> Verdict:
    scores = _by_sampler(measured, dataset)
    spreads = {method: _spread(list(by.values())) for method, by in scores.items()}
    margins = [spreads["vanilla"] - spreads[method] for method in REGULARISED]
    return verdict(margins, f"best minus worst sampler: {_listed(spreads)} points")


def _insensitive(measured: Measured, dataset: str) -> Verdict:
    spreads = {}
    for form in ("gradient", "proximal"):
        scores = [measured.mean("A", f"tableS2-{dataset}", form, f"rwalk λ={lam:g}") for lam in LAMBDA_DECADES]
        spreads[f"{form} form"] = _spread(scores)
    published = [each.A for each in TABLE_S2[dataset, "rwalk"].values()]
    paper = f"paper: {max(published) - min(published):.1f}"
    seen = f"spread of A over λ = 0.1 … 10⁴: {_listed(spreads)} points (within 2 in both? {paper})"
    return verdict([Mean(2) - spread for spread in spreads.values()], seen)


def _change(means: Sequence[Mean]) -> Mean:
    """The largest change from the first."""
    change = max((mean - means[0] for mean in means[1:]), key=lambda each: abs(each.value))
    return replace(change, value=abs(change.value))


def _less_sensitive_than(other: str, measured: Measured, dataset: str) -> Verdict:
    """As the paper measures it: how F and I change over the λ's of its table, relative to the first of them, each
    method in the form that its budget chose."""
    changes: dict[str, dict[str, Mean]] = {}
    for method in (other, "rwalk"):
        form = load()[f"{dataset}-samples"]["numbers"][method]["penalty"]
        for measure in ("F", "I"):
            labels = [f"{method} λ={lam:g}" for lam in TABLE_S2[dataset, method]]
            means = [measured.mean(measure, f"tableS2-{dataset}", form, label) for label in labels]
            changes.setdefault(measure, {})[method] = _change(means)
    margins = [by[other] - by["rwalk"] for by in changes.values()]
    return verdict(margins, "; ".join(f"change of {measure}: {_listed(by, 2)}" for measure, by in changes.items()))


def _by_size(measured: Measured, dataset: str, size: int) -> dict[str, Mean]:
    return {m: measured.mean("A", f"figure4-{dataset}", f"{size} per class", f"{m}-S") for m in METHODS}


def _vanilla_catches_up(at: Mapping[str, int], measured: Measured, dataset: str) -> Verdict:
    few, many = SAMPLE_SIZES[dataset][0], at[dataset]
    first, then = _by_size(measured, dataset, few), _by_size(measured, dataset, many)
    seen = "; ".join(
        f"{size} per class: {scores['vanilla'].value:.1f} against RWalk's {scores['rwalk'].value:.1f}"
        for size, scores in ((few, first), (many, then))
    )
    behind, ahead = first["rwalk"] - first["vanilla"], then["rwalk"] - then["vanilla"]
    return verdict([behind, Mean(1) - ahead], seen + " (within 1 point?)")


def _best_where_vanilla_is_poor(measured: Measured, dataset: str) -> Verdict:
    seen, margins = [], []
    for size in SAMPLE_SIZES[dataset]:
        scores = _by_size(measured, dataset, size)
        others = _largest([scores["ewc++"], scores["pi"]])
        if scores["vanilla"].value < min(scores["rwalk"].value, others.value):
            margins.append(scores["rwalk"] - others)
            seen.append(f"{margins[-1].value:+.1f} at {size}")
    return verdict(margins, "ahead of the better of EWC and PI: " + ", ".join(seen))


def _beats_gem(measured: Measured, dataset: str) -> Verdict:
    """All on the same images, with the mean subtracted; results on plain pixels (GEM's authors') are added."""
    blocks = {"icarl": 5120, "icarl, pixels": 5120, "gem": 5120, "gem, pixels": 5120, "rwalk": 5000}
    scores = {name: measured.mean("A", "tableS1", f"{total} samples", name) for name, total in blocks.items()}
    rwalk = scores["rwalk"]
    seen = ", ".join(f"{name} {mean.value:.1f}" for name, mean in scores.items() if "," not in name)
    pixels = ", ".join(f"{name} {scores[f'{name}, pixels'].value:.1f}" for name in ("icarl", "gem"))
    return verdict([rwalk - scores["gem"], rwalk - scores["icarl"]], f"{seen} (on plain pixels: {pixels})")


CLAIMS = (
    Claim("RWalk is best in single-head evaluation with samples", partial(_best_of_block, "samples")),
    Claim("RWalk is as good as any in multi-head", partial(_best_of_block, "multi", within=0.5), ("mnist",)),
    Claim("RWalk is best in multi-head evaluation", partial(_best_of_block, "multi"), ("cifar100",)),
    Claim("RWalk beats GEM and iCaRL with ResNet-18", _beats_gem, ("cifar100",)),
    Claim("multi-head evaluation hides the problem", _multi_head_hides),
    Claim("… because there regularised methods have little forgetting or intransigence", _hardly_anything_is_lost),
    Claim("in single-head evaluation forgetting and intransigence grow", _single_head_is_worse),
    Claim("samples cure intransigence", _samples_cure),
    Claim(
        "… and regularised methods then transfer forward (I < 0)", _samples_give_forward_transfer, ("cifar100",)
    ),
    Claim("RWalk with samples is nearest to F = I = 0: the best trade-off", _nearest_to_zero, ("mnist",)),
    Claim(
        "all but iCaRL-hb1 show both forgetting and intransigence (top right in figure 3)",
        _top_right_but_hybrid,
        ("mnist",),
    ),
    Claim("iCaRL falls behind EWC and PI with a small network", _icarl_falls_behind, ("cifar100",)),
    Claim("MoF is the best sampler", _mof_is_best),
    Claim("uniform sampling is nearly as good as MoF", _uniform_is_enough),
    Claim("the sampler matters less to regularised methods than to vanilla", _only_vanilla_minds_the_sampler),
    Claim("RWalk is insensitive to λ", _insensitive),
    Claim("RWalk is less sensitive to λ than EWC++", partial(_less_sensitive_than, "ewc++")),
    Claim("RWalk is less sensitive to λ than PI", partial(_less_sensitive_than, "pi")),
    Claim("where vanilla is poor, RWalk is best", _best_where_vanilla_is_poor),
    Claim(
        "vanilla catches up with enough samples",
        partial(_vanilla_catches_up, {dataset: sizes[-1] for dataset, sizes in SAMPLE_SIZES.items()}),
    ),
    Claim("… which is 20 per class (MNIST), 200 (CIFAR-100)", partial(_vanilla_catches_up, CATCHES_UP)),
)
