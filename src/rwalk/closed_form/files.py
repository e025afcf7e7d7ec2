"""An estimator on the disk: one safetensors file of sums, checked before it is believed.

Nothing in a file names a function, and nothing is unpickled. What is read is checked, names, types, shapes and
sizes, before it is used.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from rwalk.analytic.features import KINDS, FeatureMap, fingerprint, tensors_of
from rwalk.analytic.model import Examples, Model
from rwalk.analytic.statistics import Statistics
from rwalk.errors import InputError, first_line, unknown
from rwalk.files import parse_json, write_atomically

FORMAT = "rwalk.closed_form/1"
LABEL_TYPES = ("str", "object", "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
               "float16", "float32", "float64")  # fmt: skip
LARGEST_INPUT = 1 << 24  # numbers in one input

# Every tensor of a map by its dimensions: equal letters are equal sizes, figures are themselves.
DIMENSIONS = {
    "vectors": {"centre": "d", "scale": "d", "slopes": "dr", "offsets": "r", "waves": "df", "mixing": "dm"},
    "images": {"filters": "kcss", "offsets": "k", "faint": "", "grid": ""},
}
SUMS = {"gram": "t", "total": "D", "cross": "DC", "targets": "C", "squares": "C", "weight": "", "counts": "C"}
HELD = ("x", "y", "weight")
WHOLE = ("counts", "grid")


# ── writing ───────────────────────────────────────────────────────────────────────────────────────────────────


def write(path: Path, name: str, params: Mapping[str, Any], about: Mapping[str, Any], model: Model) -> None:
    """All of it or nothing."""
    tensors: dict[str, Tensor] = {}
    if model.map is None:
        for place, each in enumerate(model.held):
            tensors |= {f"held.{place}.{field}": getattr(each, field) for field in HELD}
    else:
        assert model.statistics is not None
        tensors |= {f"map.{key}": tensor for key, tensor in tensors_of(model.map).items()}
        tensors |= {f"sums.{key}": tensor for key, tensor in model.statistics.tensors().items()}
        tensors["sums.gram"] = _upper(tensors["sums.gram"])
    record = {
        **about,
        "estimator": name,
        "params": _params_to_json(params),
        "seed": model.recipe.seed,
        "map": None if model.map is None else {"kind": model.map.kind, "fingerprint": fingerprint(model.map)},
        "held": len(model.held),
    }
    text = json.dumps(record)
    tensors = {key: tensor.detach().cpu().contiguous() for key, tensor in tensors.items()}
    metadata = {"format": FORMAT, "record": text, "sha256": _checksum(text, tensors)}
    try:
        write_atomically(path, safetensors.torch.save(tensors, metadata))
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror or error}") from error


def labels_to_json(labels: NDArray[Any]) -> dict[str, Any]:
    values = labels.tolist()
    if not all(isinstance(value, str | int | float) for value in values):
        raise InputError(f"labels of type {type(values[0]).__name__} cannot be written: use strings or numbers")
    return {"type": "str" if labels.dtype.kind == "U" else labels.dtype.name, "values": values}


def _params_to_json(params: Mapping[str, Any]) -> dict[str, Any]:
    stored = {name: value.item() if isinstance(value, np.generic) else value for name, value in params.items()}
    stored["device"] = str(params["device"])
    if not isinstance(params["random_state"], Integral):
        stored["random_state"] = None  # the seed it gave is written beside
    if isinstance(params["features"], nn.Module):
        del stored["features"]
    return stored


def _upper(gram: Tensor) -> Tensor:
    rows, columns = torch.triu_indices(len(gram), len(gram), device=gram.device)
    return gram[rows, columns]


# ── reading ───────────────────────────────────────────────────────────────────────────────────────────────────


@contextmanager
def reading(path: str | Path) -> Iterator[None]:
    """Whatever goes wrong with a file, in one line that names it."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{path} cannot be loaded: {error}") from error
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        raise InputError(f"{path} is damaged ({type(error).__name__}): use another copy") from error


def read(
    path: Path, estimator: str, names: Sequence[str], given: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any], dict[str, Tensor]]:
    """Parameters (those given in place of those stored), the record and the tensors."""
    record, tensors = _contents(path)
    if record["estimator"] != estimator:
        raise InputError(f"it holds a {record['estimator']!s}, not a {estimator}: load it as one")
    for name in given:
        if name not in names:
            raise unknown("parameter", name, names)
    stored = record["params"]
    _expect(isinstance(stored, dict) and set(stored) <= set(names), "the list of parameters")
    params = {**stored, **given}
    if "features" not in params:
        raise InputError("its features are a network, which no file holds: pass it again, load(path, features=…)")
    return params, record, tensors


