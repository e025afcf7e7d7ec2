"""The claims of the paper's text, each as differences from a limit; `verdicts` decides on which side they are.

Where the paper gives no number (how near is "nearly"?), the limit is ours, and stands beside the measured value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import permutations
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from reproduction.budgets import load
from reproduction.measured_cells import Measured, NotRun
from reproduction.own_questions import FISHER_STEPS, TASKS, decades_of
from reproduction.paper_experiments import LAMBDA_DECADES, OUTDATED, SAMPLE_SIZES, SAMPLERS
from reproduction.published_values import TABLE_S2
from reproduction.tuning_settings import METHODS, SWEEPS
from rwalk.report.welch_test import Mean

DATASETS = {"mnist": "MNIST", "cifar100": "CIFAR-100"}
CATCHES_UP = {"mnist": 20, "cifar100": 200}  # samples per class, by the paper's text
NAMES = {"ewc": "EWC", "ewc++": "EWC++", "pi": "PI", "rwalk": "RWalk", "icarl": "iCaRL", "gem": "GEM"}
NAMES |= {"icarl-hb1": "iCaRL-hb1"}
REGULARISED = tuple(method for method in METHODS if method != "vanilla")
IN_TABLE_1 = ("vanilla", "ewc++", "pi")  # methods that the paper has in both blocks without samples
NEAR = 0.5  # points: as good as
INSENSITIVE = 2.0  # points between any two settings of an unimportant choice
LISTED = 6  # if there are more differences, only the one nearest to its limit is shown


class Difference(NamedTuple):
    """Something measured that must be above a limit, or below it."""

    what: str
    seen: Mean
    limit: float = 0.0
    above: bool = True

    @property
    def margin(self) -> Mean:
        return self.seen - Mean(self.limit) if self.above else Mean(self.limit) - self.seen

    @property
    def asked(self) -> str:
        return f"{'above' if self.above else 'below'} {self.limit:g}?"


def named(label: str) -> str:
    """A method's name as people write it; -S stays, where there are samples."""
    method = label.removesuffix("-S")
    return NAMES.get(method, method) + label[len(method) :]


def above(measured: Mapping[str, Mean], limit: float = 0.0) -> list[Difference]:
    return [Difference(what, mean, limit) for what, mean in measured.items()]


def below(measured: Mapping[str, Mean], limit: float) -> list[Difference]:
    return [Difference(what, mean, limit, above=False) for what, mean in measured.items()]


def in_numbers(tests: Iterable[Difference]) -> str:
    """The measured numbers: all of them, or the difference nearest to failing if there are many."""
    groups: dict[str, list[Difference]] = {}
    for test in tests:
        groups.setdefault(test.asked, []).append(test)
    said = []
    for asked, each in groups.items():
        chosen = each if len(each) <= LISTED else [min(each, key=lambda test: test.margin.value)]
        numbers = ", ".join(f"{test.what} {_digits(test.seen.value)}" for test in chosen)
        most = f" (the worst of {len(each)})" if chosen != each else ""
        said.append(f"{numbers}{most}; {asked}")
    return " ".join(said)


def _digits(value: float) -> str:
    return f"{value:.1f}" if abs(value) >= 1 else f"{value:.3f}"


# ── tables 1 and S1 ───────────────────────────────────────────────────────────────────────────────────────────


def _leads(scores: Mapping[str, Mean], within: float = 0.0) -> list[Difference]:
    """RWalk minus each of the others, not only minus the best of them."""
    others = {f"RWalk − {named(name)}": scores["rwalk"] - each for name, each in scores.items() if name != "rwalk"}
    return above(others, 0.0 - within)


def best_of_block(block: str, measured: Measured, dataset: str, within: float = 0.0) -> list[Difference]:
    suffix = "-S" if block == "samples" else ""
    return _leads({m: measured.mean("A", f"table1-{dataset}", block, m + suffix) for m in METHODS}, within)


