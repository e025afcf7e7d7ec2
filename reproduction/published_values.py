"""Values that others publish, from the .csv files beside this one.

`paper_values.csv` has the paper's tables: A in percent, F and I as fractions; by EWC the paper means EWC++
throughout. Figures are published as pictures only: their curves cannot be compared. `yardstick_values.csv` has
final average accuracies of others, in percent, with standard errors; docs/yardsticks.md names their sources.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

BETTER = {"A": "higher", "F": "lower", "I": "lower"}


class Published(NamedTuple):
    """One cell group of a table: average accuracy (%), forgetting, intransigence, and the λ it is for."""

    A: float
    F: float | None = None
    I: float | None = None  # noqa: E741 - the paper's name
    lam: float | None = None


class Value(NamedTuple):
    """A published mean, in percent, with its standard error where that is known."""

    mean: float
    error: float | None


def _rows(name: str) -> Iterator[dict[str, str]]:
    with open(Path(__file__).with_name(name), newline="") as file:
        yield from csv.DictReader(file)


def _number(text: str) -> float | None:
    return float(text) if text else None


def _paper(table: str) -> dict[str, dict[str, Published]]:
    """Block → method → values."""
    found: dict[str, dict[str, Published]] = {}
    for row in _rows("paper_values.csv"):
        if row["table"] == table:
            numbers = (_number(row[name]) for name in ("F", "I", "lam"))
            found.setdefault(row["block"], {})[row["method"]] = Published(float(row["A"]), *numbers)
    return found


def yardstick(table: str) -> dict[str, dict[str, Value]]:
    """Block → method → value."""
    found: dict[str, dict[str, Value]] = {}
    for row in _rows("yardstick_values.csv"):
        if row["table"] == table:
            value = Value(float(row["mean"]), _number(row["error"]))
            found.setdefault(row["block"], {})[row["method"]] = value
    return found


def _lambdas() -> dict[tuple[str, str], dict[float, Published]]:
    found: dict[tuple[str, str], dict[float, Published]] = {}
    for row in _rows("paper_values.csv"):
        kind, _, dataset = row["table"].partition("-")
        if kind == "tableS2":
            cell = Published(*(float(row[name]) for name in "AFI"))
            found.setdefault((dataset, row["method"]), {})[float(row["lam"])] = cell
    return found


# (dataset, block) → method → values. Blocks: multi-head, single-head, single-head with samples.
TABLE1 = {(d, block): of for d in ("mnist", "cifar100") for block, of in _paper(f"table1-{d}").items()}
# CIFAR-100 in 20 tasks, ResNet-18, multi-head: method → exemplars, values (iCaRL and GEM as GEM's paper has them).
TABLE_S1 = {method: (int(total), cell) for total, of in _paper("tableS1").items() for method, cell in of.items()}
# (dataset, method) → λ → values; single-head with samples.
TABLE_S2 = _lambdas()
