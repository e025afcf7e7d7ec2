"""A loss's teacher: the θ and the buffers of an earlier network, kept in the loss's state."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from rwalk import private_torch
from rwalk.losses import Loss
from rwalk.methods.method import State

THETA = "teacher"
BUFFER = "teacher."  # prefix of the names of its buffers


def begin_task(loss: Loss, state: State, theta: Tensor, buffers: Mapping[str, Tensor], task: int) -> None:
    """Begin a task; if the loss sets its teacher, copy the network's buffers beside it."""
    known = state.get(THETA)
    writes = None if known is None else private_torch.writes(known)
    loss.begin_task(state, theta, task)
    teacher = state.get(THETA)
    # Overwriting it counts as setting it, also with the values that it has.
    if teacher is not None and (teacher is not known or private_torch.writes(teacher) != writes):
        state |= {BUFFER + name: buffer.clone() for name, buffer in buffers.items()}


def tensors(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The teacher's tensors in a state or in the inputs of a step; empty without a teacher."""
    return {name: each for name, each in state.items() if name == THETA or name.startswith(BUFFER)}


def buffers(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The teacher's buffers [R, …], by their names in the network."""
    return {name.removeprefix(BUFFER): each for name, each in state.items() if name.startswith(BUFFER)}
