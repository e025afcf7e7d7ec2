"""Estimators on disk: one safetensors file of a record and tensors, checked before anything in it is used.

A file contains no code, names no function, and nothing in it is unpickled. Sizes are checked before memory of that
size is allocated. The checks here are those that the files of all estimators share.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from numbers import Integral
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from rwalk import model_file
from rwalk.data.large_files import form_from_json
from rwalk.data.streams import Form
from rwalk.engine.architectures import NETWORKS
from rwalk.errors import InputError, unknown
from rwalk.model_file import expect, is_whole
from rwalk.registry import MOVED
from rwalk.threads import few_threads, usual_torch

Contents = tuple[dict[str, Any], dict[str, Tensor]]  # the record, and the tensors
LABEL_TYPES = ("str", "object", "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
               "float16", "float32", "float64")  # fmt: skip
CODE = ("network", "method", "sampler")  # parameters that may be code
LARGEST_INPUT = 1 << 22  # numbers in one input; the parameters of a convolutional network set no limit


class Stored:
    """Base of estimators that can be saved and loaded."""

    _formats: ClassVar[tuple[str, ...]]  # that can be read; the first is the one written

    form_: Form | None = None  # how files or tables become inputs; None for arrays

    def save(self, path: str | Path) -> None:
        """Write everything into one safetensors file, completely or not at all; `load` continues exactly from it.

        Code is not written: pass a network or a method of your own to `load` again. Labels must be strings or
        numbers.
        """
        check_is_fitted(self)
        note = None if self.form_ is None else {"form": self.form_.to_json()}
        with usual_torch():
            model_file.write(Path(path), self._formats[0], *self._contents(), note)

    @classmethod
    @few_threads()
    def load(cls, path: str | Path, **params: Any) -> Self:
        """The estimator in a file; `params` replace the constructor's parameters written there.

        Nothing in the file is executed, and all of it is checked.
        """
        with reading(path):
            metadata, tensors = model_file.read(Path(path))
            if metadata.get("format") not in cls._formats:
                raise InputError(
                    f"it is not an estimator that this version can read: its format is not {cls._formats[0]}"
                )
            self = cls._restored(model_file.unsealed(metadata, tensors), tensors, params)
            if (note := model_file.note_of(Path(path))) is not None:
                self.form_ = form_from_json(note["form"])
            return self

    def _contents(self) -> Contents:
        raise NotImplementedError

    @classmethod
    def _restored(cls, record: dict[str, Any], tensors: Mapping[str, Tensor], given: Mapping[str, Any]) -> Self:
        """The estimator that gave these contents; given parameters replace those in the record."""
        raise NotImplementedError


@contextmanager
def reading(path: str | Path) -> Iterator[None]:
    """Turn every error into one line that names the file."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{path} cannot be loaded: {error}") from error
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        raise InputError(f"{path} is damaged ({type(error).__name__}): use another copy") from error


# ── parameters ────────────────────────────────────────────────────────────────────────────────────────────────


def plain(params: Mapping[str, Any]) -> dict[str, Any]:
    """A constructor's parameters in JSON's types, without code. The seed of a generator is written elsewhere."""
    stored = {name: value.item() if isinstance(value, np.generic) else value for name, value in params.items()}
    stored["device"] = str(params["device"])
    if not isinstance(params["random_state"], Integral):
        stored["random_state"] = None
    network = params["network"]
    if not (network is None or (isinstance(network, str) and network in NETWORKS)):
        del stored["network"]
    if ":" in str(params.get("sampler")):
        del stored["sampler"]
    return stored


def checked_params(stored: Any, names: Sequence[str], given: Mapping[str, Any]) -> dict[str, Any]:
    """The stored parameters, replaced by the given ones. Their values are checked where they are used."""
    for name in given:
        if name not in names:
            raise unknown("parameter", name, names)
    expect(isinstance(stored, dict) and set(stored) <= set(names), "the list of parameters")
    # A network, method or sampler called package.module:name would be imported: no file may choose that.
    expect(stored.get("network") in (None, *NETWORKS, *MOVED), "the network")
    for name in ("method", "sampler"):
        expect(not isinstance(stored.get(name), str) or ":" not in stored[name], f"the {name}")
    return {**stored, **given}


def check_complete(params: Mapping[str, Any], names: Sequence[str]) -> None:
    """Refuse to continue without the code that no file holds; a parameter newer than the file has its default."""
    for name in CODE:
        if name in names and name not in params:
            raise InputError(f"its {name} is code, which no file holds: pass it again, load(path, {name}=…)")


# ── inputs and labels ─────────────────────────────────────────────────────────────────────────────────────────


def about_inputs(estimator: Any) -> dict[str, Any]:
    """The form of the inputs of an estimator."""
    shape = estimator.input_shape_
    if math.prod(shape) >= LARGEST_INPUT:
        raise InputError(f"inputs of {math.prod(shape)} numbers cannot be written: {LARGEST_INPUT} is too many")
    return {"shape": list(shape), "feature_names": estimator._names()}


def restore_inputs(estimator: Any, record: Mapping[str, Any]) -> None:
    """Give an estimator the form of inputs in a record."""
    shape, names = record["shape"], record["feature_names"]
    sound = isinstance(shape, list) and all(is_whole(size, 1, LARGEST_INPUT) for size in shape)
    expect(sound and 0 < len(shape) < 8 and math.prod(shape) < LARGEST_INPUT, "the input's shape")
    sound = isinstance(names, list) and all(isinstance(name, str) for name in names)
    expect(sound and len(names) in (0, shape[0]), "the features' names")
    estimator.input_shape_, estimator.n_features_in_ = tuple(shape), shape[0]
    if names:
        estimator.feature_names_in_ = np.array(names, dtype=object)


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


# ── tensors ───────────────────────────────────────────────────────────────────────────────────────────────────


def section(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The tensors whose names begin with this prefix, without it."""
    return {name.removeprefix(prefix): each for name, each in tensors.items() if name.startswith(prefix)}


def fingerprint(x: Tensor) -> str:
    """Tells apart the examples of two classes, and fewer or more of one."""
    content = x.detach().cpu().contiguous()
    return hashlib.sha256(str(list(x.shape)).encode() + content.numpy().tobytes()).hexdigest()[:16]


def check_tensors(
    tensors: Mapping[str, Tensor],
    dimensions: Mapping[str, str],
    known: Mapping[str, int],
    integers: Sequence[str] = (),
) -> None:
    """Every tensor has the dimensions that its letters name, and holds finite numbers of the right type."""
    sizes = dict(known)
    for name, letters in dimensions.items():
        tensor = tensors[name]
        expect(tensor.ndim == len(letters), name)
        for letter, size in zip(letters, tensor.shape, strict=True):
            expect(sizes.setdefault(letter, size) == size, name)
        expect(tensor.dtype == (torch.int64 if name in integers else torch.float64), name)
        expect(bool(tensor.isfinite().all()), name)
