"""A keeper in a guard's file: probes, what was predicted on them, and the model as it was."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor

from rwalk.errors import InputError
from rwalk.guard.drift import inputs
from rwalk.guard.drift.controller import Keeper, Reading
from rwalk.guard.drift.divergences import Kept
from rwalk.guard.drift.probes import Probes
from rwalk.guard.drift.reference import Old
from rwalk.guard.drift.rule import Control
from rwalk.sealed import expect, is_whole, shown

PLAIN = (str, int, float, bool, type(None))


def state_of(keeper: Keeper, anchors: Mapping[str, Tensor]) -> dict[str, Any] | None:
    """Nothing, where nothing is watched yet. Anchors of the method are not written twice."""
    if keeper.old is None:
        return None
    tensors = {f"old/{name}": tensor for name, tensor in keeper.old.own(anchors).items()}
    for number, probes in enumerate(keeper.sets):
        for index, (batch, kept) in enumerate(zip(probes.batches, probes.kept, strict=True)):
            at = f"{number}/{index}"
            tensors |= {f"probe/{at}/{leaf}": tensor for leaf, tensor in enumerate(inputs.tensors(batch))}
            tensors[f"logs/{at}"] = kept.logs
            if kept.classes is not None:
                tensors[f"classes/{at}"] = kept.classes
    forms = [[_form(batch) for batch in probes.batches] for probes in keeper.sets]
    held = [name for name in keeper.old.tensors if f"old/{name}" not in tensors]
    return {**keeper.numbers(), "forms": forms, "held": held, "tensors": tensors}


def restored(state: Any, keeper: Keeper, known: Iterable[str]) -> tuple[Keeper, list[str]]:
    """Another keeper, as a state says it was; whatever cannot be right is refused.

    And the names of the parameters, out of those `known`, that were where the method's anchors are.
    """
    expect(isinstance(state, Mapping) and isinstance(state.get("tensors"), Mapping), "what it kept")
    tensors = dict(state["tensors"])
    found = Keeper(keeper.watching)
    found.control = _control(state.get("control"))
    found.history = list(_history(state.get("history")))
    forms, numbers = state.get("forms"), state.get("sets")
    expect(isinstance(forms, list) and isinstance(numbers, list) and len(forms) == len(numbers), "its probes")
    for number, (of_batches, said) in enumerate(zip(forms, numbers, strict=True)):
        found.sets.append(_probes(tensors, number, of_batches, said, keeper))
    held = state.get("held")
    expect(isinstance(held, list) and set(map(str, held)) <= set(known), "the anchors of its probes")
    old = {name.removeprefix("old/"): tensors[name] for name in tensors if name.startswith("old/")}
    expect(all(bool(tensor.isfinite().all()) for tensor in old.values()), "the model it kept")
    found.old = Old(old)
    return found, list(held)


def _probes(tensors: Mapping[str, Tensor], number: int, forms: Any, said: Any, keeper: Keeper) -> Probes:
    expect(isinstance(forms, list) and bool(forms) and isinstance(said, Mapping), "its probes")
    batches, predictions = [], []
    for index, form in enumerate(forms):
        leaves = _leaves(tensors, f"probe/{number}/{index}")
        batches.append(_batch(form, leaves, depth=0))
        predictions.append(_kept(tensors, f"{number}/{index}"))
    watching = keeper.watching
    probes = Probes(batches, watching.predict, max(map(inputs.length_of, batches)), watching.apart)
    expect(len(probes.batches) == len(predictions), "the rows of its probes")
    ratios, following = said.get("ratios"), said.get("next")
    expect(
        isinstance(ratios, list) and len(ratios) == len(probes.watched) and all(map(_is_number, ratios)),
        "its ratios",
    )
    expect(is_whole(following, 0, len(forms)), "its next batch")
    loss = said.get("loss")
    expect(loss is None or _is_number(loss), "the loss of its probes")
    probes.restore(predictions, [float(ratio) for ratio in ratios], following, loss)
    return probes


def _kept(tensors: Mapping[str, Tensor], at: str) -> Kept:
    logs, classes = tensors.get(f"logs/{at}"), tensors.get(f"classes/{at}")
    expect(isinstance(logs, Tensor) and logs.ndim == 2 and logs.is_floating_point(), "its predictions")
    assert isinstance(logs, Tensor)
    expect(not logs.isnan().any() and bool((logs <= 0.01).all()), "its predictions")
    if classes is not None:
        alike = classes.shape == (len(logs), logs.shape[1] - 1) and classes.dtype == torch.int32
        expect(alike and bool((classes >= 0).all()), "its predicted classes")
    return Kept(logs, classes)


def _control(said: Any) -> Control:
    names = {each.name for each in fields(Control)}
    expect(isinstance(said, Mapping) and said.keys() == names, "its control of λ")
    expect(all(map(_is_number, said.values())) and is_whole(said["step"], 0), "its control of λ")
    expect(all(value >= 0 for name, value in said.items() if name != "gained"), "its control of λ")
    return Control(**said)


def _history(said: Any) -> Iterator[Reading]:
    expect(isinstance(said, list), "its history")
    for entry in said:
        expect(isinstance(entry, list) and len(entry) == len(Reading._fields), "its history")
        expect(all(map(_is_number, entry)), "its history")
        yield Reading(*entry)


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)


# ── the structure of a batch ─────────────────────────────────────────────────────────────────────────────────


def _form(batch: Any) -> Any:
    if isinstance(batch, Tensor):
        return "tensor"
    if isinstance(batch, Mapping):
        return {"dict": {key: _form(value) for key, value in batch.items()}}
    if isinstance(batch, tuple | list):
        return {type(batch).__name__: [_form(value) for value in batch]}
    if isinstance(batch, PLAIN):
        return {"value": batch}
    raise InputError(
        f"probes with a {type(batch).__name__} in them cannot be saved: give tensors and plain values"
    )


def _batch(form: Any, leaves: Iterator[Tensor], depth: int) -> Any:
    expect(depth < 10, "the form of its probes")
    if form == "tensor":
        leaf = next(leaves, None)
        expect(leaf is not None, "the tensors of its probes")
        return leaf
    expect(isinstance(form, Mapping) and len(form) == 1, "the form of its probes")
    ((kind, content),) = form.items()
    if kind == "dict" and isinstance(content, Mapping):
        return {key: _batch(value, leaves, depth + 1) for key, value in content.items()}
    if kind in ("tuple", "list") and isinstance(content, list):
        values = [_batch(value, leaves, depth + 1) for value in content]
        return tuple(values) if kind == "tuple" else values
    expect(kind == "value" and isinstance(content, PLAIN), f"the form of its probes ({shown(kind)})")
    return content


def _leaves(tensors: Mapping[str, Tensor], at: str) -> Iterator[Tensor]:
    number = 0
    while (leaf := tensors.get(f"{at}/{number}")) is not None:
        yield leaf
        number += 1
