"""What a run costs: its time, and what it has to keep from task to task beside the network itself."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from rwalk.engine.fleet import Fleet


class Cost(NamedTuple):
    """Of one run: seconds of training and evaluation (a fleet's, shared by its runs), and bytes kept."""

    seconds: float
    kept: int


def kept_by(fleet: Fleet) -> int:
    """Bytes per run: importances, anchors, a teacher, sums, exemplars; neither the network nor its optimizer."""
    states = (fleet.state, fleet.loss_state, fleet.held)
    held = sum(tensor.nbytes for state in states for tensor in state.values())
    groups = fleet.memory.groups if fleet.memory else []
    held += sum(tensor.nbytes for group in groups for tensor in group.stored.values())
    exemplars = sum(group.examples.shape[-1] for group in groups)
    if fleet.learner.reservoir is not None:
        exemplars += min(fleet.learner.reservoir, int(fleet.held["seen"]))
    return held // fleet.runs + exemplars * math.prod(fleet.stream.shape) * fleet.theta.element_size()
