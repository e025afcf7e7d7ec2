"""The version of our numerics: a history of the changes that moved results.

A row records the number under which its run was trained. A change of a run's computation needs a line here.
Only the affected runs are then trained again, and the line is the reason that is shown. A change that moves
accuracies by rounding alone is listed too, but finished rows stay valid.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from rwalk import parts
from rwalk.losses import Taught

if TYPE_CHECKING:
    from rwalk.studies.specs import RunSpec


class NumericsChange(NamedTuple):
    """From this number on, the results of the affected runs are different."""

    number: int
    what: str
    affects: Callable[[RunSpec], bool]
    rounding: bool = False  # the difference is one of rounding: finished rows stay valid


def _teacher_with_buffers(run: RunSpec) -> bool:
    """Whether a loss of this run distils, on a network that has, or may have, batch norm."""
    distils = ":" in run.method or issubclass(parts.like(run.method) or object, Taught)
    return distils and (":" in run.network or run.network.startswith("resnet"))


def _augmented_squares(run: RunSpec) -> bool:
    """Whether squares of single, augmented examples are observed in every step."""
    observes = ":" in run.method or "square" in getattr(parts.like(run.method), "wants", ())
    return observes and run.numbers.get("fisher") == "example" and bool(run.training.augment)


def _squares_of_own_layers(run: RunSpec) -> bool:
    """Whether squares of single examples are taken of a user's network: its layers may be tied or reshaped."""
    return ":" in run.network and run.method in ("ewc", "ewc-online") and run.numbers.get("fisher") in SINGLE


SINGLE = ("example", "exact")  # kinds of a Fisher that squares gradients of single examples
FIRST = 1  # of rows that were written before rows named a number
HISTORY = (
    NumericsChange(2, "EWC measures its Fisher on shuffled batches, no longer class by class",
           lambda run: run.method == "ewc" and run.numbers.get("fisher", "batch") == "batch"),
    NumericsChange(3, "the proximal form has a default λ of its own",
           lambda run: run.method in ("ewc", "ewc++", "ewc-online", "l2", "mas", "pi", "rwalk")
           and run.numbers.get("penalty") == "proximal" and "lam" not in run.numbers),
    NumericsChange(4, "accuracies are counted in integers, no longer as quotients in float32", lambda run: True,
           rounding=True),
    NumericsChange(5, "a teacher with batch norm has its own running statistics, no longer the student's",
           _teacher_with_buffers),
    NumericsChange(6, "squares of single examples are taken of their augmented inputs", _augmented_squares),
    NumericsChange(7, "EWC's squares of single examples come from one pass over a batch if all layers are linear",
           lambda run: run.method in ("ewc", "ewc-online") and run.numbers.get("fisher") == "example",
           rounding=True),
    NumericsChange(8, "EWC's squares of single examples allow for linear layers that are tied or reshaped",
           _squares_of_own_layers),
)  # fmt: skip


def number_of(run: RunSpec) -> int:
    """The number of a run's results today."""
    return max((change.number for change in HISTORY if change.affects(run)), default=FIRST)


def changes_since(number: int, run: RunSpec) -> list[str]:
    """The changes of a run's results since a number, except those of rounding."""
    return [each.what for each in HISTORY if each.number > number and not each.rounding and each.affects(run)]
