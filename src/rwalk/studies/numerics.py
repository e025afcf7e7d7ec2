"""Which numbers this version of rwalk computes: a history of the changes that moved a result.

A row says under which number its run was trained. Whoever changes what a run computes, by more than rounding, adds
a line here; rows of the runs it affects are then trained anew, and the line says why. Nothing else is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from rwalk.studies.specs import RunSpec


class Change(NamedTuple):
    """From this number on, the results of the runs that it affects are others."""

    number: int
    what: str
    affects: Callable[[RunSpec], bool]


FIRST = 1  # of rows that were written before rows named a number
HISTORY = (
    Change(2, "EWC measures its Fisher on shuffled batches, no longer class by class",
           lambda run: run.method == "ewc" and run.numbers.get("fisher", "batch") == "batch"),
    Change(3, "the proximal form has a default λ of its own",
           lambda run: run.method in ("ewc", "ewc++", "l2", "pi", "rwalk")
           and run.numbers.get("penalty") == "proximal" and "lam" not in run.numbers),
)  # fmt: skip


def number_of(run: RunSpec) -> int:
    """The number of a run's results today."""
    return max((change.number for change in HISTORY if change.affects(run)), default=FIRST)


def changes_since(number: int, run: RunSpec) -> list[str]:
    """What has moved a run's results since a number."""
    return [change.what for change in HISTORY if change.number > number and change.affects(run)]
