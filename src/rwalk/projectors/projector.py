"""Base of the projectors: a new gradient from the gradient and those of old exemplars."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from rwalk.data.memory import Replay


@dataclass(frozen=True)
class Projector:
    """Base of all projectors; a subclass is a frozen record of its hyper-parameters.

    Attributes:
        per_task: Whether there is one gradient per old task, from all its exemplars; otherwise one in all, from a
            batch of all exemplars.
        replay: Exemplars only constrain: training on them as well would be another algorithm.
    """

    name: ClassVar[str] = ""
    summary: ClassVar[str] = ""
    per_task: ClassVar[bool] = True
    replay: ClassVar[Replay | None] = "none"
    needs_memory: ClassVar[bool] = True

    def project(self, grad: Tensor, memories: Tensor) -> Tensor:
        """The gradient [R, P] to follow, given those of the old exemplars [R, k, P]."""
        raise NotImplementedError
