"""Method groups: consecutive runs of a fleet that share a method, and what one step does to their parameters.

One gradient serves all runs of a fleet. Everything after it is elementwise and differs from method to method, so
runs of different methods can share a fleet: each method updates its own rows of θ, chunk by chunk.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, fields
from itertools import groupby
from typing import NamedTuple

import torch
from torch import Tensor

from rwalk.engine.optimizers import Optimizer
from rwalk.errors import InputError
from rwalk.learners import Learner
from rwalk.methods.method import Method, State
from rwalk.parts import per_run, stack


@dataclass
class MethodGroup:
    """Consecutive rows of θ, the method of these runs, and the method's state for them."""

    rows: slice
    method: Method
    state: State
    prefix: str  # distinguishes the names of its vectors in the state of the whole fleet

    def named(self) -> State:
        """Its vectors, under their names in the fleet's state."""
        return {self.prefix + name: vector for name, vector in self.state.items()}


def method_groups(learners: Sequence[Learner], theta: Tensor, columns: bool) -> list[MethodGroup]:
    """Group consecutive runs with the same kind of method; see `parts.stack` for `columns`."""
    kinds = [list(each) for _, each in groupby((each.method for each in learners), key=kind)]
    if len(kinds) > 1 and not all(can_be_mixed(methods[0]) for methods in kinds):
        raise InputError("a method that uses a task's data again, or single examples, needs a fleet of its own")
    found, first = [], 0
    for number, methods in enumerate(kinds):
        rows = slice(first, first + len(methods))
        method = stack(methods, theta, columns)
        prefix = f"{number}-" if len(kinds) > 1 else ""
        found.append(MethodGroup(rows, method, method.start(theta[rows]), prefix))
        first = rows.stop
    return found


def kind(method: Method) -> Hashable:
    """Equal for methods that differ only in hyper-parameters that may differ within a group."""
    own = per_run(type(method))
    return type(method), *(getattr(method, each.name) for each in fields(method) if each.name not in own)


def can_be_mixed(method: Method) -> bool:
    """Whether a step's gradient is all it needs, so that its fleet may have runs of other methods."""
    return not (method.data_pass or method.grows or method.observes_examples)


class Chunk(NamedTuple):
    """Some parameters of a method group: their slice of θ, and views of all vectors there."""

    where: slice
    theta: Tensor
    moments: State  # the optimizer's vectors
    state: State  # the method's vectors
    move: Tensor | None  # scratch memory for two vectors of this size; without it, memory is allocated as needed
    scratch: Tensor | None


def update(method: Method, optimizer: Optimizer, chunk: Chunk, grad: Tensor, square: Tensor | None) -> None:
    """Move θ along the gradient and the penalty's gradient, and let the method observe the step.

    `square` is the batch's Fisher if it is not the squared gradient. Everything here is elementwise.
    """
    where, theta, moments, state, move_out, scratch = chunk
    move = square_here = grad  # placeholders for a method that uses neither
    if "move" in method.wants:
        before = theta.clone() if move_out is None else move_out.copy_(theta)
    pulled = method.pull(state, theta, grad, out=scratch) if method.penalty == "gradient" else grad
    optimizer.step(theta, pulled, moments)
    if method.penalty == "proximal":
        method.proximal_step(state, theta, optimizer.lr)
    if "move" in method.wants:
        move = torch.sub(theta, before, out=move_out)
    if "square" in method.wants:
        square_here = torch.square(grad, out=scratch) if square is None else square[:, where]
    method.observe(state, grad, move, square_here)


def score(method: Method, state: State, theta: Tensor) -> None:
    """End a window of the path."""
    method.score(state, theta)


def chunks(
    group: MethodGroup, theta: Tensor, optimizer: Optimizer, sizes: Sequence[int], scratch: bool
) -> list[Chunk]:
    """A group's parameters in consecutive chunks of these sizes, which share scratch memory."""
    rows, found, start = group.rows, [], 0
    moments = {name: vector[rows] if vector.dim() else vector for name, vector in optimizer.state.items()}
    spare = theta.new_empty(2, rows.stop - rows.start, max(sizes)) if scratch else None
    for size in sizes:
        where = slice(start, start + size)
        moments_here, state_here = (
            {name: vector[:, where] if vector.dim() else vector for name, vector in vectors.items()}
            for vectors in (moments, group.state)
        )
        move, own = (None, None) if spare is None else spare[:, :, :size]
        found.append(Chunk(where, theta[rows, where], moments_here, state_here, move, own))
        start += size
    return found


def tensors(chunks: Sequence[Chunk]) -> Iterator[Tensor]:
    """All vectors of the chunks, as arguments of a compiled program."""
    for chunk in chunks:
        yield chunk.theta
        yield from (vector for vector in chunk.moments.values() if vector.dim())
        yield from chunk.state.values()


def with_tensors(chunks: Sequence[Chunk], tensors: Sequence[Tensor]) -> list[Chunk]:
    """The chunks with other vectors, in the order of `tensors`."""
    rest = iter(tensors)
    return [
        chunk._replace(
            theta=next(rest),
            moments={name: next(rest) if vector.dim() else vector for name, vector in chunk.moments.items()},
            state={name: next(rest) for name in chunk.state},
        )
        for chunk in chunks
    ]
