"""The network that a loss learns from: θ and the buffers that belong to it."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from rwalk.losses import Loss
from rwalk.losses.base import State

THETA = "teacher"
BUFFER = "teacher."  # before the name of a buffer


def begin_task(loss: Loss, state: State, theta: Tensor, buffers: Mapping[str, Tensor], task: int) -> None:
    """Begin a task; if the loss sets its teacher, keep a copy of the buffers beside it."""
    known = state.get(THETA)
    before = None if known is None else known.clone()
    loss.begin_task(state, theta, task)
    teacher = state.get(THETA)
    is_new = teacher is not known or (teacher is not None and before is not None and not _equal(teacher, before))
    if teacher is not None and is_new:
        state |= {BUFFER + name: buffer.clone() for name, buffer in buffers.items()}


def tensors(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The teacher's tensors, as a state or the inputs of a step hold them; none without a teacher."""
    return {name: each for name, each in state.items() if name == THETA or name.startswith(BUFFER)}


def buffers(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The teacher's buffers [R, …], by their names in the network."""
    return {name.removeprefix(BUFFER): each for name, each in state.items() if name.startswith(BUFFER)}


def _equal(one: Tensor, other: Tensor) -> bool:
    return not one.is_meta and one.equal(other)
