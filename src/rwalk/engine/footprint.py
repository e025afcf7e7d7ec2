"""What a run costs: its time, and what it has to keep from task to task beside the network itself."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from rwalk.engine.fleet import Fleet


class Cost(NamedTuple):
    """Of a fleet's runs: seconds of training and evaluation, shared by all, and the bytes that each has kept."""

    seconds: float  # of one
    kept: list[int]


def kept_by(fleet: Fleet) -> list[int]:
    """Bytes by run: importances, anchors, a teacher, sums, exemplars; neither the network nor its optimizer."""
    held = sum(tensor.nbytes for state in (fleet.loss_state, fleet.held) for tensor in state.values())
    groups = fleet.memory.groups if fleet.memory else []
    held += sum(tensor.nbytes for group in groups for tensor in group.stored.values())
    exemplars = sum(group.examples.shape[-1] for group in groups)
    if fleet.learner.reservoir is not None:
        exemplars += min(fleet.learner.reservoir, int(fleet.held["seen"]))
    common = held // fleet.runs + exemplars * math.prod(fleet.stream.shape) * fleet.theta.element_size()
    found = []
    for walker in fleet.walkers:
        runs = walker.rows.stop - walker.rows.start
        own = sum(vector.nbytes for vector in walker.state.values()) // runs
        found += [common + own] * runs
    return found
