"""What the demonstration's rows say: the numbers, and a sentence that is true whatever they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rwalk.demonstration.runs import CLOSED_FORM, NAMES, TASKS, UNPROTECTED
from rwalk.report.summary import Summary, mean_and_deviation

INTRODUCTION = (
    f"a demonstration: {TASKS} tasks, learned one after the other; no old data are kept",
    "each task is to read handwritten digits, with their pixels shuffled in a way of its own",
)
WAYS = (
    "EWC, EWC++, PI and RWalk hold the weights that old tasks need. Closed form (rwalk.IncrementalClassifier) "
    "keeps sums of the examples' features instead of training a network."
)
SETTINGS = "λ of each method was chosen on held-out training data, never on these test data."


@dataclass(frozen=True)
class Way:
    """One way to learn the tasks: what it recognises of the first after each of them, and of all in the end."""

    method: str
    first: NDArray[np.float64]  # percent [seed, task]; NaN where a run stopped
    average: NDArray[np.float64]  # percent [seed]

    @property
    def name(self) -> str:
        return NAMES[self.method]

    @property
    def curve(self) -> list[float]:
        """Percent of the first task, after each task: the mean over the seeds."""
        return [mean_and_deviation(after)[0] for after in self.first.T]

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
        for method in NAMES
    ]


def sentence(ways: Sequence[Way]) -> str:
    """After the last task, how much of the first is recognised: unprotected, protected, in closed form."""
    by_method = {way.method: way for way in ways if way.is_known}
    protected = [way for way in by_method.values() if _is_protected(way)]
    said = []
    if UNPROTECTED in by_method:
        said.append(f"{by_method[UNPROTECTED].left:.0f} % of the time without protection")
    if protected:
        said.append(f"{_range([way.left for way in protected])} with {_either([way.name for way in protected])}")
    if CLOSED_FORM in by_method:
        said.append(f"{by_method[CLOSED_FORM].left:.0f} % in closed form")
    if not said:
        return "No run came to its end, so there is nothing to say."
    tasks = ways[0].first.shape[1]
    return f"After {_number(tasks)} tasks the first is recognised {_listed(said)}."


def pairs(ways: Sequence[Way]) -> str:
    """How often a protected run kept more of the first task than the unprotected one of the same seed."""
    bare = next(way for way in ways if way.method == UNPROTECTED).first[:, -1]
    others = np.array([way.first[:, -1] for way in ways if _is_protected(way)])
    compared = np.isfinite(others - bare)
    more, cases = int(((others > bare) & compared).sum()), int(compared.sum())
    return (
        "Protected networks kept more of task 1 than the unprotected one with the same seed "
        f"in {more} of {cases} cases."
    )


def _is_protected(way: Way) -> bool:
    return way.method not in (UNPROTECTED, CLOSED_FORM)


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
