"""ER (Chaudhry et al. 2019, "On tiny episodic memories"): the task's own examples and as many kept ones, alike."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from rwalk.data.batches import Replay
from rwalk.losses.base import Batch, Loss
from rwalk.losses.cross_entropy import CrossEntropy
from rwalk.losses.heads import cross_entropy, each_cross_entropy, mean_over


@dataclass(frozen=True)
class ER(CrossEntropy):
    """Mean cross entropy over both. With a reservoir, which is the authors', also the task's own are replayed."""

    name: ClassVar[str] = "er"
    summary: ClassVar[str] = "experience replay: as many exemplars as new examples in every batch"
    replay: ClassVar[Replay | None] = "beside"
    needs_memory: ClassVar[bool] = True


@dataclass(frozen=True)
class ERByTasks(Loss):
    """The new task weighs as one of the k seen so far: 1/k its own examples, 1 − 1/k those kept of the others.

    So van de Ven et al. (2022) replay.
    """

    name: ClassVar[str] = "er-tasks"
    summary: ClassVar[str] = "experience replay where the new task weighs as one of all that were seen"
    replay: ClassVar[Replay | None] = "beside"
    needs_memory: ClassVar[bool] = True
    tells_kept: ClassVar[bool] = True
    tells_task: ClassVar[bool] = True

    def __call__(self, logits: Tensor, batch: Batch) -> Tensor:
        if batch.is_kept is None:
            return cross_entropy(logits + batch.head, batch.y)
        assert batch.task is not None
        wrong, new = each_cross_entropy(logits + batch.head, batch.y), 1 / (batch.task + 1)
        return new * mean_over(wrong, ~batch.is_kept) + (1 - new) * mean_over(wrong, batch.is_kept)
