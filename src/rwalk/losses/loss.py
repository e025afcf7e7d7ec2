"""Base of the losses: a few hyper-parameters, and one number per run from the network's outputs and the batch.

A loss may need more than labels, and declares it: the outputs of the network before the task, or tensors that the
memory stores with an exemplar. Its state is a dict of named tensors of any shape, so that checkpoints need no
loss-specific code.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar, NamedTuple

from torch import Tensor

from rwalk.data.memory import Replay
from rwalk.decision_rules import Classifier, Logits
from rwalk.methods.method import Number, State


class Batch(NamedTuple):
    """The inputs of a loss beside the network's logits [R, B, C].

    Args:
        y: Labels [R, B].
        head: Added to the logits: 0 for trained classes, −∞ for the others; [C] or [R, B, C].
        new: The task's own classes, as booleans [C].
        old: The other classes seen before, as booleans [C].
        taught: Logits of the loss's teacher [R, B, C].
        is_kept: Whether an example comes from the memory [R, B]; None until the memory has one.
        kept: Tensors stored with exemplars [R, B, …]; arbitrary values for other examples.
        rivals: Groups of competing classes [G, C], for a loss with a teacher in a scenario that has groups.
        times: How often each of these groups was taught before this task [G].
        task: The number of earlier tasks [], for a loss that `tells_task`.
    """

    y: Tensor
    head: Tensor
    new: Tensor
    old: Tensor
    taught: Tensor | None = None
    is_kept: Tensor | None = None
    kept: Mapping[str, Tensor] = MappingProxyType({})
    rivals: Tensor | None = None
    times: Tensor | None = None
    task: Tensor | None = None


def spread(number: Number, over: Tensor) -> Number:
    """A hyper-parameter, shaped to multiply a tensor [R, …] if it differs between runs."""
    return number.reshape(-1, *(1 for _ in over.shape[1:])) if isinstance(number, Tensor) else number


@dataclass(frozen=True)
class Loss:
    """Base of all losses; a subclass is a frozen record of its hyper-parameters.

    Attributes:
        name: Its name on the command line, if it is an algorithm.
        replay: How exemplars are mixed into batches, if that is part of the algorithm.
        needs_memory: Whether it requires exemplars.
        tells_kept: Whether it treats exemplars differently, and needs `Batch.is_kept`.
        tells_task: Whether it depends on the number of the task, and needs `Batch.task`.
        keeps: "logits" or "features" that the memory stores with an exemplar at its task's end, for `Batch.kept`.
        everything: Whether it learns from the data of all tasks so far.
        memoryless: Whether it has no use for exemplars.
        afresh: Whether every task begins with a new network.
        classifier: How examples are finally classified.
    """

    name: ClassVar[str] = ""
    summary: ClassVar[str] = ""
    replay: ClassVar[Replay | None] = None
    needs_memory: ClassVar[bool] = False
    tells_kept: ClassVar[bool] = False
    tells_task: ClassVar[bool] = False
    keeps: ClassVar[tuple[str, ...]] = ()
    everything: ClassVar[bool] = False
    memoryless: ClassVar[bool] = False
    afresh: ClassVar[bool] = False
    classifier: ClassVar[Classifier] = Logits()

    def begin_task(self, state: State, theta: Tensor, task: int) -> None:
        """A task begins, the first being 0.

        State "teacher" is the θ of a network, whose logits in evaluation mode are `Batch.taught`. Whenever a loss
        sets it, the training loop keeps the network's buffers of that moment beside it, so that batch norm uses
        the teacher's own running statistics.
        """

    def __call__(self, logits: Tensor, batch: Batch) -> Tensor:
        """One loss per run: [R, B, C] → [R]."""
        raise NotImplementedError


class Taught(Loss):
    """A loss that learns from the network as it was before the task."""

    def begin_task(self, state: State, theta: Tensor, task: int) -> None:
        if task:
            state["teacher"] = theta.clone()
