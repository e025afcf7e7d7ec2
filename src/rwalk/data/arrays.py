"""Arrays as examples: float32 inputs, labels of integers or strings, and orders determined by seeds alone."""

from __future__ import annotations

import re
from collections.abc import Sequence
from numbers import Integral
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from rwalk.errors import InputError

EXACT = 2**53  # float64 keeps whole numbers below this one apart


def as_inputs(x: ArrayLike | Tensor, part: str) -> Tensor:
    """A copy of numbers as float32; those of type uint8 are pixels, and become [0, 1]."""
    array = _array(x, f"{part} inputs")
    if array.dtype.kind not in "biuf":
        raise InputError(f"{part} inputs are of type {array.dtype}: give numbers")
    with np.errstate(over="ignore"):  # what float32 cannot hold becomes infinite, and is refused as such
        inputs = torch.from_numpy(np.array(array, dtype=np.float32, order="C"))
    return inputs.div_(255) if array.dtype == np.uint8 else inputs


def check_alike(x: ArrayLike | Tensor, x_test: ArrayLike | Tensor) -> None:
    """Refuse pixels beside other numbers: only those of type uint8 are divided by 255."""
    kinds = [_array(each, "inputs").dtype for each in (x, x_test)]
    if (kinds[0] == np.uint8) != (kinds[1] == np.uint8):
        raise InputError(
            f"training inputs are {kinds[0]}, test inputs {kinds[1]}: give both as uint8, whose values are pixels "
            "and become [0, 1], or neither"
        )


def as_labels(y: ArrayLike | Tensor, part: str) -> NDArray[Any]:
    """Labels as integers or strings."""
    labels = _array(y, f"{part} labels")
    if labels.ndim != 1:
        raise InputError(f"{part} labels have shape {list(labels.shape)}: give one label per example, as [N]")
    kind = labels.dtype.kind
    if kind == "S":
        return np.char.decode(labels, "utf-8", "backslashreplace")  # different bytes stay different
    if kind == "O" and all(isinstance(label, str) for label in labels):
        return labels.astype(np.str_)
    if kind == "O" and all(isinstance(label, Integral) and abs(int(label)) < 2**63 for label in labels):
        return labels.astype(np.int64)
    if kind == "f" and (np.abs(labels.astype(np.float64)) < EXACT).all() and (labels == labels.round()).all():
        return labels.astype(np.int64)
    if kind in "biuUT":
        return labels
    raise InputError(
        f"{part} labels of type {labels.dtype} cannot name classes: give integers or strings, none missing"
    )


def _array(values: ArrayLike | Tensor, what: str) -> NDArray[Any]:
    if isinstance(values, Tensor):
        values = values.detach().cpu()
        return np.asarray(values.float() if values.is_floating_point() else values)
    try:
        return np.asarray(values)
    except ValueError:
        raise InputError(f"{what} are not an array: give every example the same shape") from None


def unit_interval(pixels: NDArray[np.uint8]) -> Tensor:
    """Bytes as float32 in [0, 1]."""
    return torch.from_numpy(pixels.astype(np.float32)).div_(255)


def natural_order(text: str) -> list[tuple[int, int, str]]:
    """A key that sorts as people do: numbers in names count as numbers.

    >>> sorted(["week10", "week9", "march"], key=natural_order)
    ['march', 'week9', 'week10']
    """
    parts = re.split(r"([0-9]{1,18})", text)
    return [(0, int(part), "") if part.isdecimal() else (1, 0, part) for part in parts]


def whole(number: Any, what: str, least: int) -> int:
    if not isinstance(number, Integral) or number < least:
        raise InputError(f"{what} is {number!r}: give a whole number, {least} or larger")
    return int(number)


def present(y: Tensor) -> list[int]:
    """The classes that occur, ascending."""
    columns: list[int] = torch.bincount(y).nonzero().flatten().tolist()
    return columns


def hold_out(
    y: Tensor, fraction: float, seed: int, names: Sequence[str], most: int | None = None
) -> tuple[Tensor, Tensor]:
    """Indices kept and held out, ascending: a fraction of every class is held out, at least one example each.

    At most `most` examples of a class are held out.
    """
    held = torch.zeros(len(y), dtype=torch.bool)
    for column in present(y):
        members = (y.cpu() == column).nonzero().flatten()
        if len(members) < 2:
            raise InputError(
                f"class {names[column]!r} has one training example, so none can be held out: add examples"
            )
        count = min(max(1, round(fraction * len(members))), len(members) - 1)
        count = count if most is None else min(count, most)
        held[members[shuffled(len(members), seed, column)[:count]]] = True
    held = held.to(y.device)
    return (~held).nonzero().flatten(), held.nonzero().flatten()


def shuffled(count: int, *seed: int) -> list[int]:
    """0..count-1 in an order that depends on the seeds alone."""
    entropy = [whole(part, "the seed", least=0) for part in seed]
    order: list[int] = np.random.default_rng(entropy).permutation(count).tolist()
    return order
