"""The demonstration in numbers and sentences, which follow from its rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rwalk.demonstration.runs import CLOSED_FORM, SETTINGS, TASKS, UNPROTECTED
from rwalk.part_names import GUARD, spelled
from rwalk.report.seed_summaries import Summary
from rwalk.report.welch_test import mean_and_deviation

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
LAMBDAS = "λ of each method was chosen on held-out training data, never on these test data."


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
    said = _compared({way.method: way.left for way in ways}, "of the time ")
    if not said:
        return "No run finished, so there is no result."
    return f"After {_number(ways[0].first.shape[1])} tasks the first is recognised {said}."


def of_all(ways: Sequence[Way]) -> str:
    """The same of all tasks, where the order may be another."""
    said = _compared({way.method: mean_and_deviation(way.average)[0] for way in ways})
    return f"Over all tasks: {said}." if said else ""


def _compared(percent: Mapping[str, float], measure: str = "") -> str:
    """Unprotected, protected, in closed form: those with a result."""
    known = {method: value for method, value in percent.items() if np.isfinite(value)}
    protected = [method for method in known if method not in (UNPROTECTED, GUARD, CLOSED_FORM)]
    said = []
    if UNPROTECTED in known:
        said.append(f"{known[UNPROTECTED]:.0f} % {measure}without protection")
    if protected:
        names = _either([spelled(method) for method in protected])
        said.append(f"{_range([known[method] for method in protected])} with {names}")
    if GUARD in known:
        said.append(f"{known[GUARD]:.0f} % with {spelled(GUARD)}")
    if CLOSED_FORM in known:
        said.append(f"{known[CLOSED_FORM]:.0f} % in closed form")
    return _listed(said) if said else ""


def setting(ways: Sequence[Way]) -> str:
    """The tasks, and the number of seeds."""
    seeds, tasks = ways[0].first.shape
    plural = "s; ± is their standard deviation" if seeds > 1 else ""
    return (
        f"{_number(tasks).capitalize()} tasks, one after the other: handwritten digits, with the pixels "
        f"shuffled in a new way for each task. No old examples are kept. Means over {_number(seeds)} seed{plural}."
    )


def pairs(ways: Sequence[Way]) -> str:
    """How often a protected run kept more of the first task than the unprotected one of the same seed."""
    bare = next(way for way in ways if way.method == UNPROTECTED).first[:, -1]
    others = np.array([way.first[:, -1] for way in ways if _is_protected(way)])
    compared = np.isfinite(others - bare)
    more, cases = int(((others > bare) & compared).sum()), int(compared.sum())
    return (
        "Held weights kept more of task 1 than the unprotected network with the same seed "
        f"in {more} of {cases} cases."
    )


def _is_protected(way: Way) -> bool:
    return way.method not in (UNPROTECTED, GUARD, CLOSED_FORM)


def _range(values: Sequence[float]) -> str:
    low, high = f"{min(values):.0f}", f"{max(values):.0f}"
    return f"{low} %" if low == high else f"{low} to {high} %"


def _either(names: Sequence[str]) -> str:
    return " or ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def _listed(parts: Sequence[str]) -> str:
    *first, last = parts
    return ", ".join(first) + (" and " if len(parts) == 2 else ", and " if first else "") + last


def _number(count: int) -> str:
    words = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
    return words[count] if count < len(words) else str(count)
