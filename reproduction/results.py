"""RESULTS.md: the verdicts first, then what they rest on: every cell beside the published value."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from reproduction import answers, budgets, chosen, figures
from reproduction.claims import CLAIMS, DATASETS, Claim
from reproduction.experiments import EXPERIMENTS, Entry, Experiment
from reproduction.markdown import row
from reproduction.measured import Measured
from reproduction.published import BETTER, Published
from reproduction.questions import QUESTIONS
from reproduction.verdicts import MOST_SEEDS, NO, UNDECIDED, YES, Evidence, seeds_to_decide, verdict
from reproduction.words import NEAR
from rwalk.files import write_atomically
from rwalk.report.summary import Summary, mean_and_deviation

OPENING = """
# The paper, reproduced

Made by `python -m reproduction`; do not edit.
""".strip()
NOT_RUN = "not run yet"
HOW_JUDGED = """
Yes and no are with 95 % confidence over our seeds (Welch's t-test on each margin, Holm's correction over the
margins of a claim). An undecided claim says about how many seeds would decide it, either way, with a power of
80 %, if the differences and the scatter that we saw are the true ones. Five seeds know their scatter only to a
third or so, and such differences no better: take it for an order of magnitude. The numbers behind each verdict,
and the thresholds that are ours, follow further down. A is the average accuracy after the last task, F forgetting
and I intransigence, as the paper defines them; differences are taken before rounding.
""".strip()
HOW_TO_READ = """
Ours is mean ± standard deviation over the seeds, A in percent; Δ is ours minus the paper's. A cell of ours that
says – has not been run.
""".strip()
HOW_LONG = "On an H200 all tables take less than 27 minutes, table S1 beside the others."
COUNTED = {YES: "times yes", NO: "times no", UNDECIDED: "undecided", NOT_RUN: "not run yet"}
# Where the paper's headline numbers are, and ours: (experiment, block, label).
HEADLINES = {
    "MNIST, multi-head": ("table1-mnist", "multi", "rwalk"),
    "MNIST, single-head with samples": ("table1-mnist", "samples", "rwalk-S"),
    "CIFAR-100, multi-head": ("table1-cifar100", "multi", "rwalk"),
    "CIFAR-100, single-head with samples": ("table1-cifar100", "samples", "rwalk-S"),
    "CIFAR-100, ResNet-18": ("tableS1", "5000 samples", "rwalk"),
}


def write_results(folder: Path) -> list[Path]:
    """RESULTS.md beside the results folder, and the figures in it."""
    measured = Measured(folder)
    drawn = figures.draw_all(measured, folder / "figures")
    page = folder.parent / "RESULTS.md"
    write_atomically(page, "\n".join(_page(measured, [path.relative_to(folder.parent) for path in drawn])) + "\n")
    return [page, *drawn]


def _page(measured: Measured, drawn: list[Path]) -> Iterator[str]:
    judged = {(claim, dataset): claim.judge(measured, dataset) for claim in CLAIMS for dataset in claim.datasets}
    yield OPENING
    yield ""
    yield from _verdicts(measured, judged)
    yield ""
    yield from _headlines(measured)
    yield ""
    yield "## Questions of our own"
    yield ""
    yield from answers.lines_of(measured)
    yield ""
    yield from _evidence(judged)
    yield ""
    yield "## The paper's tables"
    yield ""
    yield HOW_TO_READ
    if one := measured.one_machine(EXPERIMENTS):
        yield f"Every row here is of one version of the code. {one} {HOW_LONG}"
    for experiment in EXPERIMENTS.values():
        yield from _section(experiment, measured, "" if one else measured.machine(experiment.name))
    yield ""
    yield "## The tables of our own questions"
    for experiment in QUESTIONS.values():
        if experiment.name not in answers.DRAWN and _has_rows(measured, experiment):
            yield from _section(experiment, measured, measured.machine(experiment.name))
    yield ""
    yield "## Budgets"
    yield ""
    yield from chosen.lines_of(budgets.load())
    yield ""
    yield "## Figures"
    yield ""
    for path in drawn:
        yield f"![{path.stem}]({path.as_posix()})"


def _verdicts(measured: Measured, judged: dict[tuple[Claim, str], Evidence | None]) -> Iterator[str]:
    held = {key: _held(evidence) for key, evidence in judged.items()}
    words = [each.partition(" (")[0] for each in held.values()]
    yield "## The claims of the paper's text"
    yield ""
    yield from _in_short(measured)
    yield f"{len(CLAIMS)} claims of the paper's text, each judged on one dataset or on both: {_counted(words)}."
    merits = [word for (claim, _), word in zip(held, words, strict=True) if claim.is_about_rwalk]
    if any(word != NOT_RUN for word in merits):
        others = "The others are about the problem and other methods."
        yield f"Those that praise RWalk itself: {_counted(merits)}. {others}"
    yield ""
    yield from row("claim", *DATASETS.values(), "in a sentence")
    for claim in CLAIMS:
        said = [
            (DATASETS[dataset], evidence.said)
            for dataset in claim.datasets
            if (evidence := judged[claim, dataset]) is not None
        ]
        sentence = "; ".join(f"{dataset}: {each}" if len(said) > 1 else each for dataset, each in said)
        sentence += f"; {claim.caveat}" if said and claim.caveat else ""
        if not said and claim.needs:
            commands = (answers.command_for(QUESTIONS[f"{claim.needs}-{d}"]) for d in claim.datasets)
            sentence = "needs " + "; ".join(commands)
        yield from row(claim.text, *(held.get((claim, d), "not claimed") for d in DATASETS), sentence, head=False)
    yield ""
    yield HOW_JUDGED


def _counted(verdicts: list[str]) -> str:
    return ", ".join(f"{verdicts.count(each)} {said}" for each, said in COUNTED.items() if each in verdicts)


def _held(evidence: Evidence | None) -> str:
    if evidence is None:
        return NOT_RUN
    said = verdict(evidence.margins)
    if said != UNDECIDED:
        return said
    seeds = seeds_to_decide(evidence.margins)
    return f"{said} ({f'≈ {seeds:.0f}' if np.isfinite(seeds) else f'over {MOST_SEEDS}'} seeds)"


def _in_short(measured: Measured) -> Iterator[str]:
    """How RWalk's published accuracies fared."""
    gaps = {what: ours.mean() - paper for what, paper, ours in _headline_values(measured) if ours is not None}
    if len(gaps) < len(HEADLINES):
        return
    short = {what: gap for what, gap in gaps.items() if gap < -NEAR}
    others = "".join(f"; {what} is {-gap:.1f} points short" for what, gap in short.items())
    reached = f"{len(gaps) - len(short)} of {len(gaps)}"
    yield f"RWalk is as accurate as published, or more, in {reached} places (at a glance below){others}."


