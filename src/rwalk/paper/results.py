"""RESULTS.md: every cell beside the published value, and every claim of the paper's text with a verdict."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rwalk.paper import budgets, figures
from rwalk.paper.experiments import EXPERIMENTS, LAMBDA_DECADES, SAMPLE_SIZES, Entry, Experiment
from rwalk.paper.published import TABLE_S2, Published
from rwalk.paper.reproduce import known_rows
from rwalk.report.summary import Summary, mean_and_deviation, summarise
from rwalk.specs import RunSpec
from rwalk.store import write_atomically

DATASETS = {"mnist": "MNIST", "cifar100": "CIFAR-100"}


class Results:
    """All rows under a results folder, summed up over their seeds, to be asked by run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        summaries = summarise(list(known_rows(folder).values()))
        self.summaries = {RunSpec.from_json({**each.spec, "seed": 0}).hash(): each for each in summaries}

    def of(self, run: RunSpec) -> Summary | None:
        return self.summaries.get(replace(run, seed=0).hash())

    def entries(self, name: str) -> list[tuple[Entry, Summary | None]]:
        return [(entry, self.of(entry.run)) for entry in EXPERIMENTS[name].entries()]

    def accuracy(self, name: str, **wanted: object) -> Mean | None:
        """A_K in percent of the entry with these attributes, None where it was not run."""
        found = self._find(name, wanted)
        return None if found is None else Mean.over(100 * found[1].A[found[0].head])

    def intransigence(self, name: str, **wanted: object) -> Mean | None:
        found = self._find(name, wanted)
        return None if found is None else Mean.over(found[1].I[found[0].head])

    def _find(self, name: str, wanted: Mapping[str, object]) -> tuple[Entry, Summary] | None:
        for entry, summary in self.entries(name):
            if summary and all(getattr(entry, key) == value for key, value in wanted.items()):
                return entry, summary
        return None


@dataclass(frozen=True)
class Mean:
    """Over seeds, with its standard error. One seed alone has none (NaN), and decides nothing."""

    value: float
    error: float = 0.0

    @classmethod
    def over(cls, values: NDArray[np.float64]) -> Mean:
        value, deviation = mean_and_deviation(values)
        return cls(value, deviation / float(np.sqrt(np.isfinite(values).sum())))

    def __sub__(self, other: Mean) -> Mean:
        return Mean(self.value - other.value, float(np.hypot(self.error, other.error)))


def write_results(folder: Path) -> list[Path]:
    """RESULTS.md beside the results folder, and the figures in it."""
    results = Results(folder)
    drawn = figures.draw_all(results.entries, folder / "figures")
    page = folder.parent / "RESULTS.md"
    write_atomically(page, "\n".join(_page(results, [path.relative_to(folder.parent) for path in drawn])) + "\n")
    return [page, *drawn]


