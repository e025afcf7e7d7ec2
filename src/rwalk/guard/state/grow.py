"""What was learned of a parameter, for the one that takes its place: loaded from a file, grown, or replaced."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from rwalk.errors import InputError
from rwalk.guard.state import sharded as shards
from rwalk.guard.state.lora import Target
from rwalk.guard.state.parameter import Piece
from rwalk.guard.state.sharded import is_sharded
from rwalk.methods.base import Method


def whole_state(piece: Piece) -> dict[str, Tensor]:
    """The state vectors in the parameter's full shape; from all ranks where it is sharded."""
    kept = piece.storage.read()
    return {name: shards.gathered(vector[0], piece.parameter) for name, vector in kept.items()}


def successor(piece: Piece, target: Target, method: Method) -> Piece:
    """The piece for what the model has under this name now; what was learned goes with it."""
    product = piece.storage.product
    if target is piece.parameter if product is None else product.is_that_of(target):
        return piece  # nothing was replaced
    storage = piece.storage.of(target)
    if not piece.started:
        return Piece(piece.name, storage)
    if is_sharded(storage.parameter) != is_sharded(piece.parameter):
        raise InputError(f"{piece.name} was sharded after its Guard was made: make the Guard after fully_shard")
    vectors = whole_state(piece)
    check_fits(piece, vectors, storage.parameter)
    return restored(piece, vectors, target, method)


def restored(piece: Piece, vectors: Mapping[str, Tensor], target: Target, method: Method) -> Piece:
    """A piece for a parameter, with state vectors of its shape, or of a smaller one if it has grown since.

    What is new starts free: as `start` begins it, and with zeros (no importance) in all other vectors. The piece
    that it follows stays as it is.
    """
    new = Piece(piece.name, piece.storage.of(target))
    parameter = new.parameter
    theta = new.storage.wide(new.storage.theta())
    fresh = method.start(theta)
    state = {}
    for name, vector in vectors.items():
        vector = vector.to(theta.dtype, copy=True)
        state[name] = shards.fitted(vector, parameter).to(theta.device)[None]
        if vector.shape != parameter.shape:
            known = shards.fitted(torch.ones(vector.shape, dtype=torch.bool), parameter).to(theta.device)[None]
            state[name] = torch.where(known, state[name], fresh.get(name, torch.zeros_like(theta)))
    new.storage.keep(state)
    new.started = True
    return new


def check_fits(piece: Piece, vectors: Mapping[str, Tensor], parameter: nn.Parameter) -> None:
    for vector in vectors.values():
        smaller = all(a <= b for a, b in zip(vector.shape, parameter.shape, strict=False))
        if vector.ndim != parameter.ndim or not smaller:
            raise InputError(
                f"{piece.name} has shape {tuple(parameter.shape)} but its importance {tuple(vector.shape)}: "
                "a parameter may grow, not shrink or change: give it its old shape, or exclude it by params="
            )
