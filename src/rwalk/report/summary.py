"""Rows of one method and λ, summarised over their seeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rwalk import metrics, parts
from rwalk.methods import Method
from rwalk.studies.specs import content_hash

Row = dict[str, Any]
# Measures beside the paper's: what a column is called, and which is better.
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
    spec: dict[str, Any]  # what the runs share: everything but the seed
    seeds: tuple[int, ...]
    accuracy: dict[str, NDArray[np.float64]]  # head → a[seed, k, j]
    A: dict[str, NDArray[np.float64]]
    F: dict[str, NDArray[np.float64]]
    I: dict[str, NDArray[np.float64]]  # noqa: E741 - the paper's name
    more: dict[str, dict[str, NDArray[np.float64]]] = field(default_factory=dict)  # other measures, by MORE
    hashes: tuple[str, ...] = ()  # of the runs
    study: str = ""  # where several studies are compared: which one it is of


def summarise(rows: Sequence[Row]) -> list[Summary]:
    """One summary per configuration, in the order of first appearance."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(content_hash({**row["spec"], "seed": None}), []).append(row)
    return [_summary(group) for group in groups.values()]


def heads_agree(summaries: Sequence[Summary]) -> bool:
    """Whether both heads measure the same, as they do where every task has all classes."""
    return all(
        np.array_equal(each.accuracy["single"], each.accuracy["multi"], equal_nan=True) for each in summaries
    )


def _summary(rows: list[Row]) -> Summary:
    first = rows[0]
    heads = ("single", "multi")
    remembers = first["spec"]["memory"] and issubclass(parts.like(first["method"]) or object, Method)
    accuracy = {head: np.array([row["accuracy"][head] for row in rows], dtype=float) for head in heads}
    return Summary(
        label=first["method"] + ("-S" if remembers else ""),
        method=first["method"],
        lam=float(np.median([row["lam"] for row in rows])),
        chosen=", ".join(f"{lam:g}" for lam in sorted({row["lam"] for row in rows})) if "tried" in first else "",
        spec={**first["spec"], "seed": None},
        seeds=tuple(row["seed"] for row in rows),
        accuracy=accuracy,
        A={head: metrics.average_accuracy(accuracy[head]) for head in heads},
        F={head: metrics.forgetting(accuracy[head]) for head in heads},
        I={head: np.array([row[head]["I"] for row in rows], dtype=float) for head in heads},
        more=_more(rows, accuracy),
        hashes=tuple(row["hash"] for row in rows),
    )


def _more(rows: list[Row], accuracy: dict[str, NDArray[np.float64]]) -> dict[str, dict[str, NDArray[np.float64]]]:
    """The other measures: what follows from the accuracies, and what all rows have measured beside them."""
    found: dict[str, dict[str, NDArray[np.float64]]] = {}
    for head, a in accuracy.items():
        found.setdefault("learning", {})[head] = metrics.learning_accuracy(a)
        found.setdefault("incremental", {})[head] = metrics.average_incremental_accuracy(a)
        found.setdefault("transfer", {})[head] = metrics.backward_transfer(a)
        if all("within" in row for row in rows):
            within = np.array([row["within"][head] for row in rows], dtype=float)
            found.setdefault("gap", {})[head] = metrics.stability_gap(a, within)
        if all("calibration" in row for row in rows):
            errors = np.array([row["calibration"][head] for row in rows], dtype=float)
            found.setdefault("calibration", {})[head] = metrics.average_accuracy(errors)  # after the last task
    return found


def mean_and_deviation(values: NDArray[np.float64]) -> tuple[float, float]:
    """Mean and sample standard deviation, ignoring NaN; NaN if there is nothing else.

    >>> mean_and_deviation(np.array([1.0, 3.0, np.nan]))
    (2.0, 1.4142135623730951)
    """
    there = values[np.isfinite(values)]
    if len(there) == 0:
        return float("nan"), float("nan")
    return float(there.mean()), float(there.std(ddof=1)) if len(there) > 1 else float("nan")
