"""Outcome → row: a run's settings, its accuracies, A, F and I by both heads, and what made it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rwalk import metrics
from rwalk.metrics import HEADS
from rwalk.studies.lams import Choice
from rwalk.studies.specs import RunSpec, reference_of
from rwalk.studies.store import SCHEMA, Row


def row_of(
    spec: RunSpec, outcome: Mapping[str, Any], references: Mapping[str, Any], choice: Choice | None = None
) -> Row:
    """The row of a trained run; `references` are the accuracies of reference models by their runs' hashes.

    Where the run chose its λ, the row names it, and how all that were tried did on the judges.
    """
    reference = _reference_of(spec, references, tasks=len(outcome["accuracy"]["single"]))
    row: Row = {"schema": SCHEMA, "hash": spec.hash()}
    row |= {"method": spec.method, "lam": spec.lam if choice is None else choice.lam, "seed": spec.seed}
    row |= {} if choice is None else {"tried": choice.judged}
    for head in HEADS:
        row[head] = _measures(np.array(outcome["accuracy"][head], dtype=float), reference[head])
    row["accuracy"] = outcome["accuracy"]
    row |= {name: outcome[name] for name in ("within", "calibration") if name in outcome}
    row["reference"] = {head: [_number(value) for value in reference[head]] for head in HEADS}
    row["stopped"] = outcome["stopped"]
    row["spec"] = spec.to_json()
    row["made"] = outcome["made"]
    return row


def _reference_of(spec: RunSpec, references: Mapping[str, Any], tasks: int) -> dict[str, NDArray[np.float64]]:
    """a*_k by head, NaN where no reference was trained."""
    found = [references.get(reference_of(spec, k).hash()) for k in range(tasks)]
    return {head: np.array([each[head] if each else np.nan for each in found]) for head in HEADS}


def _measures(a: NDArray[np.float64], reference: NDArray[np.float64]) -> dict[str, float | None]:
    return {
        "A": _number(metrics.average_accuracy(a)),
        "F": _number(metrics.forgetting(a)),
        "I": _number(metrics.intransigence(a, reference)),
    }


def _number(value: Any) -> float | None:
    """JSON has no NaN."""
    return None if np.isnan(value) else float(value)