def _headlines(measured: Measured) -> Iterator[str]:
    yield "## RWalk at a glance"
    yield ""
    yield "A in percent:"
    yield ""
    yield from row("", "paper", "ours", "Δ", "seeds")
    for what, paper, ours in _headline_values(measured):
        cells: tuple[object, ...] = ("–", "", "–")
        if ours is not None:
            cells = (_spread(ours, 1), f"{ours.mean() - paper:+.1f}", len(ours))
        yield from row(what, f"{paper:.1f}", *cells, head=False)


def _headline_values(measured: Measured) -> Iterator[tuple[str, float, NDArray[np.float64] | None]]:
    """Each headline with the paper's A and ours, by seed, in percent."""
    for what, (name, block, label) in HEADLINES.items():
        for entry, summary in measured.entries(name):
            if (entry.block, entry.label) == (block, label):
                assert entry.published is not None
                yield what, entry.published.A, None if summary is None else 100 * summary.A[entry.head]


def _evidence(judged: dict[tuple[Claim, str], Evidence | None]) -> Iterator[str]:
    yield "## The numbers behind the verdicts"
    yield ""
    yield from row("claim", "dataset", "verdict", "what we saw", "margins", "seeds")
    for (claim, dataset), evidence in judged.items():
        if evidence is not None:
            seeds = min((margin.seeds for margin in evidence.margins), default=np.nan)
            cells = (verdict(evidence.margins), evidence.seen, len(evidence.margins), f"{seeds:.0f}")
            yield from row(claim.text, DATASETS[dataset], *cells, head=False)


def _has_rows(measured: Measured, experiment: Experiment) -> bool:
    return any(summary for _, summary in measured.entries(experiment.name))


def _section(experiment: Experiment, measured: Measured, machine: str) -> Iterator[str]:
    yield ""
    yield f"## {experiment.title}"
    yield ""
    if said := " ".join(filter(None, (machine, experiment.note))):
        yield said
        yield ""
    if not _has_rows(measured, experiment):
        yield f"Not run yet: `python -m reproduction {experiment.name}`."
        return
    yield from _table(measured.entries(experiment.name))


def _table(rows: list[tuple[Entry, Summary | None]]) -> Iterator[str]:
    compared = any(entry.published for entry, _ in rows)
    columns = [
        [f"{name} {'↑' if better == 'higher' else '↓'}", *([f"{name} paper", "Δ"] if compared else [])]
        for name, better in BETTER.items()
    ]
    yield from row("", "", "trained", "our λ (paper's)", "seeds", *(name for names in columns for name in names))
    for entry, summary in rows:
        yield from row(*_cells(entry, summary, compared), head=False)


def _cells(entry: Entry, summary: Summary | None, compared: bool) -> Iterator[str]:
    published = entry.published or Published(float("nan"))
    yield from (entry.block, entry.label, budgets.brief(entry.run.to_json()["training"]))
    lam = entry.run.numbers.get("lam")
    yield ("–" if lam is None else f"{lam:g}") + ("" if published.lam is None else f" ({published.lam:g})")
    yield "–" if summary is None else str(len(summary.A[entry.head]))
    for measure, scale, digits in (("A", 100, 1), ("F", 1, 3), ("I", 1, 3)):
        ours = None if summary is None else scale * getattr(summary, measure)[entry.head]
        yield "–" if ours is None else _spread(ours, digits)
        if compared:
            paper = getattr(published, measure)
            known = paper is not None and not np.isnan(paper)
            yield _plain(paper, digits) if known else ""
            yield f"{mean_and_deviation(ours)[0] - paper:+.{digits}f}" if known and ours is not None else ""


def _spread(values: NDArray[np.float64], digits: int) -> str:
    mean, deviation = mean_and_deviation(values)
    if np.isnan(mean):
        return ""  # not measured here: there are no reference models
    return _plain(mean, digits) + ("" if np.isnan(deviation) else f" ± {_plain(deviation, digits)}")


def _plain(value: float, digits: int) -> str:
    """With so many digits, or with one significant digit if none would be left."""
    return f"{value:.0e}" if 0 < abs(value) < 0.5 * 10**-digits else f"{value:.{digits}f}"
