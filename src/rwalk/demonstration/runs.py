"""The demonstration's study: the same handwritten digits five times, each time with their pixels shuffled anew."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from rwalk.studies.rows import Row
from rwalk.studies.specs import RunSpec, StreamSpec
from rwalk.training import Training

TASKS, SEEDS, EPOCHS = 5, 3, 20
UNPROTECTED, CLOSED_FORM = "vanilla", "ridge"
# The λ with the highest validation accuracy among those tried, by decades: results/demonstration-validation.
LAMBDAS = {"ewc": 1e5, "ewc++": 1e3, "pi": 0.1, "rwalk": 1.0}
SETTINGS: dict[str, dict[str, Any]] = {
    UNPROTECTED: {},
    **{method: {"lam": lam} for method, lam in LAMBDAS.items()},
    CLOSED_FORM: {"features": "vectors", "size": 1000},  # half the usual size, to save time
}


def runs() -> tuple[RunSpec, ...]:
    """Every method with every seed."""
    return tuple(
        RunSpec(
            StreamSpec(permuted=TASKS),
            method=method,
            numbers=SETTINGS[method],
            training=Training(epochs=EPOCHS),
            seed=seed,
        )
        for method in SETTINGS
        for seed in range(SEEDS)
    )


def are_all_in(rows: Collection[Row]) -> bool:
    """Whether these rows are the demonstration's, no more and no fewer."""
    return {row.hash for row in rows} == {run.hash() for run in runs()}
