"""The walk: what a step does with a gradient, on some of the parameters at a time. Everything here is elementwise.

The execution decides how the parameters are divided; where a whole step is compiled, its vectors are arguments of
the program, part by part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from rwalk.engine.optimizer import Optimizer
from rwalk.engine.walkers import Walker
from rwalk.methods.base import Method, State

Function = Callable[..., None]


class Part(NamedTuple):
    """Some of the parameters: their slice, and the views of every vector there."""

    where: slice
    theta: Tensor
    moments: State  # the optimizer's
    state: State  # the method's
    move: Tensor | None  # room for two vectors of this part; without it, memory is taken as needed
    scratch: Tensor | None


def step(method: Method, optimizer: Optimizer, part: Part, grad: Tensor, square: Tensor | None) -> None:
    """Move θ against its gradient and the penalty's, and let the method observe the move."""
    where, theta, moments, state, move_out, scratch = part
    move = square_here = grad  # stand-ins, unless the method wants them
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
    """Close a window of the path."""
    method.score(state, theta)


def cut(theta: Tensor, moments: State, walker: Walker, sizes: Sequence[int], scratch: bool) -> list[Part]:
    """A walker's rows in parts of these sizes, one after the other; with scratch, which they share."""
    theta = theta[walker.rows]
    moments = {name: vector[walker.rows] if vector.dim() else vector for name, vector in moments.items()}
    spare = theta.new_empty(2, theta.shape[0], max(sizes)) if scratch else None
    parts, start = [], 0
    for size in sizes:
        where = slice(start, start + size)
        moments_here, state_here = (
            {name: vector[:, where] if vector.dim() else vector for name, vector in vectors.items()}
            for vectors in (moments, walker.state)
        )
        move, own = (None, None) if spare is None else spare[:, :, :size]
        parts.append(Part(where, theta[:, where], moments_here, state_here, move, own))
        start += size
    return parts


def tensors(parts: Sequence[Part]) -> Iterator[Tensor]:
    """All vectors of the parts, for a program's arguments."""
    for part in parts:
        yield part.theta
        yield from (vector for vector in part.moments.values() if vector.dim())
        yield from part.state.values()


def filled(parts: Sequence[Part], tensors: Sequence[Tensor]) -> list[Part]:
    """The parts with these vectors instead of their own."""
    rest = iter(tensors)
    return [
        part._replace(
            theta=next(rest),
            moments={name: next(rest) if vector.dim() else vector for name, vector in part.moments.items()},
            state={name: next(rest) for name in part.state},
        )
        for part in parts
    ]
