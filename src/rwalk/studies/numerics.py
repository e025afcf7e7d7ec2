"""The version of our numerics: a history of the changes that moved results.

A row records the number under which its run was trained. Whoever changes what a run computes, by more than
rounding, adds a line here; the runs it affects, and no others, are then trained again, and the line says why.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from rwalk.studies.specs import RunSpec


class Change(NamedTuple):
    """From this number on, the results of the affected runs are different."""

    number: int
    what: str
    affects: Callable[[RunSpec], bool]


FIRST = 1  # of rows that were written before rows named a number
HISTORY = (
    Change(2, "EWC measures its Fisher on shuffled batches, no longer class by class",
           lambda run: run.method == "ewc" and run.numbers.get("fisher", "batch") == "batch"),
    Change(3, "the proximal form has a default λ of its own",
           lambda run: run.method in ("ewc", "ewc++", "ewc-online", "l2", "mas", "pi", "rwalk")
           and run.numbers.get("penalty") == "proximal" and "lam" not in run.numbers),
)  # fmt: skip


def number_of(run: RunSpec) -> int:
    """The number of a run's results today."""
    return max((change.number for change in HISTORY if change.affects(run)), default=FIRST)


def changes_since(number: int, run: RunSpec) -> list[str]:
    """What has changed a run's results since a number."""
    return [change.what for change in HISTORY if change.number > number and change.affects(run)]
