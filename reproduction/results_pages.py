"""RESULTS.md, written by hand around computed tables, and its appendix, which is all computed."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reproduction import budgets, paper_figures, question_tables
from reproduction.markdown import PAGES, filled, place_of, table
from reproduction.measured_cells import Measured, NotRun
from reproduction.own_questions import QUESTIONS
from reproduction.paper_claims import CLAIMS, DATASETS, Claim, Difference, in_numbers, named
from reproduction.paper_experiments import EXPERIMENTS, Entry, Experiment
from reproduction.published_values import BETTER, Published
from reproduction.tuning_settings import SETTINGS
from reproduction.verdicts import MOST_SEEDS, NO, UNDECIDED, YES, seeds_to_decide, verdict
from rwalk.atomic_files import write_atomically
from rwalk.report.seed_summaries import Summary
from rwalk.report.welch_test import mean_and_deviation

# Where there is no page written by hand around them, the computed tables are all there is.
BARE = """# The paper, reproduced

<!-- count -->
<!-- /count -->

<!-- verdicts -->
<!-- /verdicts -->

<!-- glance -->
<!-- /glance -->

<!-- table1 -->
<!-- /table1 -->
"""
NOT_RUN = "not run"
NEAR_PUBLISHED = 0.5  # points: as accurate as published
# Where the paper's headline numbers are, and ours: (experiment, block, label).
HEADLINES = {
    "MNIST, multi-head": ("table1-mnist", "multi", "rwalk"),
    "MNIST, single-head with samples": ("table1-mnist", "samples", "rwalk-S"),
    "CIFAR-100, multi-head": ("table1-cifar100", "multi", "rwalk"),
    "CIFAR-100, single-head with samples": ("table1-cifar100", "samples", "rwalk-S"),
    "CIFAR-100, ResNet-18": ("tableS1", "5000 samples", "rwalk"),
}
# The blocks of table 1, and what they are called in RESULTS.md.
TABLE_1 = {"multi": "multi-head", "single": "single-head", "samples": "single-head with samples"}
Judged = Mapping[tuple[Claim, str], list[Difference] | None]


def write_results(folder: Path) -> list[Path]:
    """RESULTS.md beside the results folder, its appendix in docs/ (or beside it), and the figures."""
    measured = Measured(folder)
    drawn = paper_figures.draw_all(measured, folder / "figures")
    page = folder.parent / "RESULTS.md"
    write_atomically(page, filled(page.read_text() if page.is_file() else BARE, blocks(measured)))
    appendix = place_of(ours := PAGES / "results-appendix.md", folder)
    pictures = [Path(os.path.relpath(path, appendix.parent)).as_posix() for path in drawn]
    write_atomically(appendix, filled(ours.read_text(), blocks_of_appendix(measured, pictures)))
    return [page, appendix, *drawn]


def blocks(measured: Measured) -> dict[str, Iterable[str]]:
    """The computed parts of RESULTS.md, by name."""
    judged = judged_by(measured)
    return {
        "count": [count(judged)],
        "verdicts": _verdicts(judged),
        "glance": _glance(measured),
        "table1": _table1(measured),
    }


def judged_by(measured: Measured) -> Judged:
    return {(claim, dataset): claim.judge(measured, dataset) for claim in CLAIMS for dataset in claim.datasets}


def count(judged: Judged) -> str:
    """How many verdicts of each kind there are."""
    about = [key[0].is_about_rwalk for key in judged]
    held = [_held(tests).partition(":")[0] for tests in judged.values()]
    merits = [each for each, is_about in zip(held, about, strict=True) if is_about]
    return (
        f"**{len(CLAIMS)} claims of the paper, {len(held)} verdicts: {_counted(held)}.** "
        f"Of the {len(merits)} on claims that favour RWalk: {_counted(merits)}."
    )


def _counted(verdicts: list[str]) -> str:
    kinds = {"confirmed": YES, "undecided": UNDECIDED, "refuted": NO, NOT_RUN: NOT_RUN}
    return ", ".join(f"{verdicts.count(each)} {said}" for said, each in kinds.items() if each in verdicts)


def _held(tests: list[Difference] | None) -> str:
    if tests is None:
        return NOT_RUN
    margins = [test.margin for test in tests]
    if (said := verdict(margins)) != UNDECIDED:
        return said
    seeds = seeds_to_decide(margins)
    needed = f"about {float(f'{seeds:.2g}'):.0f}" if np.isfinite(seeds) else f"over {MOST_SEEDS}"
    return f"{said}: {needed} seeds needed"


def _verdicts(judged: Judged) -> Iterator[str]:
    held = {key: _held(tests) for key, tests in judged.items()}
    rows = ([claim.text, *(held.get((claim, d), "not claimed") for d in DATASETS)] for claim in CLAIMS)
    yield from table(["claim", *DATASETS.values()], rows)


def _glance(measured: Measured) -> Iterator[str]:
    rows = []
    for what, (paper, ours) in headlines(measured).items():
        cells = ("–", "", "–") if ours is None else (_spread(ours, 1), f"{ours.mean() - paper:+.1f}", len(ours))
        rows.append((what, f"{paper:.1f}", *cells))
    yield from table(["A of RWalk, %", "paper", "ours", "Δ", "seeds"], rows)


def _table1(measured: Measured) -> Iterator[str]:
    """A of every method of table 1, ours and the paper's."""
    columns = [(dataset, block) for dataset in DATASETS for block in TABLE_1]
    cells: dict[str, dict[tuple[str, str], str]] = {}
    for dataset, block in columns:
        for entry, summary in measured.entries(f"table1-{dataset}"):
            if entry.block == block and summary is not None:
                paper = f"{entry.published.A:.1f}" if entry.published else "–"
                row = cells.setdefault(named(entry.label.removesuffix("-S")), {})
                row[dataset, block] = f"{_spread(100 * summary.A[entry.head], 1)} ({paper})"
    head = ("A, %: ours (the paper's)", *(f"{DATASETS[dataset]}, {TABLE_1[block]}" for dataset, block in columns))
    yield from table(head, ((label, *(row.get(each, "") for each in columns)) for label, row in cells.items()))


