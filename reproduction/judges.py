"""What our rows say about the claims made of tables 1 and S1 and of figures 3 to 5."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from itertools import permutations

import numpy as np
from numpy.typing import NDArray

from reproduction.experiments import SAMPLE_SIZES, SAMPLERS
from reproduction.measured import Measured, NotRun
from reproduction.settings import METHODS
from reproduction.verdicts import Evidence
from reproduction.words import INSENSITIVE, NAMES, NEAR, REGULARISED, extreme, listed, named, ranged, spread
from rwalk.report.statistics import Mean


def _best(scores: Mapping[str, Mean], within: float = 0) -> Evidence:
    """RWalk against each of the others, not only against whichever came out best."""
    others = {name: mean for name, mean in scores.items() if name != "rwalk"}
    rival = extreme(others)
    lead = scores["rwalk"] - others[rival]
    said = f"RWalk is {abs(lead.value):.1f} points {'behind' if lead.value < 0 else 'ahead of'} {named(rival)}"
    seen = listed(scores) + f" (within {within:g} points of each?)" * (within > 0)
    return Evidence([scores["rwalk"] - each - Mean(-within) for each in others.values()], said, seen)


def best_of_block(block: str, measured: Measured, dataset: str, within: float = 0) -> Evidence:
    suffix = "-S" if block == "samples" else ""
    return _best({m: measured.mean("A", f"table1-{dataset}", block, m + suffix) for m in METHODS}, within)


def beats_gem(measured: Measured, dataset: str) -> Evidence:
    """Each under the budget that suits it; beside it, in words, all under GEM's."""
    blocks = {"icarl": 5120, "gem": 5120, "rwalk": 5000}
    own = _best({m: measured.mean("A", "tableS1", f"{n} samples", m) for m, n in blocks.items()})
    said = f"{own.said}, each trained as suits it"
    with suppress(NotRun):
        one = _best({m: measured.mean("A", "resnet", "one budget", m) for m in blocks})
        alone = measured.mean("A", "resnet", "own budget", "vanilla")
        said += f"; all trained like GEM, {one.said}; exemplars alone, without a penalty, reach {alone.value:.1f}"
    return replace(own, said=said)


def multi_head_hides(measured: Measured, dataset: str) -> Evidence:
    """The same networks, evaluated with both heads."""
    read = {method: measured.cell(f"table1-{dataset}", "multi", method)[1].A for method in REGULARISED}
    gaps = {method: Mean.over(100 * (a["multi"] - a["single"])) for method, a in read.items()}
    said = f"the same networks lose {ranged(gaps.values(), 0)} points when they have to tell the tasks apart"
    return Evidence([gap - Mean(20) for gap in gaps.values()], said, f"points: {listed(gaps)} (more than 20?)")


def hardly_anything_is_lost(measured: Measured, dataset: str) -> Evidence:
    lost = {
        f"{measure} of {NAMES[method]}": measured.mean(measure, f"table1-{dataset}", "multi", method)
        for method in REGULARISED
        for measure in ("F", "I")
    }
    worst = extreme(lost)
    said = f"the largest is {lost[worst].value:.3f} ({worst})"
    return Evidence([Mean(0.1) - each for each in lost.values()], said, f"{listed(lost, 3)} (below 0.1?)")


def single_head_is_worse(measured: Measured, dataset: str) -> Evidence:
    """Forgetting and intransigence of the methods that the paper has in both blocks."""
    grows: dict[str, Mean] = {}
    for m in ("vanilla", "ewc++", "pi"):
        for measure in ("F", "I"):
            multi, single = (measured.mean(measure, f"table1-{dataset}", head, m) for head in ("multi", "single"))
            grows[f"{measure} of {named(m)}"] = single - multi
    least = extreme(grows, largest=False)
    seen = ", ".join(f"{name} {mean.value:+.2f}" for name, mean in grows.items())
    return Evidence(list(grows.values()), f"the smallest change is {grows[least].value:+.2f} ({least})", seen)


def single_head_loses_accuracy(measured: Measured, dataset: str) -> Evidence:
    falls = {}
    for m in ("vanilla", "ewc++", "pi"):
        multi, single = (measured.mean("A", f"table1-{dataset}", head, m) for head in ("multi", "single"))
        falls[m] = multi - single
    return Evidence(list(falls.values()), f"A falls by {ranged(falls.values(), 0)} points", listed(falls))


