"""A loss's teacher: the θ and the buffers of an earlier network, kept in the loss's state."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from rwalk.losses import Loss
from rwalk.losses.loss import State

THETA = "teacher"
BUFFER = "teacher."  # prefix of the names of its buffers


def begin_task(loss: Loss, state: State, theta: Tensor, buffers: Mapping[str, Tensor], task: int) -> None:
    """Begin a task; if the loss sets its teacher, copy the network's buffers beside it."""
    known = state.get(THETA)
    before = None if known is None else known.clone()
    loss.begin_task(state, theta, task)
    teacher = state.get(THETA)
    if teacher is None:
        return
    # A tensor on the device "meta" has no values to compare.
    if teacher is not known or before is None or teacher.is_meta or not teacher.equal(before):
        state |= {BUFFER + name: buffer.clone() for name, buffer in buffers.items()}


def tensors(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The teacher's tensors in a state or in the inputs of a step; empty without a teacher."""
    return {name: each for name, each in state.items() if name == THETA or name.startswith(BUFFER)}


def buffers(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The teacher's buffers [R, …], by their names in the network."""
    return {name.removeprefix(BUFFER): each for name, each in state.items() if name.startswith(BUFFER)}
