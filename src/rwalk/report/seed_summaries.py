"""Rows of one configuration, summed up over its seeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from rwalk import metrics, parts
from rwalk.methods import Method
from rwalk.metrics import HEADS
from rwalk.part_names import spelled
from rwalk.studies.rows import Row
from rwalk.studies.specs import RunSpec

# Measures beside the paper's: the title of the column, and which value is better.
MORE = {
    "learning": ("learning accuracy", max),
    "incremental": ("average incremental accuracy", max),
    "transfer": ("backward transfer", max),
    "gap": ("stability gap", min),
    "calibration": ("calibration error", min),
}


@dataclass(frozen=True)
class Summary:
    """All seeds of one configuration; arrays have one entry per seed, NaN where a run stopped."""

    label: str  # as the paper writes it: -S where exemplars are added to a method that needs none
    method: str
    lam: float
    chosen: str  # the λs that its runs chose for themselves; "" if they were given one
    spec: RunSpec  # the settings of all its runs, with seed 0
    seeds: tuple[int, ...]
    accuracy: dict[str, NDArray[np.float64]]  # head → a[seed, k, j]
    A: dict[str, NDArray[np.float64]]
    F: dict[str, NDArray[np.float64]]
    I: dict[str, NDArray[np.float64]]  # noqa: E741 - the paper's name
    more: dict[str, dict[str, NDArray[np.float64]]] = field(default_factory=dict)  # other measures, by MORE
    hashes: tuple[str, ...] = ()  # of the runs
    study: str = ""  # which study it is of, where several are compared

    @property
    def name(self) -> str:
        """The method as people write it, and whether exemplars were added to it."""
        return spelled(self.method) + " with exemplars" * self.label.endswith("-S")

    @property
    def tasks(self) -> int:
        return int(self.accuracy["single"].shape[-1])


def summarise(rows: Sequence[Row]) -> list[Summary]:
    """One summary per configuration, in the order of first appearance."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(replace(row.spec, seed=0).hash(), []).append(row)
    return [_summary(group) for group in groups.values()]


def heads_agree(summaries: Sequence[Summary]) -> bool:
    """Whether both heads measure the same, as they do where every task has all classes."""
    return all(
        np.array_equal(each.accuracy["single"], each.accuracy["multi"], equal_nan=True) for each in summaries
    )


def _summary(rows: list[Row]) -> Summary:
    first, lams = rows[0], sorted({row.lam for row in rows})
    spec = replace(first.spec, seed=0)
    takes_memory = spec.memory and issubclass(parts.like(spec.method) or object, Method)
    accuracy = {head: np.array([row.accuracy[head] for row in rows], dtype=float) for head in HEADS}
    return Summary(
        label=first.method + ("-S" if takes_memory else ""),
        method=first.method,
        lam=float(np.median([row.lam for row in rows])),
        chosen="" if first.tried is None else ", ".join(f"{lam:g}" for lam in lams),
        spec=spec,
        seeds=tuple(row.seed for row in rows),
        accuracy=accuracy,
        A={head: metrics.average_accuracy(accuracy[head]) for head in HEADS},
        F={head: metrics.forgetting(accuracy[head]) for head in HEADS},
        I={head: np.array([row.measures(head).I for row in rows], dtype=float) for head in HEADS},
        more=_more(rows, accuracy),
        hashes=tuple(row.hash for row in rows),
    )


def _more(rows: list[Row], accuracy: dict[str, NDArray[np.float64]]) -> dict[str, dict[str, NDArray[np.float64]]]:
    """The other measures: those that follow from the accuracies, and those that all rows have."""
    found: dict[str, dict[str, NDArray[np.float64]]] = {}
    for head, a in accuracy.items():
        found.setdefault("learning", {})[head] = metrics.learning_accuracy(a)
        found.setdefault("incremental", {})[head] = metrics.average_incremental_accuracy(a)
        found.setdefault("transfer", {})[head] = metrics.backward_transfer(a)
        within = [row.within[head] for row in rows if row.within is not None]
        if len(within) == len(rows):
            found.setdefault("gap", {})[head] = metrics.stability_gap(a, np.array(within, dtype=float))
        errors = [row.calibration[head] for row in rows if row.calibration is not None]
        if len(errors) == len(rows):  # errors after the last task
            found.setdefault("calibration", {})[head] = metrics.average_accuracy(np.array(errors, dtype=float))
    return found