def _page(results: Results, drawn: list[Path]) -> Iterator[str]:
    yield "# The paper, reproduced"
    yield ""
    yield "Made by `rwalk reproduce`; do not edit. Ours is mean ± standard deviation over the seeds, A in percent."
    yield "Where a cell of ours is empty, it has not been run. Budgets were chosen without a look at test sets or"
    yield "published values."
    yield ""
    yield "## The claims of the paper's text"
    yield ""
    yield "Undecided: what the claim rests on is within two standard errors over our seeds."
    yield ""
    yield "| claim | dataset | held here? | what we saw |"
    yield "|---|---|---|---|"
    for claim in CLAIMS:
        for dataset, title in DATASETS.items():
            verdict = claim.judge(results, dataset)
            yield f"| {claim.text} | {title} | " + (
                "not run | |" if verdict is None else f"{verdict[0]} | {verdict[1]} |"
            )
    yield ""
    yield "## Budgets"
    yield ""
    yield (budgets.__doc__ or "").strip()
    yield ""
    yield "A number marked * is the smallest or the largest that was tried: a wider grid may do better."
    yield ""
    yield "| setting | how long | method | numbers | validation A, % |"
    yield "|---|---|---|---|---|"
    for setting, chosen in budgets.load().items():
        training = chosen["training"]
        longest = max(each.steps or 0 for each in budgets.SETTINGS[setting].trainings)
        edge = "*" * (training["steps"] == longest)
        long = f"{training['steps']}{edge} steps a task" if training["steps"] else f"{training['epochs']} epoch"
        for method, numbers in chosen["numbers"].items():
            tried = [each["lam"] for each in budgets.SETTINGS[setting].grid[method] if "lam" in each]
            if tried and numbers["lam"] in (min(tried), max(tried)):
                numbers = {**numbers, "lam": f"{numbers['lam']:g}*"}
            shown = ", ".join(f"{name} {value}" for name, value in sorted(numbers.items())) or "–"
            yield f"| {setting} | {long} | {method} | {shown} | {chosen['validation'][method]} |"
    for experiment in EXPERIMENTS.values():
        yield ""
        yield f"## {experiment.title}"
        yield ""
        yield from _table(experiment, results)
    yield ""
    yield "## Figures"
    yield ""
    for path in drawn:
        yield f"![{path.stem}]({path.as_posix()})"


def _table(experiment: Experiment, results: Results) -> Iterator[str]:
    rows = results.entries(experiment.name)
    if not any(summary for _, summary in rows):
        yield f"Not run yet: `rwalk reproduce {experiment.name}`."
        return
    yield "| | | seeds | A ours | A paper | Δ | F ours | F paper | I ours | I paper |"
    yield "|---|---|---|---|---|---|---|---|---|---|"
    for entry, summary in rows:
        published = entry.published or Published(float("nan"))
        if summary is None:
            yield f"| {entry.block} | {entry.label} | – | | {_plain(published.A, 1)} | | | | | |"
            continue
        mean, spread = (100 * value for value in mean_and_deviation(summary.A[entry.head]))
        forgotten, intransigent = (mean_and_deviation(each[entry.head])[0] for each in (summary.F, summary.I))
        around = "" if np.isnan(spread) else f" ± {spread:.1f}"  # one seed alone has no deviation
        yield (
            f"| {entry.block} | {entry.label} | {len(summary.A[entry.head])} | {mean:.1f}{around} "
            f"| {_plain(published.A, 1)} | {_signed(mean - published.A)} | {_plain(forgotten, 3)} "
            f"| {_plain(published.F, 3)} | {_plain(intransigent, 3)} | {_plain(published.I, 3)} |"
        )


def _plain(value: float | None, digits: int) -> str:
    return "" if value is None or np.isnan(value) else f"{value:.{digits}f}"


def _signed(value: float) -> str:
    return "" if np.isnan(value) else f"{value:+.1f}"


# ── the claims ────────────────────────────────────────────────────────────────────────────────────────────────

Verdict = tuple[str, str]  # yes or no, and the numbers


@dataclass(frozen=True)
class Claim:
    text: str
    judge: Callable[[Results, str], Verdict | None]


def _verdict(margins: Iterable[Mean], seen: str) -> Verdict:
    """A claim holds if all its margins are above zero, by more than two standard errors; so does its refusal."""
    margins = list(margins)
    if any(margin.value < -2 * margin.error for margin in margins):
        return "**no**", seen
    return "yes" if all(margin.value > 2 * margin.error for margin in margins) else "undecided", seen


def _best_with_samples(results: Results, dataset: str) -> Verdict | None:
    methods = ("vanilla", "ewc++", "pi", "rwalk")
    found = {m: results.accuracy(f"table1-{dataset}", block="samples", label=f"{m}-S") for m in methods}
    scores = {method: score for method, score in found.items() if score is not None}
    if len(scores) < len(methods):
        return None
    seen = ", ".join(f"{method} {score.value:.1f}" for method, score in scores.items())
    rwalk = scores.pop("rwalk")
    return _verdict([rwalk - max(scores.values(), key=lambda score: score.value)], seen)