def samples_mitigate(measured: Measured, dataset: str) -> Evidence:
    """Against one reference, that of the block without samples: as the other's is trained for another time, their
    I's are not comparable. The reference then cancels, and what is tested is how well the last task is learned."""

    def learned(block: str, label: str) -> NDArray[np.float64]:
        accuracy: NDArray[np.float64] = measured.cell(f"table1-{dataset}", block, label)[1].accuracy["single"]
        return accuracy[:, -1, -1]

    without = {m: learned("single", m) for m in REGULARISED}
    within = {m: learned("samples", f"{m}-S") for m in REGULARISED}
    best = {m: measured.cell(f"table1-{dataset}", "single", m)[1].I["single"] + without[m] for m in REGULARISED}
    seen = ", ".join(
        f"{NAMES[m]} {np.mean(best[m] - without[m]):.2f} → {np.mean(best[m]) - np.mean(within[m]):.2f}"
        for m in REGULARISED
    )
    before, after = (ranged([Mean.over(100 * a) for a in each.values()], 0) for each in (without, within))
    said = f"the last task is learned to {after} % instead of {before} %"
    margins = [Mean.over(within[m]) - Mean.over(without[m]) for m in REGULARISED]
    return Evidence(margins, said, f"I against one reference: {seen}")


def samples_give_forward_transfer(measured: Measured, dataset: str) -> Evidence:
    refused = {m: measured.mean("I", f"table1-{dataset}", "samples", f"{m}-S") for m in REGULARISED}
    said = f"I is {ranged(refused.values(), 2)}"
    with suppress(NotRun):
        sweep = [measured.mean("I", f"figure5-{dataset}", "mof", f"{m}-S") for m in REGULARISED]
        said += f"; under the budget of figure 5 {ranged(sweep, 2)}"
    return Evidence([Mean(0) - each for each in refused.values()], said, f"I: {listed(refused, 3)} (below 0?)")


def _plane(measured: Measured, dataset: str) -> dict[str, tuple[Mean, Mean, Mean]]:
    """Figure 3: F, I and the distance from (0, 0) of everything in single-head evaluation."""
    plane = {}
    for entry, _ in measured.entries(f"table1-{dataset}"):
        if entry.head == "single":
            _, rows = measured.cell(f"table1-{dataset}", entry.block, entry.label)
            f, i = rows.F["single"], rows.I["single"]
            plane[entry.label] = Mean.over(f), Mean.over(i), Mean.over(np.hypot(f, i))
    if not plane:
        raise NotRun(f"table1-{dataset}")
    return plane


def nearest_to_zero(measured: Measured, dataset: str) -> Evidence:
    far = {label: distance for label, (_, _, distance) in _plane(measured, dataset).items()}
    others = {label: each for label, each in far.items() if label != "rwalk-S"}
    rival = extreme(others, largest=False)
    said = f"RWalk-S is at a distance of {far['rwalk-S'].value:.2f}, {named(rival)} of {far[rival].value:.2f}"
    return Evidence([each - far["rwalk-S"] for each in others.values()], said, listed(far, 2))


def top_right_but_hybrid(measured: Measured, dataset: str) -> Evidence:
    plane = _plane(measured, dataset)
    margins = [each for label, (f, i, _) in plane.items() if label != "icarl-hb1" for each in (f, i)]
    margins.append(Mean(0) - plane["icarl-hb1"][1])
    refused = {label: i for label, (_, i, _) in plane.items()}
    least = extreme(refused, largest=False)
    hybrid, smallest = refused["icarl-hb1"].value, refused[least].value
    said = f"I of iCaRL-hb1 is {hybrid:.2f}, the smallest is {named(least)}'s {smallest:.2f}"
    return Evidence(margins, said, "I: " + listed(refused, 2))


def both_top_quadrants(measured: Measured, dataset: str) -> Evidence:
    """Everything forgets, some refuse to learn (I > 0) and some transfer forward (I < 0)."""
    plane = _plane(measured, dataset)
    refused = {label: i for label, (_, i, _) in plane.items()}
    left, right = extreme(refused, largest=False), extreme(refused)
    margins = [f for f, _, _ in plane.values()] + [refused[right], Mean(0) - refused[left]]
    said = f"I from {refused[left].value:.2f} ({named(left)}) to {refused[right].value:.2f} ({named(right)})"
    seen = ", ".join(f"{named(label)} {f.value:.2f}, {i.value:.2f}" for label, (f, i, _) in plane.items())
    return Evidence(margins, said, f"F, I: {seen}")


