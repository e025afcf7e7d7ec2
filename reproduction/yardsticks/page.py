"""docs/yardsticks.md: every cell beside the published value, whether it held, and how it was tuned."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from reproduction.experiments import Experiment, runs_of
from reproduction.reproduce import known_rows
from reproduction.verdicts import verdict
from reproduction.yardsticks.experiments import EXPERIMENTS, Cell
from reproduction.yardsticks.explanations import explanation_of
from reproduction.yardsticks.published import Value
from rwalk.files import write_atomically
from rwalk.report.statistics import Mean
from rwalk.report.summary import mean_and_deviation
from rwalk.studies import provenance
from rwalk.studies.rows import Row

NEAR = 1.5  # points: how close a cell is to be to what is published
OPENING = """
# The field's yardsticks

Made by `python -m reproduction`; do not edit. Final average accuracies in percent. Published values are means ±
standard errors; one marked † could not be checked against its source and is quoted from memory. Ours is mean ±
standard deviation over the seeds (over orders, where the classes come in several); Δ is ours minus the published
value.

Held: the two are within 1.5 points of each other, yes or no with 95 % confidence over our seeds (Welch's t-test);
what lies between is undecided. A cell counts as reproduced if Δ is at most 1.5 points or two standard errors.
""".strip()


@dataclass(frozen=True)
class Result:
    """A cell and what we measured of it: one mean in percent per order of the classes, or per seed."""

    cell: Cell
    means: tuple[float, ...]
    seeds: int

    @property
    def ours(self) -> Mean:
        return Mean.over(np.array(self.means))

    @property
    def difference(self) -> Mean | None:
        theirs = self.cell.theirs
        return None if theirs is None or not self.means else self.ours - Mean(theirs.mean, theirs.error or 0.0)

    @property
    def reproduced(self) -> bool | None:
        """Whether it is near what is published; None where there is nothing to compare."""
        gap = self.difference
        if gap is None:
            return None
        return abs(gap.value) <= max(NEAR, 2 * gap.error if np.isfinite(gap.error) else 0.0)

    @property
    def held(self) -> str:
        gap = self.difference
        if gap is None:
            return ""
        return verdict([Mean(NEAR) - Mean(abs(gap.value), gap.error, gap.freedom)])


def results_of(experiment: Experiment, rows: dict[str, Row]) -> list[Result]:
    """The cells of an experiment with what is there of them."""
    found = []
    for cell in experiment.entries():
        assert isinstance(cell, Cell)
        groups: dict[int | None, list[float]] = {}
        for seed in range(experiment.seeds):
            run = cell.run_of(seed)
            row = rows.get(run.hash())
            if row is not None:
                a = row.measures(cell.head).A
                key = run.stream.order_seed if cell.orders else seed
                groups.setdefault(key, []).append(np.nan if a is None else 100 * a)
        means = tuple(float(np.mean(each)) for each in groups.values())
        found.append(Result(cell, means, sum(map(len, groups.values()))))
    return found


def write_page(results: Path) -> Path:
    """The page, in the folder docs beside the results where there is one, else beside them."""
    docs = results.parent / "docs"
    page = (docs if docs.is_dir() else results.parent) / "yardsticks.md"
    write_atomically(page, "\n".join(lines_of(known_rows(results))) + "\n")
    return page


def lines_of(rows: dict[str, Row]) -> Iterator[str]:
    """The page, line by line."""
    measured = {name: results_of(experiment, rows) for name, experiment in EXPERIMENTS.items()}
    yield OPENING
    yield ""
    if said := _count([each for results in measured.values() for each in results]):
        yield f"In all: {said}"
        yield ""
    for name, results in measured.items():
        yield from _section(EXPERIMENTS[name], results, rows)
    yield "## Sources"
    yield ""
    values = [value for results in measured.values() for each in results for value in _values(each.cell)]
    for source in dict.fromkeys(value.source for value in values):
        checked = all(value.checked for value in values if value.source == source)
        yield f"- {source}{'' if checked else ' †'}"


def _section(experiment: Experiment, results: Sequence[Result], rows: dict[str, Row]) -> Iterator[str]:
    yield f"## {experiment.title}"
    yield ""
    ours = {run.hash() for run in runs_of(experiment)}
    made_here = [row.made for row in rows.values() if row.hash in ours]
    if not made_here:
        yield f"Not run yet: `python -m reproduction {experiment.name}`."
        yield ""
        return
    yield experiment.note
    yield ""
    others = list(dict.fromkeys(name for each in results for name, _ in each.cell.others))
    heads = ("", "method", "published", *others, "ours", "Δ", "held", "seeds", "hyper-parameters", "tuned")
    yield "| " + " | ".join(heads) + " |"
    yield "|---" * len(heads) + "|"
    for each in results:
        yield "| " + " | ".join(_cells(each, others)) + " |"
    yield ""
    yield from _explained(experiment, results)
    yield provenance.mixture(made_here) or "".join(f"Trained by {each}." for each in provenance.makers(made_here))
    yield ""


def _cells(each: Result, others: Sequence[str]) -> Iterator[str]:
    cell, gap = each.cell, each.difference
    yield from (cell.block, cell.label, _value(cell.theirs))
    theirs = dict(cell.others)
    yield from (_value(theirs.get(name)) for name in others)
    mean, deviation = mean_and_deviation(np.array(each.means))
    spread = "" if np.isnan(deviation) else f" ± {deviation:.1f}"
    yield "–" if not each.means else f"{mean:.1f}{spread}"
    yield "" if gap is None else f"{gap.value:+.1f}"
    yield each.held
    yield str(each.seeds) if each.seeds else "–"
    yield ", ".join(f"{name} {_short(value)}" for name, value in cell.run.numbers.items()) or "–"
    yield cell.tuned


def _count(results: Sequence[Result]) -> str:
    """How many of the cells that can be compared are near what is published; nothing, where none can."""
    judged = [each.reproduced for each in results if each.reproduced is not None]
    return f"{sum(judged)} of {len(judged)} cells reproduced." if judged else ""


def _explained(experiment: Experiment, results: Sequence[Result]) -> Iterator[str]:
    """How many cells came out as published; the others by name, each with its reason or as unexplained."""
    if not (said := _count(results)):
        return
    missed: dict[str | None, list[str]] = {}
    for each in results:
        if each.reproduced is False:
            why = explanation_of(experiment.name, each.cell.label, each.cell.block)
            missed.setdefault(why, []).append(f"{each.cell.label} ({each.cell.block})")
    unexplained = missed.pop(None, [])
    yield said + (" The others:" if missed or unexplained else "")
    yield ""
    for why, cells in missed.items():
        yield f"- {', '.join(cells)}: {why}"
    if unexplained:
        yield f"- Unexplained: {', '.join(unexplained)}."
    if missed or unexplained:
        yield ""


def _values(cell: Cell) -> list[Value]:
    return [value for value in (cell.theirs, *(value for _, value in cell.others)) if value is not None]


def _value(value: Value | None) -> str:
    if value is None:
        return ""
    error = "" if value.error is None else f" ± {value.error:.1f}"
    return f"{value.mean:.1f}{error}{'' if value.checked else ' †'}"


def _short(value: object) -> str:
    return f"{value:g}" if isinstance(value, int | float) else str(value)
