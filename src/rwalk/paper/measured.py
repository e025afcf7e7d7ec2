"""Our rows, asked by the cells of the paper's tables."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rwalk.paper.experiments import EXPERIMENTS, Entry
from rwalk.paper.reproduce import known_rows
from rwalk.report.summary import Summary, mean_and_deviation, summarise
from rwalk.specs import RunSpec


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


class Measured:
    """All rows under a results folder, summed up over their seeds."""

    def __init__(self, folder: Path) -> None:
        summaries = summarise(list(known_rows(folder).values()))
        self.summaries = {RunSpec.from_json({**each.spec, "seed": 0}).hash(): each for each in summaries}
        self._entries: dict[str, list[tuple[Entry, Summary | None]]] = {}  # of experiments that were asked for

    def entries(self, name: str) -> list[tuple[Entry, Summary | None]]:
        """The cells of an experiment, each with its rows, if there are any."""
        if name not in self._entries:
            self._entries[name] = [
                (entry, self.summaries.get(replace(entry.run, seed=0).hash()))
                for entry in EXPERIMENTS[name].entries()
            ]
        return self._entries[name]

    def mean(self, measure: str, name: str, block: str, label: str) -> Mean | None:
        """A (in percent), F or I of a cell of an experiment; None where it was not run."""
        for entry, summary in self.entries(name):
            if summary and (entry.block, entry.label) == (block, label):
                values: NDArray[np.float64] = getattr(summary, measure)[entry.head]
                return Mean.over(100 * values if measure == "A" else values)
        return None
