"""The Fisher of a model's own predictions on probes: of single examples, many of them at once.

Labels are drawn from what the model itself predicts, so that none are needed. An example may hold many predictions
(a sequence's tokens): F is the mean over examples of (Σ_t ∂ log p(y_t))² / T, that of a single prediction, as
drift is the mean over single predictions.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from rwalk.errors import InputError
from rwalk.guard.drift import batches
from rwalk.guard.drift.batches import Batch, device_of
from rwalk.guard.drift.eval_mode import eval_mode
from rwalk.guard.drift.probes import Probes
from rwalk.guard.importance.attention import PlainAttention
from rwalk.guard.importance.measure import add_squares
from rwalk.guard.importance.per_example import ByExample, Unknown, all_trained
from rwalk.guard.select import unwrapped
from rwalk.guard.state.parameter import ParameterState, is_trained
from rwalk.guard.state.sharded import is_sharded
from rwalk.methods import Method

# Bytes that gradients and logits of single examples may take at a time; on a GPU, a quarter of what is free.
ROOM = 2**31
FEW, NEAR = 2, 0.02  # examples that two ways are compared by, and how near they must be
COPIES = 8  # of an example's logits, on the way to its loss and back
logger = logging.getLogger(__name__)

Squares = dict[ParameterState, Tensor]


def of_probes(model: nn.Module, guarded: Sequence[ParameterState], method: Method, probes: Probes) -> Squares:
    """Mean squares over all examples; the model is left as it was."""
    trained = [piece for piece in guarded if is_trained(piece)]
    if not trained:
        raise InputError("none of the guarded parameters is trained: nothing can be measured of them")
    asked = _Asked(unwrapped(model), probes)
    total: Squares = {}
    examples = 0
    draws = torch.Generator().manual_seed(0)
    with eval_mode(model):
        for batch in batches.joined(map(_without_idle_mask, probes.batches)):
            batch = batches.to(batch, device_of(model))
            for part, luck in _cut(batch, trained, asked, draws):
                _add(total, _squares(asked, trained, part, luck, method), method)
                examples += len(luck)
    return {piece: square.div_(examples) for piece, square in total.items()}


class _Asked(nn.Module):
    """A model behind the function that asks it, so that both can be called with other parameters."""

    def __init__(self, model: nn.Module, probes: Probes) -> None:
        super().__init__()
        self.model = model
        self.in_layers: bool | None = None  # whether layers can tell examples apart; None: not tried yet
        self._probes = probes

    def forward(self, batch: Batch) -> Tensor:
        return self._probes.logits(self.model, batch)


def _cut(
    batch: Batch, trained: Sequence[ParameterState], asked: _Asked, draws: torch.Generator
) -> Iterator[tuple[Batch, Tensor]]:
    """Parts whose gradients fit into memory, with a random number for each prediction of each example."""
    length = batches.length_of(batch)
    mask = batch.get("attention_mask") if isinstance(batch, Mapping) else None
    with torch.no_grad():
        logits = asked(batches.part(batch, 0, 1))
    each = len(logits) if mask is None else mask[0].numel()
    slopes = sum(piece.parameter.numel() for piece in trained)
    at_once = max(1, _room(device_of(asked)) // (4 * (slopes + COPIES * each * logits.shape[-1])))
    for start in range(0, length, at_once):
        part = batches.part(batch, start, start + at_once)
        yield part, torch.rand(min(at_once, length - start), each, generator=draws).to(device_of(asked))


def _room(device: torch.device) -> int:
    return int(torch.cuda.mem_get_info(device)[0]) // 4 if device.type == "cuda" else ROOM


def _loss(logits: Tensor, luck: Tensor, method: Method, lengths: Sequence[int] | None = None) -> Tensor:
    """−log p of labels drawn from the predictions themselves, for a Fisher of single predictions.

    For a method that looks at outputs (MAS), their squared length. Of several examples, with `lengths`, the sum.
    """
    lengths = [len(logits)] if lengths is None else lengths
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    if method.of_outputs:
        return (wide.square().sum(-1) / _repeated(lengths, wide)).sum()
    logs = wide.log_softmax(-1)
    below = logs.detach().exp().cumsum(-1) < luck[:, None]
    labels = below.sum(-1).clamp(max=logs.shape[-1] - 1)
    likely = logs.gather(-1, labels[:, None])[:, 0] / _repeated(lengths, wide).sqrt()
    return -likely.sum()


def _repeated(lengths: Sequence[int], like: Tensor) -> Tensor:
    """For each prediction, how many its example has."""
    each = torch.tensor(lengths)
    return each.repeat_interleave(each).to(like.device, like.dtype)


def _squares(
    asked: _Asked, trained: Sequence[ParameterState], batch: Batch, luck: Tensor, method: Method
) -> Squares:
    """Sums over the examples of a batch, in the fastest way that this model allows."""
    if any(is_sharded(piece.parameter) for piece in trained):
        return _one_by_one(asked, trained, batch, luck, method)
    if asked.in_layers is None:
        asked.in_layers = _agree(asked, trained, batch, luck, method)
    if asked.in_layers:
        return _in_layers(asked, trained, batch, luck, method)
    try:
        return _all_at_once(asked, trained, batch, luck, method)
    except (RuntimeError, NotImplementedError, ValueError, TypeError) as error:
        logger.warning(
            "the Fisher is measured one example at a time, for vmap cannot batch this model: %s",
            str(error).partition("\n")[0][:200],
        )
    return _one_by_one(asked, trained, batch, luck, method)


def _agree(asked: _Asked, trained: Sequence[ParameterState], batch: Batch, luck: Tensor, method: Method) -> bool:
    """Whether layers tell examples apart: a few examples, both ways. Models may do anything with a batch."""
    few = min(len(luck), FEW)
    some = batches.part(batch, 0, few), luck[:few], method
    try:
        found = _in_layers(asked, trained, *some)
        with all_trained([piece.parameter for piece in trained]):
            expected = _one_by_one(asked, trained, *some)
    except (Unknown, RuntimeError, NotImplementedError, ValueError, TypeError):
        return False
    finally:
        _drop_gradients(asked)
    pairs = [(found[piece], expected.get(piece, torch.zeros_like(found[piece]))) for piece in trained]
    off, whole = (
        sum(float(each.norm()) for each in column) for column in ([a - b for a, b in pairs], expected.values())
    )
    return off <= NEAR * whole


def _in_layers(
    asked: _Asked, trained: Sequence[ParameterState], batch: Batch, luck: Tensor, method: Method
) -> Squares:
    """One pass over the batch, in which every layer has a look at single examples."""
    parameters = [piece.parameter for piece in trained]
    mask = batch.get("attention_mask") if isinstance(batch, Mapping) else None
    mode = ByExample(parameters, len(luck), method)
    with torch.enable_grad(), all_trained(parameters):
        with mode:
            logits = asked(batch)
        lengths = [len(logits) // len(luck)] * len(luck) if mask is None else mask.sum(1).tolist()
        flat = torch.cat([row[:length] for row, length in zip(luck, lengths, strict=True)])
        _loss(logits, flat, method, lengths).backward()
        mode.check()
    _drop_gradients(asked)
    return {
        piece: piece.storage.wide(mode.squares.get(piece.parameter, torch.zeros_like(piece.parameter)))[None]
        for piece in trained
    }


def _drop_gradients(asked: _Asked) -> None:
    for parameter in asked.parameters():
        parameter.grad = None


def _all_at_once(
    asked: _Asked, trained: Sequence[ParameterState], batch: Batch, luck: Tensor, method: Method
) -> Squares:
    name_of = {parameter: name for name, parameter in asked.named_parameters()}
    names = {piece: name_of[piece.parameter] for piece in trained}
    parameters = {name: piece.parameter.detach() for piece, name in names.items()}
    tensors = batches.tensors(batch)
    along = [0 if tensor.ndim else None for tensor in tensors]

    def loss(parameters: Mapping[str, Tensor], tensors: list[Tensor], luck: Tensor) -> Tensor:
        rows = [tensor[None] if axis == 0 else tensor for tensor, axis in zip(tensors, along, strict=True)]
        logits = functional_call(asked, dict(parameters), (batches.filled(batch, rows),))
        return _loss(logits, luck[: len(logits)], method)

    each: Callable[..., Any] = vmap(grad(loss), in_dims=(None, along, 0))
    with PlainAttention():
        slopes = each(parameters, tensors, luck)
    return {
        piece: method.in_pass(piece.storage.wide(slopes[name]).square()).sum(0)[None]
        for piece, name in names.items()
    }


def _one_by_one(
    asked: _Asked, trained: Sequence[ParameterState], batch: Batch, luck: Tensor, method: Method
) -> Squares:
    total: Squares = {}
    for row in range(len(luck)):
        with torch.enable_grad():
            logits = asked(batches.part(batch, row, row + 1))
            _loss(logits, luck[row, : len(logits)], method).backward()
        add_squares(total, trained, method)
        _drop_gradients(asked)
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
