"""docs/yardsticks.md: every cell beside the published value, whether it held, and how it was tuned."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from reproduction.markdown import PAGES, filled, place_of, table
from reproduction.paper_experiments import Experiment, runs_of
from reproduction.planned_studies import known_rows
from reproduction.published_values import Value
from reproduction.verdicts import NO, UNDECIDED, YES, verdict
from reproduction.yardsticks import YARDSTICKS, Cell
from rwalk.atomic_files import write_atomically
from rwalk.report.welch_test import Mean, mean_and_deviation
from rwalk.studies import provenance
from rwalk.studies.rows import Row

NEAR = 1.5  # points: the distance from a published value that counts as reproduced
VERDICTS = {"confirmed": YES, "undecided": UNDECIDED, "refuted": NO}


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
    def held(self) -> str:
        gap = self.difference
        if gap is None:
            return ""
        return verdict([Mean(NEAR) - Mean(abs(gap.value), gap.error, gap.freedom)])


def results_of(experiment: Experiment, rows: dict[str, Row]) -> list[Result]:
    """The cells of an experiment with their measured means."""
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
    page = place_of(PAGES / "yardsticks.md", results)
    write_atomically(page, filled((PAGES / "yardsticks.md").read_text(), blocks(known_rows(results))))
    return page


def blocks(rows: dict[str, Row]) -> dict[str, Iterator[str]]:
    """The computed parts of the page, by name."""
    measured = {name: results_of(experiment, rows) for name, experiment in YARDSTICKS.items()}
    everything = [each for results in measured.values() for each in results]
    sections = {name: _section(YARDSTICKS[name], results, rows) for name, results in measured.items()}
    return {"count": _counts(everything), **sections}


def _section(experiment: Experiment, results: Sequence[Result], rows: dict[str, Row]) -> Iterator[str]:
    ours = {run.hash() for run in runs_of(experiment)}
    made_here = [row.made for row in rows.values() if row.hash in ours]
    if not made_here:
        yield f"Not run yet: `python -m reproduction {experiment.name}`."
        return
    others = list(dict.fromkeys(name for each in results for name, _ in each.cell.others))
    compared = any(each.cell.theirs for each in results)
    published = ("published", *others) if compared else ()
    held = ("Δ", "within 1.5?") if compared else ()
    head = ("block", "method", *published, "ours", *held, "seeds", "hyper-parameters", "tuned")
    yield from table(head, (_cells(each, others, compared) for each in results))
    yield ""
    yield from _counts(results)
    yield provenance.mixture(made_here) or "".join(f"Trained by {each}." for each in provenance.makers(made_here))


def _cells(each: Result, others: Sequence[str], compared: bool) -> Iterator[str]:
    cell, gap, theirs = each.cell, each.difference, dict(each.cell.others)
    yield from (cell.block, cell.label)
    yield from (_value(value) for value in (cell.theirs, *map(theirs.get, others)) if compared)
    mean, deviation = mean_and_deviation(np.array(each.means))
    spread = "" if np.isnan(deviation) else f" ± {deviation:.1f}"
    yield "–" if not each.means else f"{mean:.1f}{spread}"
    if compared:
        yield from ("" if gap is None else f"{gap.value:+.1f}", each.held)
    yield str(each.seeds) if each.seeds else "–"
    yield ", ".join(f"{name} {_short(value)}" for name, value in cell.run.numbers.items()) or "–"
    yield cell.tuned


def _counts(results: Sequence[Result]) -> Iterator[str]:
    held = [each.held for each in results if each.held]
    if held:
        numbers = ", ".join(f"{held.count(each)} {name}" for name, each in VERDICTS.items())
        yield from (f"{len(held)} cells are compared: {numbers}.", "")


def _value(value: Value | None) -> str:
    if value is None:
        return ""
    error = "" if value.error is None else f" ± {value.error:.1f}"
    return f"{value.mean:.1f}{error}"


def _short(value: object) -> str:
    return f"{value:g}" if isinstance(value, int | float) else str(value)
