"""What the files of all estimators hold in the same form, checked in one place before it is believed."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rwalk.errors import InputError, unknown
from rwalk.sealed import expect, is_whole

LABEL_TYPES = ("str", "object", "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
               "float16", "float32", "float64")  # fmt: skip
LARGEST_INPUT = 1 << 22  # numbers in one input: the parameters of a convolutional network do not bound its images


@contextmanager
def reading(path: str | Path) -> Iterator[None]:
    """Whatever goes wrong with a file, in one line that names it."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{path} cannot be loaded: {error}") from error
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        raise InputError(f"{path} is damaged ({type(error).__name__}): use another copy") from error


def plain(params: Mapping[str, Any]) -> dict[str, Any]:
    """A constructor's parameters as JSON takes them. A generator is not written: the seed it gave is."""
    stored = {name: value.item() if isinstance(value, np.generic) else value for name, value in params.items()}
    stored["device"] = str(params["device"])
    if not isinstance(params["random_state"], Integral):
        stored["random_state"] = None
    return stored


def checked_params(stored: Any, names: Sequence[str], given: Mapping[str, Any]) -> dict[str, Any]:
    """Those stored, replaced by those given. That their values can be used is left to those who use them."""
    for name in given:
        if name not in names:
            raise unknown("parameter", name, names)
    expect(isinstance(stored, dict) and set(stored) <= set(names), "the list of parameters")
    return {**stored, **given}


def checked_shape(shape: Any) -> tuple[int, ...]:
    sound = isinstance(shape, list) and all(is_whole(size, 1, LARGEST_INPUT) for size in shape)
    expect(sound and 0 < len(shape) < 8 and math.prod(shape) < LARGEST_INPUT, "the input's shape")
    return tuple(shape)


def check_writable(shape: Sequence[int]) -> None:
    if math.prod(shape) >= LARGEST_INPUT:
        raise InputError(f"inputs of {math.prod(shape)} numbers cannot be written: {LARGEST_INPUT} is too many")


def checked_feature_names(names: Any, shape: tuple[int, ...]) -> list[str]:
    sound = isinstance(names, list) and all(isinstance(name, str) for name in names)
    expect(sound and len(names) in (0, shape[0]), "the features' names")
    return list(names)


def labels_to_json(labels: NDArray[Any]) -> dict[str, Any]:
    values = labels.tolist()
    if not all(isinstance(value, str | int | float) for value in values):
        raise InputError(f"labels of type {type(values[0]).__name__} cannot be written: use strings or numbers")
    return {"type": "str" if labels.dtype.kind == "U" else labels.dtype.name, "values": values}


def checked_labels(stored: Any) -> NDArray[Any]:
    kind, values = stored["type"], stored["values"]
    expect(kind in LABEL_TYPES and isinstance(values, list), "the list of labels")
    types = str if kind == "str" else str | int | float
    expect(all(isinstance(value, types) for value in values), "the list of labels")
    labels = np.array(values, dtype=kind)
    expect(len(set(labels.tolist())) == len(labels), "the list of labels")
    return labels