def restore(model: Model, record: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Put what a file holds into a model that has learned nothing."""
    _expect(type(record["seed"]) is int and 0 <= record["seed"] < 2**63, "the seed")
    model.recipe = model.recipe.with_seed(record["seed"])
    if record["map"] is None:
        model.held = [_held(model, tensors, place) for place in range(_whole(record["held"]))]
        _expect(len(tensors) == len(HELD) * len(model.held), "the list of tensors")
        return
    features = _restored_map(model, record["map"], tensors)
    model.take(features)
    size = sum(features.blocks)
    sums = {name: tensors[f"sums.{name}"] for name in SUMS}
    _fits(sums, SUMS, {"D": size, "C": model.columns, "t": size * (size + 1) // 2})
    _expect(bool((sums["counts"] >= 0).all()) and float(sums["weight"]) >= 0, "the counts")
    gram = torch.zeros(size, size, dtype=torch.float64)
    rows, columns = torch.triu_indices(size, size)
    gram[rows, columns] = sums["gram"]
    places = {**sums, "gram": gram}
    model.statistics = Statistics(*(places[name].to(model.device) for name in SUMS))


def checked_shape(shape: Any) -> tuple[int, ...]:
    sound = isinstance(shape, list) and all(type(size) is int and 0 < size < LARGEST_INPUT for size in shape)
    _expect(sound and 0 < len(shape) < 8 and math.prod(shape) < LARGEST_INPUT, "the input's shape")
    return tuple(shape)


def checked_names(names: Any, shape: tuple[int, ...]) -> list[str]:
    sound = isinstance(names, list) and all(isinstance(name, str) for name in names)
    _expect(sound and len(names) in (0, shape[0]), "the features' names")
    return list(names)


def checked_labels(stored: Any) -> NDArray[Any]:
    kind, values = stored["type"], stored["values"]
    _expect(kind in LABEL_TYPES and isinstance(values, list), "the list of labels")
    types = str if kind == "str" else str | int | float
    _expect(all(isinstance(value, types) for value in values), "the list of labels")
    labels = np.array(values, dtype=kind)
    _expect(len(set(labels.tolist())) == len(labels), "the list of labels")
    return labels


def checked_targets(targets: Any, flat: Any) -> tuple[int, bool]:
    _expect(type(flat) is bool and _whole(targets) > 0 and not (flat and targets != 1), "the number of targets")
    return targets, flat


def _restored_map(model: Model, stored: Any, tensors: Mapping[str, Tensor]) -> FeatureMap:
    kind = model.recipe.kind(model.shape)
    _expect(stored["kind"] == kind, "the kind of features")
    features: FeatureMap
    if kind == "backbone":
        _expect(len(tensors) == len(SUMS), "the list of tensors")
        features = model.recipe.make(torch.zeros(1, *model.shape, device=model.device), torch.ones(1))
    else:
        parts = {name: tensors[f"map.{name}"] for name in DIMENSIONS[kind]}
        _expect(len(tensors) == len(parts) + len(SUMS), "the list of tensors")
        known = {"d": math.prod(model.shape)} if kind == "vectors" else {"c": model.shape[0]}
        _fits(parts, DIMENSIONS[kind], known)
        _expect(bool((parts["scale"] > 0).all()) if kind == "vectors" else float(parts["faint"]) > 0, "a scale")
        _expect(kind == "vectors" or 0 < int(parts["grid"]) <= min(model.shape[1:]), "the grid")
        features = KINDS[kind](**parts)
    if fingerprint(features) != stored["fingerprint"]:
        raise InputError("the features are others than those it was trained with: give the same network")
    return features


def _held(model: Model, tensors: Mapping[str, Tensor], place: int) -> Examples:
    x, y, weight = (tensors[f"held.{place}.{field}"] for field in HELD)
    _expect(tuple(x.shape[1:]) == model.shape and x.dtype == model.dtype and bool(x.isfinite().all()), "an input")
    _expect(
        len(x) == len(y) == len(weight) and weight.dtype == torch.float64 and bool((weight > 0).all()), "a weight"
    )
    labels = y.dtype == torch.int64 and y.ndim == 1 and bool(((y >= 0) & (y < model.columns)).all())
    numbers = y.dtype == torch.float64 and y.ndim == 2 and y.shape[1] == model.columns and bool(y.isfinite().all())
    _expect(labels or numbers, "a target")
    return Examples(x, y, weight)


def _fits(tensors: Mapping[str, Tensor], dimensions: Mapping[str, str], known: Mapping[str, int]) -> None:
    """Every tensor has the dimensions its letters say, and holds finite numbers of the right type."""
    sizes = dict(known)
    for name, letters in dimensions.items():
        tensor = tensors[name]
        _expect(tensor.ndim == len(letters), name)
        for letter, size in zip(letters, tensor.shape, strict=True):
            _expect(sizes.setdefault(letter, size) == size, name)
        _expect(tensor.dtype == (torch.int64 if name in WHOLE else torch.float64), name)
        _expect(bool(tensor.isfinite().all()), name)


def _contents(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    if not path.is_file():
        raise InputError("there is no such file: give the path that `save` was given")
    try:
        with safe_open(path, "pt") as file:
            metadata = file.metadata() or {}
            if metadata.get("format") != FORMAT:
                raise InputError(f"it is no estimator of this version, for its format is not {FORMAT}")
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no mapping
        text = metadata.get("record", "")
        _expect(metadata.get("sha256") == _checksum(text, tensors), "its checksum")
        record = parse_json(text)
    except InputError:
        raise
    except (OSError, ValueError, SafetensorError) as error:
        raise InputError(f"it is damaged ({first_line(error)}): use another copy") from error
    _expect(isinstance(record, dict), "its record")
    return record, tensors


def _checksum(record: str, tensors: Mapping[str, Tensor]) -> str:
    """Shows damage that leaves the file readable; it is no signature."""
    digest = hashlib.sha256(record.encode())
    for name in sorted(tensors):
        digest.update(name.encode())
        digest.update(tensors[name].contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _whole(number: Any) -> int:
    _expect(type(number) is int and 0 <= number < 2**31, "a number")
    return int(number)


def _expect(holds: bool, what: str) -> None:
    if not holds:
        raise InputError(f"it is damaged, {what} cannot be right: use another copy")
