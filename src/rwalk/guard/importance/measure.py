"""What a task's end measures: over all parameters, on all ranks, and for EWC over the task's data."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from rwalk.errors import InputError
from rwalk.guard.drift.eval_mode import eval_mode
from rwalk.guard.state import sharded as shards
from rwalk.guard.state.parameter import ParameterState
from rwalk.guard.state.sharded import Group, local
from rwalk.methods import Method
from rwalk.methods.base import Ranges

WANTS_LOSSES = (
    "consolidate() wants each batch's loss, one number with its graph, in a generator: "
    "guard.consolidate(criterion(model(x), y) for x, y in loader)"
)


class Measured(NamedTuple):
    finite: bool
    penalty: float
    ranges: Ranges


def all_of_it(guarded: Sequence[ParameterState], method: Method, fishers: Iterable[Tensor]) -> Measured:
    """Whether all that was measured is finite, and the extrema of the vectors to normalise.

    All as minima, the largest negated, so that ranks that share a network out have to talk only once.
    """
    pieces = [piece for piece in guarded if piece.started]
    penalty = sum(cost(piece, method) for piece in pieces)
    finite = math.isfinite(penalty) and all(map(is_finite, pieces))
    finite = finite and all(bool(fisher.isfinite().all()) for fisher in fishers)
    minima = [float(finite), -penalty if finite else 0.0]
    for name in method.scales:
        pairs = [extrema(piece, name) for piece in pieces]
        minima += [min(low for low, _ in pairs), min(-high for _, high in pairs)]
    groups = dict.fromkeys(group for piece in guarded for group in shards.groups(piece.parameter))
    finite_everywhere, negated_penalty, *bounds = reduced(minima, groups, "MIN")
    low, negated_high = (torch.tensor(each, dtype=torch.float64) for each in (bounds[::2], bounds[1::2]))
    ranges = dict(zip(method.scales, zip(low, -negated_high, strict=True), strict=True))
    return Measured(bool(finite_everywhere), -negated_penalty, ranges)


def cost(piece: ParameterState, method: Method) -> float:
    """This piece's part of the penalty."""
    return sum(float(method.cost(part.state, part.theta)) for part in piece.storage.parts())


def is_finite(piece: ParameterState) -> bool:
    """Whether the parameter and all that is held for it are numbers."""
    parts = piece.storage.parts()
    return all(bool(each.isfinite().all()) for part in parts for each in (part.theta, *part.state.values()))


def extrema(piece: ParameterState, name: str) -> tuple[float, float]:
    """The smallest and largest value of a state vector; of nothing, those that change no other's."""
    pairs = [part.state[name].aminmax() for part in piece.storage.parts() if part.theta.numel()]
    return min((float(low) for low, _ in pairs), default=math.inf), max(
        (float(high) for _, high in pairs), default=-math.inf
    )


def is_at_anchor(piece: ParameterState, method: Method) -> bool:
    """Whether what is held lies where the last task left it, give or take what rounding the state costs."""
    return all(
        bool((part_is_there(part.theta, anchor, piece.storage.rounding) | (importance == 0)).all())
        for part in piece.storage.parts()
        for _, importance, anchor in method.springs(part.state)[-1:]
    )


def part_is_there(theta: Tensor, anchor: Tensor, rounding: float) -> Tensor:
    """Number by number; bfloat16 rounds each by its own size, others by a share of the largest around it."""
    least = max(1e-6, rounding * float(anchor.abs().amax())) if anchor.numel() else 0.0
    return torch.isclose(theta, anchor, rtol=1e-2, atol=least)


def reduced(numbers: list[float], groups: Iterable[Group], op: Literal["MIN", "SUM"]) -> list[float]:
    """Numbers reduced over all ranks of these process groups."""
    for device, group in groups:
        tensor = torch.tensor(numbers, dtype=torch.float64, device=device)
        dist.all_reduce(tensor, getattr(dist.ReduceOp, op), group)
        numbers = tensor.tolist()
    return numbers


def data_fisher(
    model: nn.Module, guarded: Sequence[ParameterState], method: Method, losses: Iterable[Tensor]
) -> dict[ParameterState, Tensor]:
    """Mean over the batches of the squared gradients, eq. (1), or of what the method takes of them.

    The model is left as it was.
    """
    total: dict[ParameterState, Tensor] = {}
    batches = 0
    with eval_mode(model, keep_draws=True), torch.enable_grad():
        for loss in losses:
            if not isinstance(loss, Tensor) or loss.numel() != 1 or not loss.requires_grad:
                raise InputError(WANTS_LOSSES)
            loss.backward()
            batches += 1
            add_squares(total, guarded, method)
            for parameter in model.parameters():
                parameter.grad = None
    unseen = [piece.name for piece in guarded if piece.storage.product is not None and piece not in total]
    if unseen and len(unseen) == sum(piece.storage.product is not None for piece in guarded):
        raise InputError(f"no gradient reached an adapted weight, such as {unseen[0]}: {WANTS_LOSSES}")
    if not total:
        raise InputError(f"no gradient reached a guarded parameter in {batches} batches: check the losses given")
    return {piece: square.div_(batches) for piece, square in total.items()}


@torch.no_grad()
def add_squares(total: dict[ParameterState, Tensor], guarded: Sequence[ParameterState], method: Method) -> None:
    """Of the gradients that a backward pass has left."""
    for piece in guarded:
        square = _square_of_gradient(piece)
        if square is not None:
            square = method.in_pass(square)
            if not piece.started:
                piece.start(method)
            total[piece] = total[piece].add_(square) if piece in total else square


def _square_of_gradient(piece: ParameterState) -> Tensor | None:
    """g² at the parameter's `.grad`, where and as precise as the equations want it."""
    gradient = piece.parameter.grad
    if gradient is None:
        return None
    dense = gradient.to_dense() if gradient.is_sparse else gradient
    return piece.storage.wide(local(dense)[None]).square()