def headlines(measured: Measured) -> dict[str, tuple[float, NDArray[np.float64] | None]]:
    """Each headline with the paper's A and ours, by seed, in percent."""
    found: dict[str, tuple[float, NDArray[np.float64] | None]] = {}
    for what, (name, block, label) in HEADLINES.items():
        for entry, summary in measured.entries(name):
            if (entry.block, entry.label) == (block, label):
                assert entry.published is not None
                found[what] = entry.published.A, None if summary is None else 100 * summary.A[entry.head]
    return found


# ── the appendix ──────────────────────────────────────────────────────────────────────────────────────────────


def blocks_of_appendix(measured: Measured, pictures: Iterable[str]) -> dict[str, Iterable[str]]:
    """The computed parts of the appendix, by name."""
    one = measured.one_machine(EXPERIMENTS)
    return {
        "evidence": _evidence(judged_by(measured)),
        "made": [f"Every row here is of one version of the code. {one}"] if one else [],
        **{name: _cells_of(each, measured, told=not one) for name, each in EXPERIMENTS.items()},
        **{name: _answer(each, measured) for name, each in QUESTIONS.items()},
        "budgets": _budgets(budgets.load()),
        "figures": (f"![{Path(path).stem}]({path})" for path in pictures),
    }


def _answer(experiment: Experiment, measured: Measured) -> Iterator[str]:
    """The table that answers a question of our own, and its cells."""
    try:
        if experiment.name in question_tables.TABLES:
            yield from [*question_tables.TABLES[experiment.name](measured), ""]
    except NotRun:
        pass
    if experiment.name not in question_tables.NO_CELLS or not _has_rows(measured, experiment):
        yield from _cells_of(experiment, measured, told=True)


def _evidence(judged: Judged) -> Iterator[str]:
    rows = []
    for (claim, dataset), tests in judged.items():
        if tests is not None:
            seeds = min((test.margin.seeds for test in tests), default=np.nan)
            rows.append((claim.text, DATASETS[dataset], _held(tests), in_numbers(tests), f"{seeds:.0f}"))
    yield from table(("claim", "dataset", "verdict", "measured; limit", "seeds"), rows)


def _has_rows(measured: Measured, experiment: Experiment) -> bool:
    return any(summary for _, summary in measured.entries(experiment.name))


def _cells_of(experiment: Experiment, measured: Measured, told: bool) -> Iterator[str]:
    """The cells of an experiment, after the machine that trained them if that is `told`."""
    if not _has_rows(measured, experiment):
        yield f"Not run yet: `python -m reproduction {experiment.name}` ({experiment.cost})."
        return
    if told:
        yield from (measured.machine(experiment.name), "")
    yield from _table(measured.entries(experiment.name))


def _table(rows: list[tuple[Entry, Summary | None]]) -> Iterator[str]:
    compared = any(entry.published for entry, _ in rows)
    columns = [
        [f"{name} {'↑' if better == 'higher' else '↓'}", *([f"{name} paper", "Δ"] if compared else [])]
        for name, better in BETTER.items()
    ]
    head = (
        "block",
        "method",
        "trained",
        "our λ (paper's)",
        "seeds",
        *(name for names in columns for name in names),
    )
    yield from table(head, (_cells(entry, summary, compared) for entry, summary in rows))


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


# ── budgets ───────────────────────────────────────────────────────────────────────────────────────────────────


def _budgets(chosen: Mapping[str, Any]) -> Iterator[str]:
    """The choices of the rule."""
    rows = []
    for name, budget in chosen.items():
        network = budget.get("network", SETTINGS[name].run.network)
        for method, numbers in budget["numbers"].items():
            said = ", ".join(f"{key} {value if isinstance(value, str) else f'{value:g}'}" for key, value in
                             sorted(numbers.items()))  # fmt: skip
            seeds = budgets.seeds_behind(name, method) or "–"
            long = budgets.brief(budget["training"])
            rows.append((name, long, network, method, said or "–", budget["validation"][method], seeds))
    head = ("setting", "how long", "network", "method", "hyper-parameters", "validation A, %", "seeds")
    yield from table(head, rows)
