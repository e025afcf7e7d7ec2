"""Our rows, by the cells of the paper's tables."""

from __future__ import annotations

import re
from collections import ChainMap
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from reproduction import packed_rows
from reproduction.own_questions import QUESTIONS
from reproduction.paper_experiments import EXPERIMENTS, Entry
from rwalk.report.seed_summaries import Summary, summarise
from rwalk.report.welch_test import Mean
from rwalk.studies import provenance
from rwalk.studies.rows import Row


def _by_run(rows: Iterable[Row]) -> dict[str, Summary]:
    """One summary per run, by its hash for seed 0: studies may spell the same settings differently."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(replace(row.spec, seed=0).hash(), []).append(row)
    return {
        run: summarise([replace(row, spec=replace(group[0].spec, seed=row.seed)) for row in group])[0]
        for run, group in groups.items()
    }


KNOWN = ChainMap(EXPERIMENTS, QUESTIONS)


class NotRun(LookupError):
    """A cell without rows."""


class Measured:
    """All rows under a results folder, summarised over their seeds."""

    def __init__(self, folder: Path) -> None:
        self._rows_in = packed_rows.all_rows(folder)
        self.rows = {row.hash: row for rows in self._rows_in.values() for row in rows}
        self.summaries = _by_run(self.rows.values())
        self._entries: dict[str, list[tuple[Entry, Summary | None]]] = {}  # filled on demand

    def machine(self, name: str) -> str:
        """The machine that trained an experiment, if any."""
        shown = [summary for _, summary in self.entries(name) if summary]
        wanted = {replace(each.spec, seed=seed).hash() for each in shown for seed in each.seeds}
        known = {**self.rows, **{row.hash: row for row in self.own_rows(name)}}
        rows = [row for run, row in known.items() if run in wanted]
        if said := provenance.mixture(row.made for row in rows):
            return said
        return "".join(f"Trained by {maker}." for maker in provenance.makers(row.made for row in rows))

    def one_machine(self, names: Iterable[str]) -> str:
        """The machine of all of these experiments, if they share one and one version of the code."""
        machine, *others = {self.machine(name) for name in names}
        return "" if others or not machine.startswith("Trained") else machine

    def own_rows(self, name: str) -> list[Row]:
        """The rows in an experiment's folder, and in those of the same with other numbers of seeds."""
        others = [folder for folder in self._rows_in if re.fullmatch(rf"{re.escape(name)}-\d+-seeds", folder)]
        rows = {row.hash: row for folder in (*others, name) for row in self._rows_in.get(folder, ())}
        return list(rows.values())

    def entries(self, name: str) -> list[tuple[Entry, Summary | None]]:
        """The cells of an experiment, each with its rows, if there are any.

        Its own rows, if it has any of that cell; otherwise those of others that share it.
        """
        if name not in self._entries:
            experiment = KNOWN[name]
            summaries = {**self.summaries, **_by_run(self.own_rows(name))}
            self._entries[name] = [
                (entry, summaries.get(replace(entry.run, seed=0).hash())) for entry in experiment.entries()
            ]
        return self._entries[name]

    def cell(self, name: str, block: str, label: str) -> tuple[Entry, Summary]:
        """One cell of an experiment and its rows; NotRun where there are none."""
        for entry, summary in self.entries(name):
            if summary and (entry.block, entry.label) == (block, label):
                return entry, summary
        raise NotRun(f"{name}: {block}, {label}")

    def values(self, measure: str, name: str, block: str, label: str) -> NDArray[np.float64]:
        """A (in percent), F or I of a cell under its head, one value per seed, in the order of the seeds."""
        entry, summary = self.cell(name, block, label)
        values: NDArray[np.float64] = getattr(summary, measure)[entry.head][np.argsort(summary.seeds)]
        return 100 * values if measure == "A" else values

    def mean(self, measure: str, name: str, block: str, label: str) -> Mean:
        return Mean.over(self.values(measure, name, block, label))
