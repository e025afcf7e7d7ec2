"""Adapters of a guard's model: which to hold, and what becomes of it when one is merged and another begun."""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

from rwalk.errors import InputError
from rwalk.guard.drift.reference import Old
from rwalk.guard.select import some
from rwalk.guard.state import lora as products
from rwalk.guard.state.guard_state import Pieces, warn_if_moved
from rwalk.guard.state.lora import Target
from rwalk.guard.state.parameter import Piece
from rwalk.guard.work import Work
from rwalk.methods import Vanilla


def targets(work: Work, model: nn.Module, chosen: Mapping[str, nn.Parameter]) -> Mapping[str, Target]:
    """What to hold of these parameters: springs hold the product of an adapter's factors, not each of them."""
    springs = not isinstance(work.learned.method, Vanilla)
    return products.in_place_of_factors(model, chosen) if springs and work.lora == "product" else chosen


def follow(work: Work, model: nn.Module, pieces: Pieces) -> None:
    """These are the pieces from here on; adapters may have been merged and replaced since the last task."""
    learned = work.learned
    before = {piece.name: piece for piece in learned.started}
    after = {piece.name: piece for piece in pieces.values() if piece}
    anew = [name for name in before if name in after and _is_adapted_anew(before[name], after[name])]
    if anew and learned.steps:
        raise InputError(
            f"the adapter of {some(anew)} was replaced in the middle of a task: guard.consolidate() first"
        )
    learned.pieces = pieces
    if anew:
        warn_if_moved(learned, "merge an adapter (merge_and_unload) before you make another")
        if work.keeper.old is not None:  # the model says what it said, by other parameters
            work.keeper.old = Old.of(model, learned.anchors())


def _is_adapted_anew(before: Piece, after: Piece) -> bool:
    """Whether a weight has an adapter that it did not have, or lost one."""
    return before is not after and (before.storage.product or after.storage.product) is not None