def _multi_head_hides(results: Results, dataset: str) -> Verdict | None:
    """The same networks, read by both heads."""
    gaps = {
        entry.label: Mean.over(100 * (summary.A["multi"] - summary.A["single"]))
        for entry, summary in results.entries(f"table1-{dataset}")
        if entry.block == "multi" and entry.label != "vanilla" and summary
    }
    if len(gaps) < 3:
        return None
    seen = ", ".join(f"{method} loses {gap.value:.1f} points" for method, gap in gaps.items())
    return _verdict([gap - Mean(20) for gap in gaps.values()], seen + " (more than 20?)")


def _samples_cure(results: Results, dataset: str) -> Verdict | None:
    seen, gains = [], []
    for method in ("ewc++", "pi", "rwalk"):
        without = results.intransigence(f"table1-{dataset}", block="single", label=method)
        within = results.intransigence(f"table1-{dataset}", block="samples", label=f"{method}-S")
        if without is None or within is None:
            return None
        seen.append(f"{method} {without.value:.2f} → {within.value:.2f}")
        gains.append(without - within)
    return _verdict(gains, "I: " + ", ".join(seen))


def _uniform_is_enough(results: Results, dataset: str) -> Verdict | None:
    seen, margins = [], []
    for method in ("vanilla", "ewc++", "pi", "rwalk"):
        mof = results.accuracy(f"figure5-{dataset}", block="mof", label=f"{method}-S")
        uniform = results.accuracy(f"figure5-{dataset}", block="uniform", label=f"{method}-S")
        if mof is None or uniform is None:
            return None
        seen.append(f"{method} {mof.value:.1f} and {uniform.value:.1f}")
        margins.append(Mean(3) - (mof - uniform))
    return _verdict(margins, "MoF and uniform: " + ", ".join(seen) + " (within 3 points?)")


def _insensitive(results: Results, dataset: str) -> Verdict | None:
    spreads = {}
    for form in ("gradient", "proximal"):
        scores = [
            results.accuracy(f"tableS2-{dataset}", block=form, label=f"rwalk λ={lam:g}") for lam in LAMBDA_DECADES
        ]
        known = sorted((score for score in scores if score is not None), key=lambda score: score.value)
        if len(known) < len(scores):
            return None
        spreads[form] = known[-1] - known[0]
    seen = ", ".join(f"{form} form {spread.value:.1f} points" for form, spread in spreads.items())
    published = [each.A for each in TABLE_S2[dataset, "rwalk"].values()]
    paper = f"paper: {max(published) - min(published):.1f}"
    margin = Mean(2) - min(spreads.values(), key=lambda spread: spread.value)
    return _verdict([margin], f"spread of A over λ = 0.1 … 10⁴: {seen} (within 2? {paper})")


def _vanilla_catches_up(results: Results, dataset: str) -> Verdict | None:
    sizes = SAMPLE_SIZES[dataset]
    leads = []  # of RWalk over vanilla
    seen = []
    for size in (sizes[0], sizes[-1]):
        vanilla, rwalk = (
            results.accuracy(f"figure4-{dataset}", block=f"{size} a class", label=f"{method}-S")
            for method in ("vanilla", "rwalk")
        )
        if vanilla is None or rwalk is None:
            return None
        leads.append(rwalk - vanilla)
        seen.append(f"{size} a class: {vanilla.value:.1f} against RWalk's {rwalk.value:.1f}")
    behind, ahead = leads
    return _verdict([behind, Mean(1) - ahead], "; ".join(seen) + " (within 1 point at last?)")


CLAIMS = (
    Claim("RWalk is best in single-head evaluation with samples", _best_with_samples),
    Claim("multi-head evaluation hides the problem", _multi_head_hides),
    Claim("samples cure intransigence", _samples_cure),
    Claim("uniform sampling is nearly as good as MoF", _uniform_is_enough),
    Claim("RWalk is insensitive to λ", _insensitive),
    Claim("vanilla catches up with enough samples", _vanilla_catches_up),
)
