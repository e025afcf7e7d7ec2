"""Values that others publish, from the .csv files beside this one.

`paper_values.csv` has the paper's tables: A in percent, F and I as fractions; by EWC the paper means EWC++
throughout. Figures are published as pictures only: their curves cannot be compared. `yardstick_values.csv` has the
final average accuracies of other papers, in percent, with their standard errors, or with the standard deviation of
ten runs (mammoth-mnist).
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

BETTER = {"A": "higher", "F": "lower", "I": "lower"}
KIRKPATRICK = "Kirkpatrick et al. 2017, as quoted in the table of ContinualAI/continual-learning-baselines"
ZENKE = "Zenke et al. 2017, as quoted in the table of ContinualAI/continual-learning-baselines"
RWALK = "Chaudhry et al. 2018, Riemannian Walk for Incremental Learning, table 1"
# By table, and by method where that decides; those that were compared with their source.
OPENED = {
    ("permuted-mnist", "ewc"): KIRKPATRICK,
    ("permuted-mnist", "si"): ZENKE,
    ("permuted-mnist-avalanche", "ewc"): "ContinualAI/continual-learning-baselines, README",
    ("permuted-mnist-avalanche", "si"): "ContinualAI/continual-learning-baselines, README",
}
# The others are quoted from memory of these tables, which could not be opened, and are marked in every table.
FROM_MEMORY = {
    "split-mnist-2022": "van de Ven, Tuytelaars & Tolias 2022, Three types of incremental learning, table 2",
    "mammoth-mnist": "Buzzega et al. 2020, Dark Experience for General Continual Learning, supplement (S-MNIST)",
}
RUNS = {"mammoth-mnist": 10}  # behind a standard deviation


class Published(NamedTuple):
    """One cell group of a table: average accuracy (%), forgetting, intransigence, and the λ it is for."""

    A: float
    F: float | None = None
    I: float | None = None  # noqa: E741 - the paper's name
    lam: float | None = None


@dataclass(frozen=True)
class Value:
    """A published mean, in percent, with its standard error where that is known."""

    mean: float
    error: float | None
    source: str
    checked: bool = True


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
            source = OPENED.get((table, row["method"]))
            error = _number(row["error"])
            error = None if error is None else error / RUNS.get(table, 1) ** 0.5
            value = Value(float(row["mean"]), error, source or FROM_MEMORY[table], checked=source is not None)
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
TABLE1 = {(each, block): of for each in ("mnist", "cifar100") for block, of in _paper(f"table1-{each}").items()}
# CIFAR-100 in 20 tasks, ResNet-18, multi-head: method → exemplars, values; the paper quotes iCaRL and GEM from GEM's.
TABLE_S1 = {method: (int(total), cell) for total, of in _paper("tableS1").items() for method, cell in of.items()}
# (dataset, method) → λ → values; single-head with samples.
TABLE_S2 = _lambdas()
