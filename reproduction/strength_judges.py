"""What our rows say about the claims made of λ, of the Fisher, and of EWC beside EWC++."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import permutations

import numpy as np

from reproduction.budgets import load
from reproduction.experiments import LAMBDA_DECADES
from reproduction.measured import Measured, NotRun
from reproduction.published import TABLE_S2
from reproduction.questions import FISHER_LAMBDAS, FISHER_STEPS, TASKS, decades_of
from reproduction.settings import SWEEPS
from reproduction.verdicts import Evidence
from reproduction.words import INSENSITIVE, NAMES, NEAR, REGULARISED, listed, ranged, spread
from rwalk.report.statistics import Mean


def negative_correlation(measured: Measured, dataset: str) -> Evidence:
    """Over the λ's of table S2, within every seed, so that seeds which are simply worse do not count."""
    cells: dict[str, list[tuple[str, str]]] = {}
    for entry, _ in measured.entries(f"tableS2-{dataset}"):
        cells.setdefault(entry.run.method, []).append((entry.block, entry.label))
    found = {}
    for method, of in cells.items():
        f, i = (np.stack([measured.values(m, f"tableS2-{dataset}", *cell) for cell in of]) for m in ("F", "I"))
        found[method] = Mean.over(np.array([np.corrcoef(x, y)[0, 1] for x, y in zip(f.T, i.T, strict=True)]))
    if not found:
        raise NotRun(f"tableS2-{dataset}")
    said = f"as λ grows, F and I are correlated by {ranged(found.values(), 2)}"
    return Evidence([Mean(-0.5) - each for each in found.values()], said, f"{listed(found, 2)} (below -0.5?)")


def ewcpp_is_as_good(measured: Measured, dataset: str) -> Evidence:
    leads = {}
    for block, suffix in (("multi", ""), ("samples", "-S")):
        ours = measured.mean("A", f"table1-{dataset}", block, f"ewc++{suffix}")
        leads[block] = ours - measured.mean("A", f"ewc-{dataset}", block, f"ewc{suffix}")
    said = f"EWC++ minus EWC: {ranged(leads.values())} points, where up to {NEAR} less counts as equal"
    seen = f"{listed(leads)} points (not worse by more than {NEAR}?)"
    return Evidence([each - Mean(-NEAR) for each in leads.values()], said, seen)


def fisher_vanishes(measured: Measured, dataset: str) -> Evidence:
    """By its consequence: the longer EWC trains to a minimum, the larger the λ that makes up for its Fisher."""
    best = {}
    for steps in FISHER_STEPS[dataset]:
        labels = [
            entry.label for entry, _ in measured.entries(f"fisher-{dataset}") if entry.block == f"{steps} steps"
        ]
        scores = np.stack([measured.values("A", f"fisher-{dataset}", f"{steps} steps", label) for label in labels])
        best[steps] = np.log10([float(label.partition("λ=")[2]) for label in labels])[scores.argmax(0)]
    first, *_, last = best
    smallest, largest = np.log10(min(FISHER_LAMBDAS)), np.log10(max(FISHER_LAMBDAS))
    is_open = (best[first] == smallest).any() or (best[last] == largest).any()  # the best may not have been tried
    more = " or more" * bool(is_open)
    grows = f"{np.mean(best[last] - best[first]):.1f} decades{more}"
    said = f"the best λ grows by {grows} from {first} to {last} steps"
    seen = ", ".join(f"{steps} steps: 1e{np.mean(each):.1f}" for steps, each in best.items())
    edge = f", where 1e{smallest:g} is the smallest tried" * bool((best[first] == smallest).any())
    seen = f"each seed's best λ, on average: {seen}{edge}"
    return Evidence([Mean.over(best[last] - best[first])], said, seen)


def insensitive(measured: Measured, dataset: str) -> Evidence:
    """Any two λ's, in either form."""
    spreads, margins = {}, []
    for form in ("gradient", "proximal"):
        scores = [measured.mean("A", f"tableS2-{dataset}", form, f"rwalk λ={lam:g}") for lam in LAMBDA_DECADES]
        spreads[f"{form} form"] = spread(scores)
        margins += [Mean(INSENSITIVE) - (one - other) for one, other in permutations(scores, 2)]
    published = [each.A for each in TABLE_S2[dataset, "rwalk"].values()]
    paper = f"paper: {max(published) - min(published):.1f}"
    said = f"over λ = 0.1 … 10⁴ A varies by {ranged(spreads.values())} points"
    return Evidence(
        margins, said, f"{listed(spreads)} points (any two within {INSENSITIVE:g} in both forms? {paper})"
    )


def _change(means: Sequence[Mean]) -> Mean:
    """The largest change from the first."""
    change = max((mean - means[0] for mean in means[1:]), key=lambda each: abs(each.value))
    return replace(change, value=abs(change.value))


def less_sensitive_than(other: str, measured: Measured, dataset: str) -> Evidence:
    """As the paper measures it: how F and I change over the λ's of its table, relative to the first of them, each
    method in the form that its budget chose."""
    changes: dict[str, dict[str, Mean]] = {}
    forms = {}
    for method in (other, "rwalk"):
        forms[method] = form = load()[f"{dataset}-{SWEEPS[dataset]}"]["numbers"][method]["penalty"]
        for measure in ("F", "I"):
            labels = [f"{method} λ={lam:g}" for lam in TABLE_S2[dataset, method]]
            means = [measured.mean(measure, f"tableS2-{dataset}", form, label) for label in labels]
            changes.setdefault(measure, {})[method] = _change(means)
    said = "change of " + " and ".join(
        f"{measure}: {by['rwalk'].value:.2f} against {by[other].value:.2f}" for measure, by in changes.items()
    )
    in_forms = ", ".join(f"{NAMES[method]} in the {form} form" for method, form in forms.items())
    seen = "; ".join(f"change of {measure}: {listed(by, 2)}" for measure, by in changes.items()) + f" ({in_forms})"
    return Evidence([by[other] - by["rwalk"] for by in changes.values()], said, seen)


def one_lambda(measured: Measured, dataset: str) -> Evidence:
    """What is lost with most tasks by the λ that is best with fewest, instead of the best λ there."""
    lost, kept = {}, []
    for method in REGULARISED:
        lams = decades_of(dataset, method)
        labels = [f"{method} λ={lam:g}" for lam in lams]
        few, many = (
            np.stack([measured.values("A", f"tasks-{dataset}", f"{count} tasks", label) for label in labels])
            for count in (TASKS[dataset][0], TASKS[dataset][-1])
        )
        taken = int(few.mean(1).argmax())
        lost[method] = Mean.over(many[many.mean(1).argmax()] - many[taken])
        edge = ", the smallest tried" * (taken == 0) + ", the largest tried" * (taken == len(lams) - 1)
        kept.append(f"{NAMES[method]} {lams[taken]:g}{edge}")
    said = f"points lost by keeping λ: {listed(lost)}"
    seen = f"{listed(lost)}; best with {TASKS[dataset][0]} tasks: {'; '.join(kept)}"
    return Evidence([lost[other] - lost["rwalk"] for other in ("ewc++", "pi")], said, seen)
