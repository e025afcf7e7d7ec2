"""Inputs as a model takes them, in batches.

x                          model(x)
{"input_ids": ids, …}      model(input_ids=ids, …)
(x, mask)                  model(x, mask)
[batch, batch, …]          each of these in turn; a DataLoader and any other iterable of batches as well
a dataset                  its items, collated
["a text", …]              tokenized, with tokenizer=
"own-samples"              texts that a language model writes itself
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from inspect import Parameter, signature
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, default_collate

from rwalk.errors import InputError

Batch = Any  # a tensor, a mapping from keywords, or a tuple of arguments
EXAMPLES, TOKENS = 64, 2048  # that go through the model at a time, at most
FEWEST, FEWEST_TOKENS = 8, 512  # in a pull, if training batches are smaller
PARTS = 4  # the fewest batches that probes are cut into if some of them are held out
MOST = 1024  # examples taken from a data loader or a dataset, which may be endless
OWN_SAMPLES = "own-samples"


def call(model: nn.Module, batch: Batch) -> Any:
    if isinstance(batch, Mapping):
        return model(**batch)
    return model(*batch) if isinstance(batch, tuple) else model(batch)


def of(
    given: Any, rows: int | None = None, tokenizer: Any = None, collate: Any = None, parts: int = 1
) -> list[Batch]:
    """The inputs in batches of at most `rows` rows; by default as many as are worth one call of the model.

    Without `rows`, there are at least `parts` batches, so that some of them can be held out.
    """
    if isinstance(given, str) or (isinstance(given, list | tuple) and given and isinstance(given[0], str)):
        given = _tokenized([given] if isinstance(given, str) else list(given), tokenizer)
    if isinstance(given, Tensor | Mapping | tuple):
        given = [given]
    elif isinstance(given, DataLoader):
        given = _first(given)
    elif hasattr(given, "__getitem__") and hasattr(given, "__len__") and not isinstance(given, list):
        items = [given[index] for index in range(min(len(given), MOST))]
        given = [(collate or default_collate)(items)] if items else []
    if not isinstance(given, Iterable) or isinstance(given, bytes):
        raise InputError(
            f"probes are inputs of the model (tensors, dicts, a DataLoader, a dataset, texts), not {given!r}"
        )
    found = []
    for batch in given:
        batch = tuple(batch) if isinstance(batch, list) else batch
        batch = dict(batch) if isinstance(batch, Mapping) else batch
        length = length_of(batch)
        found += cut(batch, rows or min(_worth_one_call(batch), max(1, -(-length // parts))))
    if not found:
        raise InputError("there is not a single probe: give inputs whose predictions are to stay")
    return found


def _tokenized(texts: list[str], tokenizer: Any) -> Mapping[str, Tensor]:
    if tokenizer is None:
        raise InputError("probes that are texts need a tokenizer: probes=rwalk.Probes(texts, tokenizer=tokenizer)")
    if getattr(tokenizer, "pad_token", "there") is None:
        tokenizer.pad_token = tokenizer.eos_token
    encoded = tokenizer(texts, return_tensors="pt", padding=True, truncation=True, max_length=512)
    return dict(encoded)


def _first(loader: Iterable[Batch]) -> list[Batch]:
    """Batches of a data loader, until they have MOST examples."""
    found: list[Batch] = []
    examples = 0
    for batch in loader:
        found.append(batch)
        examples += length_of(tuple(batch) if isinstance(batch, list) else batch)
        if examples >= MOST:
            break
    return found


def accepted(model: nn.Module, found: list[Batch]) -> list[Batch]:
    """The batches without parts that the model does not take: labels beside inputs, and unknown keywords."""
    if isinstance(found[0], Mapping):
        takes = signature(model.forward).parameters
        if any(each.kind is Parameter.VAR_KEYWORD for each in takes.values()):
            return found
        return [{key: value for key, value in batch.items() if key in takes} or batch for batch in found]
    if isinstance(found[0], tuple) and len(found[0]) > 1:
        takes = signature(model.forward).parameters
        positional = [p for p in takes.values() if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        open_ended = any(each.kind is Parameter.VAR_POSITIONAL for each in takes.values())
        if not open_ended and len(positional) < len(found[0]):
            kept = [batch[: len(positional)] for batch in found]
            return [batch[0] if len(batch) == 1 else batch for batch in kept]
    return found


def labels_in(given: list[Batch], taken: list[Batch]) -> Tensor | None:
    """The labels of the first batch, if the model takes its first elements alone and a tensor follows them."""
    whole, first = given[0], taken[0]
    if not isinstance(whole, tuple) or first is whole:
        return None
    left_out = whole[len(first) if isinstance(first, tuple) else 1]
    return left_out if isinstance(left_out, Tensor) else None


def length_of(batch: Batch) -> int:
    """The number of examples, which all its tensors must have."""
    lengths = {len(tensor) for tensor in tensors(batch) if tensor.ndim}
    if not lengths:
        raise InputError(f"a batch of probes holds torch's tensors, and this has none: {described(batch):.200}")
    if len(lengths) > 1:
        raise InputError(
            f"the tensors of a batch of probes must have the same number of rows: {described(batch):.200}"
        )
    return lengths.pop()


def are_tokens(batch: Batch) -> bool:
    """Whether a batch holds sequences of token numbers."""
    return any(tensor.ndim == 2 and not tensor.is_floating_point() for tensor in tensors(batch))


def tokens_of_example(batch: Batch) -> int:
    """How many tokens a sequence has; 0 if the batch holds none."""
    found = [tensor.shape[1] for tensor in tensors(batch) if tensor.ndim == 2 and not tensor.is_floating_point()]
    return max(found, default=0)


def _worth_one_call(batch: Batch) -> int:
    tokens = tokens_of_example(batch)
    return max(1, TOKENS // tokens) if tokens else EXAMPLES


def cut(batch: Batch, rows: int) -> list[Batch]:
    """Batches of at most so many rows."""

    def part(start: int) -> Batch:
        return mapped(batch, lambda tensor: tensor[start : start + rows] if tensor.ndim else tensor)

    return [part(start) for start in range(0, length_of(batch), rows)]


def to(batch: Batch, device: torch.device) -> Batch:
    return mapped(batch, lambda tensor: tensor.to(device, non_blocking=True))


def copied(batch: Batch) -> Batch:
    """The same numbers, whatever the user writes into the inputs later."""
    with torch.inference_mode(False):
        return mapped(batch, lambda tensor: tensor.detach().clone())


def described(batch: Batch) -> str:
    """Shapes and dtypes, fit to be printed.

    >>> described({"ids": torch.zeros(2, 3)})
    "{'ids': float32 (2, 3)}"
    """
    if isinstance(batch, Tensor):
        return f"{batch.dtype} {tuple(batch.shape)}".removeprefix("torch.")
    if isinstance(batch, Mapping):
        return "{" + ", ".join(f"{key!r}: {described(value)}" for key, value in batch.items()) + "}"
    if isinstance(batch, tuple | list):
        return "(" + ", ".join(map(described, batch)) + ")"
    return type(batch).__name__


def tensors(batch: Batch) -> list[Tensor]:
    """Its tensors, in the order in which `mapped` visits them."""
    found: list[Tensor] = []

    def note(tensor: Tensor) -> Tensor:
        found.append(tensor)
        return tensor

    mapped(batch, note)
    return found


def mapped(batch: Batch, function: Callable[[Tensor], Any]) -> Batch:
    """The same structure, with every tensor in it replaced."""
    if isinstance(batch, Tensor):
        return function(batch)
    if isinstance(batch, Mapping):
        return {key: mapped(value, function) for key, value in batch.items()}
    if isinstance(batch, tuple | list):
        return type(batch)(mapped(value, function) for value in batch)
    return batch


def fingerprint(found: Iterable[Batch]) -> str:
    """A hash of the numbers in batches, which recognises the same inputs again."""
    digest = hashlib.sha256()
    for tensor in (tensor for batch in found for tensor in tensors(batch)):
        digest.update(f"{tuple(tensor.shape)}{tensor.dtype}".encode())
        digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:32]


def device_of(model: nn.Module) -> torch.device:
    return next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