def beats_gem(measured: Measured, dataset: str) -> list[Difference]:
    """Each under the budget that suits it."""
    cells = {m: measured.mean("A", "tableS1", "5120 samples", OUTDATED.get(m, m)) for m in ("icarl", "gem")}
    return _leads({**cells, "rwalk": measured.mean("A", "tableS1", "5000 samples", "rwalk")})


def multi_head_hides(measured: Measured, dataset: str) -> list[Difference]:
    """The same networks, evaluated with both heads."""
    read = {named(m): measured.cell(f"table1-{dataset}", "multi", m)[1].A for m in REGULARISED}
    return above({m: Mean.over(100 * (a["multi"] - a["single"])) for m, a in read.items()}, 20)


def hardly_anything_is_lost(measured: Measured, dataset: str) -> list[Difference]:
    cells = [(measure, m) for m in REGULARISED for measure in ("F", "I")]
    lost = {f"{f} of {named(m)}": measured.mean(f, f"table1-{dataset}", "multi", m) for f, m in cells}
    return below(lost, 0.1)


def _single_minus_multi(measure: str, measured: Measured, dataset: str) -> dict[str, Mean]:
    def mean(head: str, method: str) -> Mean:
        return measured.mean(measure, f"table1-{dataset}", head, method)

    return {f"{measure} of {named(m)}": mean("single", m) - mean("multi", m) for m in IN_TABLE_1}


def single_head_is_worse(measured: Measured, dataset: str) -> list[Difference]:
    return above(_single_minus_multi("F", measured, dataset) | _single_minus_multi("I", measured, dataset))


def single_head_loses_accuracy(measured: Measured, dataset: str) -> list[Difference]:
    return below(_single_minus_multi("A", measured, dataset), 0)


def samples_mitigate(measured: Measured, dataset: str) -> list[Difference]:
    """Intransigence against one reference, which cancels: how much better the last task is learned, in points."""

    def learned(block: str, label: str) -> Mean:
        accuracy: NDArray[np.float64] = measured.cell(f"table1-{dataset}", block, label)[1].accuracy["single"]
        return Mean.over(100 * accuracy[:, -1, -1])

    return above({named(m): learned("samples", f"{m}-S") - learned("single", m) for m in REGULARISED})


def samples_give_forward_transfer(measured: Measured, dataset: str) -> list[Difference]:
    refused = {
        f"I of {named(m)}": measured.mean("I", f"table1-{dataset}", "samples", f"{m}-S") for m in REGULARISED
    }
    return below(refused, 0)


# ── figure 3 ──────────────────────────────────────────────────────────────────────────────────────────────────


def _plane(measured: Measured, dataset: str) -> dict[str, tuple[Mean, Mean, Mean]]:
    """F, I and the distance from (0, 0) of everything in single-head evaluation."""
    plane = {}
    for entry, _ in measured.entries(f"table1-{dataset}"):
        if entry.head == "single":
            _, rows = measured.cell(f"table1-{dataset}", entry.block, entry.label)
            f, i = rows.F["single"], rows.I["single"]
            plane[entry.label] = Mean.over(f), Mean.over(i), Mean.over(np.hypot(f, i))
    if not plane:
        raise NotRun(f"table1-{dataset}")
    return plane


def nearest_to_zero(measured: Measured, dataset: str) -> list[Difference]:
    far = {label: distance for label, (_, _, distance) in _plane(measured, dataset).items()}
    return above(
        {f"{named(label)} − RWalk-S": each - far["rwalk-S"] for label, each in far.items() if label != "rwalk-S"}
    )


def top_right_but_hybrid(measured: Measured, dataset: str) -> list[Difference]:
    plane = _plane(measured, dataset)
    others = {label: each for label, each in plane.items() if label != "icarl-hb1"}
    tests = above(
        {f"{x} of {named(label)}": each[n] for label, each in others.items() for n, x in enumerate("FI")}
    )
    return tests + below({"I of iCaRL-hb1": plane["icarl-hb1"][1]}, 0)


