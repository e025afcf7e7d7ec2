"""The demonstration: its study, and the numbers and sentences that follow from its rows.

The same handwritten digits are learned five times, each time with their pixels shuffled anew.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rwalk.part_names import GUARD, spelled
from rwalk.report import wording
from rwalk.report.seed_summaries import Summary
from rwalk.report.welch_test import mean_and_deviation
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
INTRODUCTION = (
    f"a demonstration of {TASKS} tasks, which are learned one after the other",
    "each task: read handwritten digits, with the pixels shuffled anew",
)
WAYS = (
    "EWC, EWC++, PI and RWalk hold the weights that old tasks need, the more firmly the larger λ is. Guard "
    "(rwalk.Guard, with its defaults) holds the network's outputs on 128 inputs of each old task, without labels. "
    "Closed form (rwalk.IncrementalClassifier) trains no network. It keeps sums of the examples' features, so it "
    "cannot forget; a network is for data whose features have to be learned."
)
CHOSEN = "λ of each method was chosen on held-out training data, never on these test data."


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


@dataclass(frozen=True)
class Way:
    """One method: its accuracy on the first task after each task, and on all tasks in the end."""

    method: str
    first: NDArray[np.float64]  # percent [seed, task]; NaN where a run stopped
    average: NDArray[np.float64]  # percent [seed]

    @property
    def name(self) -> str:
        return spelled(self.method)

    @property
    def curve(self) -> list[float]:
        """Percent of the first task, after each task: the mean over the seeds."""
        return [mean for mean, _ in self.points]

    @property
    def points(self) -> list[tuple[float, float]]:
        """Mean and standard deviation over the seeds, after each task; NaN for the deviation of a single seed."""
        return [mean_and_deviation(after) for after in self.first.T]

    @property
    def left(self) -> float:
        return self.curve[-1]

    @property
    def is_known(self) -> bool:
        return bool(np.isfinite(self.left))


def ways(summaries: Sequence[Summary]) -> list[Way]:
    """In the order in which they are shown."""
    found = {each.method: each for each in summaries}
    return [
        Way(method, found[method].accuracy["single"][..., 0] * 100, found[method].A["single"] * 100)
        for method in SETTINGS
    ]


def sentence(ways: Sequence[Way]) -> str:
    """After the last task, how much of the first is recognised: unprotected, protected, in closed form."""
    known = {way.method: way.left for way in ways if way.is_known}
    protected = [method for method in known if method not in (UNPROTECTED, GUARD, CLOSED_FORM)]
    said = []
    if UNPROTECTED in known:
        said.append(f"{known[UNPROTECTED]:.0f} % of the time without protection")
    if protected:
        low, high = (f"{pick(known[method] for method in protected):.0f}" for pick in (min, max))
        span = low if low == high else f"{low} to {high}"
        said.append(f"{span} % with {wording.listed([spelled(method) for method in protected], 'or')}")
    if GUARD in known:
        said.append(f"{known[GUARD]:.0f} % with {spelled(GUARD)}")
    if CLOSED_FORM in known:
        said.append(f"{known[CLOSED_FORM]:.0f} % in closed form")
    if not said:
        return "No run finished, so there is no result."
    comma = "," * (len(said) > 2)
    listed = ", ".join(said[:-1]) + f"{comma} and {said[-1]}" if len(said) > 1 else said[0]
    return f"After {_number(ways[0].first.shape[1])} tasks the first is recognised {listed}."


def setting(ways: Sequence[Way]) -> str:
    """The tasks, and the number of seeds."""
    seeds, tasks = ways[0].first.shape
    plural = "s; ± is their standard deviation" if seeds > 1 else ""
    return (
        f"{_number(tasks).capitalize()} tasks, one after the other: handwritten digits, with the pixels "
        f"shuffled in a new way for each task. No old examples are kept. Means over {_number(seeds)} seed{plural}."
    )


def _number(count: int) -> str:
    words = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
    return words[count] if count < len(words) else str(count)
