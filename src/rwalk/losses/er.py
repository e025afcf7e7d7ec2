"""ER (Chaudhry et al. 2019, "On tiny episodic memories"): the task's own examples and as many kept ones, alike."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rwalk.data.memory import Replay
from rwalk.losses.cross_entropy import CrossEntropy


@dataclass(frozen=True)
class ER(CrossEntropy):
    """Mean cross entropy over both. With a reservoir, which is the authors', also the task's own are replayed."""

    name: ClassVar[str] = "er"
    summary: ClassVar[str] = "experience replay: as many exemplars as new examples in every batch"
    replay: ClassVar[Replay | None] = "beside"
    needs_memory: ClassVar[bool] = True