def both_top_quadrants(measured: Measured, dataset: str) -> list[Difference]:
    """Everything forgets, some refuse to learn (I > 0) and some transfer forward (I < 0)."""
    plane = _plane(measured, dataset)
    left, right = (extreme(plane, key=lambda label: plane[label][1].value) for extreme in (min, max))
    tests = above({f"F of {named(label)}": f for label, (f, _, _) in plane.items()})
    tests += above({f"I of {named(right)}": plane[right][1]})
    return tests + below({f"I of {named(left)}": plane[left][1]}, 0)


# ── figures 4 and 5 ───────────────────────────────────────────────────────────────────────────────────────────


def _by_sampler(measured: Measured, dataset: str) -> dict[str, dict[str, Mean]]:
    """A for every method and sampler."""
    return {
        method: {each: measured.mean("A", f"figure5-{dataset}", each, f"{method}-S") for each in SAMPLERS}
        for method in METHODS
    }


def _pairs(scores: Mapping[str, Mean], of: str) -> Iterator[tuple[str, Mean]]:
    for one, other in permutations(scores, 2):
        yield f"{of}: {one} − {other}", scores[one] - scores[other]


def mof_is_best(measured: Measured, dataset: str) -> list[Difference]:
    scores = _by_sampler(measured, dataset).items()
    others = [sampler for sampler in SAMPLERS if sampler != "mof"]
    return above({f"{named(m)}: MoF − {each}": by["mof"] - by[each] for m, by in scores for each in others})


def uniform_is_as_good(measured: Measured, dataset: str) -> list[Difference]:
    scores = _by_sampler(measured, dataset).items()
    return below({f"{named(m)}: MoF − uniform": by["mof"] - by["uniform"] for m, by in scores}, NEAR)


def samplers_are_alike(measured: Measured, dataset: str) -> list[Difference]:
    """Any two samplers, for each of the methods."""
    scores = _by_sampler(measured, dataset)
    return below(dict(pair for m in REGULARISED for pair in _pairs(scores[m], named(m))), INSENSITIVE)


def only_vanilla_minds_samplers(measured: Measured, dataset: str) -> list[Difference]:
    """Best minus worst sampler of vanilla, minus that of each method."""
    spreads = {method: spread(by.values()) for method, by in _by_sampler(measured, dataset).items()}
    return above({f"vanilla's − {named(m)}'s": spreads["vanilla"] - spreads[m] for m in REGULARISED})


def spread(means: Iterable[Mean]) -> Mean:
    ordered = sorted(means, key=lambda mean: mean.value)
    return ordered[-1] - ordered[0]


def _by_size(measured: Measured, dataset: str, size: int) -> dict[str, Mean]:
    return {m: measured.mean("A", f"figure4-{dataset}", f"{size} per class", f"{m}-S") for m in METHODS}


def best_where_vanilla_is_poor(measured: Measured, dataset: str) -> list[Difference]:
    leads: dict[str, Mean] = {}
    for size in SAMPLE_SIZES[dataset]:
        scores = _by_size(measured, dataset, size)
        best = max(scores[name].value for name in ("ewc++", "pi"))
        if scores["vanilla"].value < min(scores["rwalk"].value, best):
            leads |= {f"{size}: RWalk − {named(m)}": scores["rwalk"] - scores[m] for m in ("ewc++", "pi")}
    return above(leads)


def vanilla_catches_up(at: Mapping[str, int], measured: Measured, dataset: str) -> list[Difference]:
    few, many = SAMPLE_SIZES[dataset][0], at[dataset]
    behind = {size: (by := _by_size(measured, dataset, size))["rwalk"] - by["vanilla"] for size in (few, many)}
    first, then = (f"RWalk − vanilla with {size}" for size in (few, many))
    return above({first: behind[few]}) + below({then: behind[many]}, 1)


# ── λ, the Fisher, EWC ────────────────────────────────────────────────────────────────────────────────────────