def _by_sampler(measured: Measured, dataset: str) -> dict[str, dict[str, Mean]]:
    """A for every method and sampler."""
    return {
        method: {each: measured.mean("A", f"figure5-{dataset}", each, f"{method}-S") for each in SAMPLERS}
        for method in METHODS
    }


def mof_is_best(measured: Measured, dataset: str) -> Evidence:
    margins, leads = [], {}
    for method, by in _by_sampler(measured, dataset).items():
        others = {sampler: mean for sampler, mean in by.items() if sampler != "mof"}
        margins += [by["mof"] - each for each in others.values()]
        leads[method] = by["mof"] - others[extreme(others)]
    said = f"MoF leads the next sampler by {ranged(leads.values())} points"
    return Evidence(margins, said, f"points ahead of the next: {listed(leads)}")


def uniform_is_as_good(measured: Measured, dataset: str) -> Evidence:
    scores = _by_sampler(measured, dataset)
    gaps = {method: by["mof"] - by["uniform"] for method, by in scores.items()}
    seen = ", ".join(f"{named(m)} {by['mof'].value:.1f} and {by['uniform'].value:.1f}" for m, by in scores.items())
    said = f"uniform is {ranged(gaps.values())} points behind"
    return Evidence(
        [Mean(NEAR) - each for each in gaps.values()], said, f"MoF and uniform: {seen} (within {NEAR} points?)"
    )


def samplers_are_alike(measured: Measured, dataset: str) -> Evidence:
    """Any two samplers, for each of the methods."""
    scores = _by_sampler(measured, dataset)
    spreads = {method: spread(scores[method].values()) for method in REGULARISED}
    margins = [
        Mean(INSENSITIVE) - (one - other)
        for method in REGULARISED
        for one, other in permutations(scores[method].values(), 2)
    ]
    said = f"best minus worst sampler: {ranged(spreads.values())} points"
    return Evidence(margins, said, f"{listed(spreads)} points (any two within {INSENSITIVE:g}?)")


def only_vanilla_minds_samplers(measured: Measured, dataset: str) -> Evidence:
    spreads = {method: spread(by.values()) for method, by in _by_sampler(measured, dataset).items()}
    said = f"vanilla's best minus worst sampler: {spreads['vanilla'].value:.1f} points"
    margins = [spreads["vanilla"] - spreads[method] for method in REGULARISED]
    return Evidence(margins, said, f"{listed(spreads)} points")


def _by_size(measured: Measured, dataset: str, size: int) -> dict[str, Mean]:
    return {m: measured.mean("A", f"figure4-{dataset}", f"{size} per class", f"{m}-S") for m in METHODS}


def best_where_vanilla_is_poor(measured: Measured, dataset: str) -> Evidence:
    margins, leads = [], {}
    for size in SAMPLE_SIZES[dataset]:
        scores = _by_size(measured, dataset, size)
        others = {name: scores[name] for name in ("ewc++", "pi")}
        rival = others[extreme(others)]
        if scores["vanilla"].value < min(scores["rwalk"].value, rival.value):
            margins += [scores["rwalk"] - each for each in others.values()]
            leads[size] = scores["rwalk"] - rival
    said = f"RWalk's lead over the better of EWC++ and PI is {ranged(leads.values())} points"
    return Evidence(margins, said, ", ".join(f"{lead.value:+.1f} at {size}" for size, lead in leads.items()))


def vanilla_catches_up(at: Mapping[str, int], measured: Measured, dataset: str) -> Evidence:
    few, many = SAMPLE_SIZES[dataset][0], at[dataset]
    first, then = _by_size(measured, dataset, few), _by_size(measured, dataset, many)
    seen = "; ".join(
        f"{size} per class: {scores['vanilla'].value:.1f} against RWalk's {scores['rwalk'].value:.1f}"
        for size, scores in ((few, first), (many, then))
    )
    behind, ahead = first["rwalk"] - first["vanilla"], then["rwalk"] - then["vanilla"]
    how = f"{abs(ahead.value):.1f} {'behind' if ahead.value > 0 else 'ahead'} with {many}"
    said = f"vanilla is {behind.value:.1f} points behind RWalk with {few} per class, {how}"
    return Evidence([behind, Mean(1) - ahead], said, seen + " (within 1 point?)")
