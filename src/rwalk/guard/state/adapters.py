"""Adapters of a guard's model: which to hold, and what happens when one is merged and another begun."""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

from rwalk.errors import InputError
from rwalk.guard.select import some
from rwalk.guard.state import lora as products
from rwalk.guard.state.guard_state import Learned, Pieces, warn_if_moved
from rwalk.guard.state.lora import Target
from rwalk.guard.state.parameter import Piece


def targets(lora: str, model: nn.Module, chosen: Mapping[str, nn.Parameter]) -> Mapping[str, Target]:
    """What to hold of these parameters: the factors of an adapter, or their product."""
    return products.in_place_of_factors(model, chosen) if lora == "product" else chosen


def follow(learned: Learned, pieces: Pieces) -> bool:
    """Take these parameter states from here on; whether adapters were merged and replaced since the last task."""
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
    return bool(anew)


def _is_adapted_anew(before: Piece, after: Piece) -> bool:
    """Whether a weight has an adapter that it did not have, or lost one."""
    return before is not after and (before.storage.product or after.storage.product) is not None