def negative_correlation(measured: Measured, dataset: str) -> list[Difference]:
    """Over the λ's of table S2, within every seed, so that seeds which are simply worse do not count."""
    cells: dict[str, list[tuple[str, str]]] = {}
    for entry, _ in measured.entries(f"tableS2-{dataset}"):
        cells.setdefault(entry.run.method, []).append((entry.block, entry.label))
    found = {}
    for method, of in cells.items():
        f, i = (np.stack([measured.values(m, f"tableS2-{dataset}", *cell) for cell in of]) for m in ("F", "I"))
        within = np.array([np.corrcoef(x, y)[0, 1] for x, y in zip(f.T, i.T, strict=True)])
        found[named(method)] = Mean.over(within)
    if not found:
        raise NotRun(f"tableS2-{dataset}")
    return below(found, -0.5)


def ewcpp_is_as_good(measured: Measured, dataset: str) -> list[Difference]:
    leads = {}
    for block, suffix in (("multi", ""), ("samples", "-S")):
        ours = measured.mean("A", f"table1-{dataset}", block, f"ewc++{suffix}")
        leads[f"{block}: EWC++ − EWC"] = ours - measured.mean("A", f"ewc-{dataset}", block, f"ewc{suffix}")
    return above(leads, -NEAR)


def fisher_vanishes(measured: Measured, dataset: str) -> list[Difference]:
    """By its consequence: the longer EWC trains to a minimum, the larger the λ that makes up for its Fisher."""
    best = []
    for steps in FISHER_STEPS[dataset]:
        block = f"{steps} steps"
        labels = [entry.label for entry, _ in measured.entries(f"fisher-{dataset}") if entry.block == block]
        scores = np.stack([measured.values("A", f"fisher-{dataset}", block, label) for label in labels])
        best.append(np.log10([float(label.partition("λ=")[2]) for label in labels])[scores.argmax(0)])
    return above({"decades by which the best λ grows": Mean.over(best[-1] - best[0])})


def insensitive(measured: Measured, dataset: str) -> list[Difference]:
    """Any two λ's, in either form of the penalty."""
    pairs: dict[str, Mean] = {}
    for form in ("gradient", "proximal"):
        labels = {f"{lam:g}": f"rwalk λ={lam:g}" for lam in LAMBDA_DECADES}
        scores = {lam: measured.mean("A", f"tableS2-{dataset}", form, label) for lam, label in labels.items()}
        pairs |= dict(_pairs(scores, f"{form}, λ"))
    return below(pairs, INSENSITIVE)


def less_sensitive_than(other: str, measured: Measured, dataset: str) -> list[Difference]:
    """As the paper measures it: how F and I change over the λ's of its table, relative to the first of them, each
    method in the form that its budget chose."""

    def change(method: str, measure: str) -> Mean:
        form = load()[f"{dataset}-{SWEEPS[dataset]}"]["numbers"][method]["penalty"]
        labels = [f"{method} λ={lam:g}" for lam in TABLE_S2[dataset, method]]
        first, *others = (measured.mean(measure, f"tableS2-{dataset}", form, label) for label in labels)
        largest = max((mean - first for mean in others), key=lambda each: abs(each.value))
        return replace(largest, value=abs(largest.value))

    changes = {f: change(other, f) - change("rwalk", f) for f in ("F", "I")}
    return above({f"change of {f}, {named(other)} − RWalk": each for f, each in changes.items()})


def one_lambda(measured: Measured, dataset: str) -> list[Difference]:
    """The loss, with most tasks, by the λ that is best with fewest tasks instead of the best λ there."""
    lost = {}
    for method in REGULARISED:
        labels = [f"{method} λ={lam:g}" for lam in decades_of(dataset, method)]
        few, many = (
            np.stack([measured.values("A", f"tasks-{dataset}", f"{count} tasks", label) for label in labels])
            for count in (TASKS[dataset][0], TASKS[dataset][-1])
        )
        lost[method] = Mean.over(many[many.mean(1).argmax()] - many[int(few.mean(1).argmax())])
    return above({f"points lost: {named(m)} − RWalk": lost[m] - lost["rwalk"] for m in ("ewc++", "pi")})


