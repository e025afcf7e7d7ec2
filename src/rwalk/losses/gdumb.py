"""GDumb (Prabhu et al. 2020): a greedy balanced memory, and a new network that has seen nothing else.

Their sampler takes an example while its class has less than its share, and drops one of the largest class. If the
examples of a task come in random order, it keeps a random choice of every class, all of one size. The sampler
`uniform` does the same under a total budget, except for the remainder of the division.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rwalk.data.memory import Replay
from rwalk.losses.cross_entropy import CrossEntropy


@dataclass(frozen=True)
class GDumb(CrossEntropy):
    """Mean cross entropy over exemplars alone; an epoch is a pass over them."""

    name: ClassVar[str] = "gdumb"
    summary: ClassVar[str] = "a new network for every task, trained on exemplars alone: does a method beat that?"
    replay: ClassVar[Replay | None] = "alone"
    needs_memory: ClassVar[bool] = True
    afresh: ClassVar[bool] = True
