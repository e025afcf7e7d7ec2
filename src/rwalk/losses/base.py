"""What a loss is: a few hyper-parameters, and one number per run from the network's outputs and the batch.

A loss may ask for more than labels, and declares it: the network as it was before the task, or what the memory has
stored with an exemplar. Its state is a dict of named tensors, of any shape, so that checkpoints need no
loss-specific code.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar, NamedTuple

from torch import Tensor

from rwalk.classifiers import Classifier, Logits
from rwalk.data.batches import Replay

Number = float | Tensor
State = dict[str, Tensor]


class Batch(NamedTuple):
    """What a loss sees beside the network's logits [R, B, C]."""

    y: Tensor  # labels [R, B]
    head: Tensor  # added to the logits: 0 for the classes that are trained, −∞ for the others; [C] or [R, B, C]
    new: Tensor  # which classes are the task's own [C]
    old: Tensor  # which were seen before it and are not among them [C]
    taught: Tensor | None = None  # logits [R, B, C] of the loss's teacher
    is_kept: Tensor | None = None  # which examples come from the memory [R, B]; None until it holds any
    kept: Mapping[str, Tensor] = MappingProxyType({})  # what is stored beside them [R, B, …]; elsewhere, anything
    rivals: Tensor | None = (
        None  # of a teacher: which classes compete with each other [G, C], if a scenario says so
    )
    times: Tensor | None = None  # how often each of those groups was taught before this task [G]
    task: Tensor | None = None  # how many tasks came before this one [], for a loss that asks


def spread(number: Number, over: Tensor) -> Number:
    """A hyper-parameter, shaped to multiply a tensor [R, …] if it differs between runs."""
    return number.reshape(-1, *(1 for _ in over.shape[1:])) if isinstance(number, Tensor) else number


@dataclass(frozen=True)
class Loss:
    """Base of all losses; a subclass is a frozen record of its hyper-parameters.

    name          its name on the command line, if it is an algorithm
    replay        how exemplars are mixed into batches, if that is part of the algorithm
    needs_memory  whether it requires exemplars
    tells_kept    whether it treats exemplars differently: then `Batch.is_kept` says which examples are exemplars
    tells_task    whether it depends on the number of the task: then `Batch.task` holds it
    keeps         what the memory stores with an exemplar: "logits" or "features", as they are at its task's end;
                  `Batch.kept` returns it, and `Batch.is_kept` says where
    everything    whether it learns from the data of all tasks so far
    memoryless    whether it has no use for exemplars
    afresh        whether every task begins with a new network
    classifier    how examples are finally classified
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