# ── the claims ────────────────────────────────────────────────────────────────────────────────────────────────

Judge = Callable[[Measured, str], list[Difference]]


@dataclass(frozen=True)
class Claim:
    text: str
    by: Judge
    datasets: tuple[str, ...] = tuple(DATASETS)
    needs: str = ""  # an experiment beyond the paper's tables, less its dataset

    @property
    def is_about_rwalk(self) -> bool:
        """Whether it praises RWalk; the other claims are about the problem and other methods."""
        return "RWalk" in self.text

    def judge(self, measured: Measured, dataset: str) -> list[Difference] | None:
        """None, unless everything needed to judge it has been run."""
        try:
            return self.by(measured, dataset)
        except NotRun:
            return None


MNIST, CIFAR = ("mnist",), ("cifar100",)
LESS = less_sensitive_than
AS_GOOD = partial(best_of_block, "multi", within=NEAR)
LARGEST = {dataset: sizes[-1] for dataset, sizes in SAMPLE_SIZES.items()}
CLAIMS = (
    Claim("RWalk is best in single-head evaluation with samples", partial(best_of_block, "samples")),
    Claim("RWalk is as good as any in multi-head evaluation", AS_GOOD, MNIST),
    Claim("RWalk is best in multi-head evaluation", partial(best_of_block, "multi"), CIFAR),
    Claim("RWalk beats GEM and iCaRL with ResNet-18", beats_gem, CIFAR),
    Claim("EWC++ is at least as good as EWC", ewcpp_is_as_good, needs="ewc"),
    Claim("multi-head evaluation hides the problem", multi_head_hides),
    Claim("… because there regularised methods hardly forget or refuse to learn", hardly_anything_is_lost),
    Claim("in single-head evaluation forgetting and intransigence grow", single_head_is_worse, MNIST),
    Claim("… and accuracy falls, whatever the method", single_head_loses_accuracy),
    Claim("a few samples mitigate intransigence", samples_mitigate),
    Claim("… and regularised methods then transfer forward (I < 0)", samples_give_forward_transfer, CIFAR),
    Claim("forgetting and intransigence are negatively correlated", negative_correlation),
    Claim("RWalk with samples is nearest to F = I = 0: the best trade-off", nearest_to_zero, MNIST),
    Claim("all but iCaRL-hb1 are top right in figure 3 (F > 0, I > 0)", top_right_but_hybrid, MNIST),
    Claim("all are in the top quadrants of figure 3, on both sides of I = 0", both_top_quadrants, CIFAR),
    Claim("MoF is the best sampler", mof_is_best),
    Claim("uniform sampling is as good as MoF", uniform_is_as_good),
    Claim("regularised methods are insensitive to the sampler", samplers_are_alike),
    Claim("… less sensitive than vanilla", only_vanilla_minds_samplers),
    Claim("RWalk is insensitive to λ", insensitive),
    Claim("RWalk is less sensitive to λ than EWC++", partial(LESS, "ewc++")),
    Claim("RWalk is less sensitive to λ than PI", partial(LESS, "pi")),
    Claim("… and RWalk's λ depends less on the number of tasks", one_lambda, needs="tasks"),
    Claim(
        "the Fisher vanishes at a minimum: the longer EWC trains, the less it holds",
        fisher_vanishes,
        needs="fisher",
    ),
    Claim("where vanilla is poor, RWalk is best", best_where_vanilla_is_poor),
    Claim("vanilla catches up with enough samples", partial(vanilla_catches_up, LARGEST)),
    Claim("… which is 20 per class (MNIST), 200 (CIFAR-100)", partial(vanilla_catches_up, CATCHES_UP)),
)
