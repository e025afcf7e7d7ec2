"""The Fisher of a model's own predictions on probes: of single examples, many of them at once.

Labels are drawn from what the model itself predicts, so that none are needed. An example may hold many predictions
(a sequence's tokens): F is the mean over examples of (Σ_t ∂ log p(y_t))² / T, that of a single prediction, as
drift is the mean over single predictions.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from rwalk.errors import InputError
from rwalk.guard import inputs
from rwalk.guard.attention import PlainAttention
from rwalk.guard.drift import Predict, device_of
from rwalk.guard.inputs import Batch
from rwalk.guard.measure import add_squares
from rwalk.guard.pieces import Piece, is_trained
from rwalk.guard.predictions import logits_in
from rwalk.guard.quiet import undisturbed
from rwalk.guard.selection import unwrapped
from rwalk.guard.shards import is_sharded
from rwalk.methods import Method

ROOM = (
    2**31
)  # bytes that gradients and logits of single examples may take at a time; on a GPU, a quarter of what is free
COPIES = 8  # of an example's logits, on the way to its loss and back
logger = logging.getLogger(__name__)

Squares = dict[Piece, Tensor]


def of_probes(
    model: nn.Module, guarded: Sequence[Piece], method: Method, batches: Sequence[Batch], predict: Predict | None
) -> Squares:
    """Mean squares over all examples; the model is left as it was."""
    trained = [piece for piece in guarded if is_trained(piece)]
    if not trained:
        raise InputError("none of the guarded parameters is trained: nothing can be measured of them")
    asked = _Asked(unwrapped(model), predict or inputs.call)
    total: Squares = {}
    examples = 0
    draws = torch.Generator().manual_seed(0)
    with undisturbed(model):
        for batch in inputs.joined(map(_without_idle_mask, batches)):
            batch = inputs.to(batch, device_of(model))
            for part, luck in _cut(batch, trained, asked, draws):
                _add(total, _squares(asked, trained, part, luck, method), method)
                examples += len(luck)
    return {piece: square.div_(examples) for piece, square in total.items()}


class _Asked(nn.Module):
    """A model behind the function that asks it, so that both can be called with other parameters."""

    def __init__(self, model: nn.Module, predict: Predict) -> None:
        super().__init__()
        self.model = model
        self._predict = predict

    def forward(self, batch: Batch) -> Tensor:
        return logits_in(self._predict(self.model, batch), batch)


def _cut(
    batch: Batch, trained: Sequence[Piece], asked: _Asked, draws: torch.Generator
) -> Iterator[tuple[Batch, Tensor]]:
    """Parts whose gradients fit into memory, with a random number for each prediction of each example."""
    length = inputs.length_of(batch)
    mask = batch.get("attention_mask") if isinstance(batch, Mapping) else None
    with torch.no_grad():
        logits = asked(inputs.part(batch, 0, 1))
    each = len(logits) if mask is None else mask[0].numel()
    slopes = sum(piece.parameter.numel() for piece in trained)
    at_once = max(1, _room(device_of(asked)) // (4 * (slopes + COPIES * each * logits.shape[-1])))
    for start in range(0, length, at_once):
        part = inputs.part(batch, start, start + at_once)
        yield part, torch.rand(min(at_once, length - start), each, generator=draws).to(device_of(asked))


def _room(device: torch.device) -> int:
    return int(torch.cuda.mem_get_info(device)[0]) // 4 if device.type == "cuda" else ROOM


def _loss(logits: Tensor, luck: Tensor, method: Method) -> Tensor:
    """−log p of labels drawn from the predictions themselves, for a Fisher of single predictions.

    For a method that looks at outputs (MAS), their squared length.
    """
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    if method.of_outputs:
        return wide.square().sum(-1).mean()
    logs = wide.log_softmax(-1)
    below = logs.detach().exp().cumsum(-1) < luck[: len(logs), None]
    labels = below.sum(-1).clamp(max=logs.shape[-1] - 1)
    likely: Tensor = logs.gather(-1, labels[:, None]).sum()
    return -likely / math.sqrt(len(logs))


def _squares(asked: _Asked, trained: Sequence[Piece], batch: Batch, luck: Tensor, method: Method) -> Squares:
    if not any(is_sharded(piece.parameter) for piece in trained):
        try:
            return _all_at_once(asked, trained, batch, luck, method)
        except (RuntimeError, NotImplementedError, ValueError, TypeError) as error:
            logger.warning(
                "the Fisher is measured one example at a time, for vmap cannot batch this model: %s",
                str(error).partition("\n")[0][:200],
            )
    return _one_by_one(asked, trained, batch, luck, method)


def _all_at_once(asked: _Asked, trained: Sequence[Piece], batch: Batch, luck: Tensor, method: Method) -> Squares:
    name_of = {parameter: name for name, parameter in asked.named_parameters()}
    names = {piece: name_of[piece.parameter] for piece in trained}
    parameters = {name: piece.parameter.detach() for piece, name in names.items()}
    tensors = inputs.tensors(batch)
    along = [0 if tensor.ndim else None for tensor in tensors]

    def loss(parameters: Mapping[str, Tensor], tensors: list[Tensor], luck: Tensor) -> Tensor:
        rows = [tensor[None] if axis == 0 else tensor for tensor, axis in zip(tensors, along, strict=True)]
        logits = functional_call(asked, dict(parameters), (inputs.filled(batch, rows),))
        return _loss(logits, luck, method)

    each: Callable[..., Any] = vmap(grad(loss), in_dims=(None, along, 0))
    with PlainAttention():
        slopes = each(parameters, tensors, luck)
    return {
        piece: method.in_pass(piece.storage.wide(slopes[name]).square()).sum(0)[None]
        for piece, name in names.items()
    }


def _one_by_one(asked: _Asked, trained: Sequence[Piece], batch: Batch, luck: Tensor, method: Method) -> Squares:
    total: Squares = {}
    for row in range(len(luck)):
        with torch.enable_grad():
            _loss(asked(inputs.part(batch, row, row + 1)), luck[row], method).backward()
        add_squares(total, trained, method)
        for parameter in asked.parameters():
            parameter.grad = None
    return total


def _add(total: Squares, squares: Squares, method: Method) -> None:
    for piece, square in squares.items():
        total[piece] = total[piece].add_(square) if piece in total else square


def _without_idle_mask(batch: Batch) -> Batch:
    """A mask that masks nothing is left out: with one, transformers looks at values and cannot be batched."""
    mask = batch.get("attention_mask") if isinstance(batch, Mapping) else None
    if isinstance(mask, Tensor) and bool(mask.all()):
        return {key: value for key, value in batch.items() if key != "attention_mask"}
    return batch
