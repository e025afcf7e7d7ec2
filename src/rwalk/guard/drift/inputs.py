"""Inputs as a model takes them: a tensor, keywords in a dict, or positional arguments in a tuple; in batches.

x                          model(x)
{"input_ids": ids, …}      model(input_ids=ids, …)
(x, mask)                  model(x, mask)
[batch, batch, …]          each of these, one after the other; any other iterable of batches as well
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from rwalk.errors import InputError

Batch = Any  # a tensor, a mapping from keywords, or a tuple of arguments
EXAMPLES, TOKENS = 64, 2048  # that go through the model at a time


def call(model: nn.Module, batch: Batch) -> Any:
    if isinstance(batch, Mapping):
        return model(**batch)
    return model(*batch) if isinstance(batch, tuple) else model(batch)


def batches(inputs: Any, rows: int | None = None) -> list[Batch]:
    """In batches of so many rows at most; without a number, as many as are worth one call."""
    if isinstance(inputs, Tensor | Mapping | tuple):
        inputs = [inputs]
    if not isinstance(inputs, Iterable) or isinstance(inputs, str | bytes):
        raise InputError(f"probes are inputs of the model, a tensor, a dict or a list of batches, not {inputs!r}")
    found = []
    for batch in inputs:
        batch = tuple(batch) if isinstance(batch, list) else batch
        batch = dict(batch) if isinstance(batch, Mapping) else batch
        length = length_of(batch)
        at_once = rows or _worth_one_call(batch)
        found += [part(batch, start, start + at_once) for start in range(0, length, at_once)]
    if not found:
        raise InputError("there is not a single probe: give inputs whose predictions are to stay")
    return found


def joined(batches: Iterable[Batch]) -> list[Batch]:
    """Those that follow each other and differ in nothing but their rows, as one.

    >>> [len(batch) for batch in joined([torch.zeros(2, 3), torch.ones(4, 3), torch.ones(1, 5)])]
    [6, 1]
    """
    found: list[list[Batch]] = []
    for batch in batches:
        if found and _form(found[-1][0]) == _form(batch):
            found[-1].append(batch)
        else:
            found.append([batch])
    return [
        alike[0] if len(alike) == 1 else filled(alike[0], map(torch.cat, zip(*map(tensors, alike), strict=True)))
        for alike in found
    ]


def _form(batch: Batch) -> object:
    """What batches must have in common to be one; its own, of one that has more than rows of tensors in it."""
    outline = mapped(
        batch, lambda tensor: (tensor.shape[1:], tensor.dtype, tensor.device) if tensor.ndim else tensor
    )
    return outline if all(tensor.ndim for tensor in tensors(batch)) else object()


def length_of(batch: Batch) -> int:
    """The number of examples, which all its tensors must have."""
    lengths = {len(tensor) for tensor in tensors(batch) if tensor.ndim}
    if len(lengths) != 1:
        raise InputError(
            "the tensors of a batch of probes must have the same number of rows, and there must be one; "
            f"got {sorted(lengths) or type(batch).__name__}"
        )
    return lengths.pop()


def _worth_one_call(batch: Batch) -> int:
    tokens = [tensor.shape[1] for tensor in tensors(batch) if tensor.ndim == 2 and not tensor.is_floating_point()]
    return max(1, TOKENS // max(tokens)) if tokens else EXAMPLES


def part(batch: Batch, start: int, end: int) -> Batch:
    return mapped(batch, lambda tensor: tensor[start:end] if tensor.ndim else tensor)


def to(batch: Batch, device: torch.device) -> Batch:
    return mapped(batch, lambda tensor: tensor.to(device))


def tensors(batch: Batch) -> list[Tensor]:
    """Its tensors, in the order in which `mapped` meets them."""
    found: list[Tensor] = []

    def note(tensor: Tensor) -> Tensor:
        found.append(tensor)
        return tensor

    mapped(batch, note)
    return found


def mapped(batch: Batch, function: Callable[[Tensor], Any]) -> Batch:
    """The same structure, with every tensor in it changed."""
    if isinstance(batch, Tensor):
        return function(batch)
    if isinstance(batch, Mapping):
        return {key: mapped(value, function) for key, value in batch.items()}
    if isinstance(batch, tuple | list):
        return type(batch)(mapped(value, function) for value in batch)
    return batch


def filled(batch: Batch, values: Iterable[Tensor]) -> Batch:
    """The same structure, with these tensors in place of its own."""
    rest = iter(values)
    return mapped(batch, lambda _: next(rest))
