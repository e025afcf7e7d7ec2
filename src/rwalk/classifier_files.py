"""A classifier on the disk: one safetensors file, whose metadata are JSON.

Nothing in it is code, names a function, or is unpickled. Whatever is read is checked before it is used, and its
size before anything of that size is made.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import fields
from numbers import Integral
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rwalk import networks, sealed
from rwalk.errors import InputError, unknown
from rwalk.lessons import LEARNED, Knowledge, check_method
from rwalk.methods import METHODS, Method
from rwalk.methods.gem import AGEM, GEM
from rwalk.networks import NETWORKS, Factory
from rwalk.sealed import expect, is_whole
from rwalk.vectors import Layout, Networks

FORMAT = "rwalk.IncrementalClassifier/1"
WRITABLE: dict[str, Any] = {**METHODS, GEM.name: GEM, AGEM.name: AGEM}  # methods whose numbers a file can hold
LABEL_TYPES = ("str", "object", "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
               "float16", "float32", "float64")  # fmt: skip
LARGEST_INPUT = 1 << 22  # numbers in one input: the parameters of a convolutional network do not bound its images


class Saved(NamedTuple):
    """What a file holds."""

    params: dict[str, Any]
    classes: NDArray[Any]
    shape: tuple[int, ...]
    feature_names: list[str]
    knowledge: Knowledge


def write(path: Path, saved: Saved) -> None:
    """All of it or nothing."""
    known = saved.knowledge
    if math.prod(saved.shape) >= LARGEST_INPUT:
        raise InputError(
            f"inputs of {math.prod(saved.shape)} numbers cannot be written: {LARGEST_INPUT} is too many"
        )
    record = {
        "params": _params_to_json(saved.params),
        "classes": _labels_to_json(saved.classes),
        "shape": saved.shape,
        "feature_names": saved.feature_names,
        "seed": known.seed,
        "tasks": known.tasks,
        "last_seen": known.last_seen,
    }
    exemplars = {f"exemplars.{column}": x for column, x in known.exemplars.items()}
    sealed.write(path, FORMAT, record, {**known.tensors, **exemplars})


def read(path: Path, names: Sequence[str], given: Mapping[str, Any]) -> Saved:
    """What `write` wrote; parameters (of these names) that are given replace those in the file.

    That the tensors fit the network and the method is left to `check_tensors`.
    """
    metadata, tensors = sealed.read(path)
    if metadata.get("format") != FORMAT:
        raise InputError(f"it is no classifier of this version, for its format is not {FORMAT}")
    record = sealed.unsealed(metadata, tensors)
    shape = _checked_shape(record["shape"])
    return Saved(
        _checked_params(record["params"], names, given),
        _checked_labels(record["classes"]),
        shape,
        _checked_feature_names(record["feature_names"], shape),
        _checked_knowledge(record, tensors, shape),
    )


def check_tensors(saved: Saved, network: str | Factory, method: Method) -> None:
    """The tensors are those of this network, trained by this method."""
    classes, tensors = len(saved.classes), saved.knowledge.tensors
    expect(len(saved.knowledge.last_seen) == classes and "theta" in tensors, "the list of classes or of tensors")
    # The file must hold as much as it makes us build.
    _check_network(tensors["theta"], _size_of(network, saved.shape, classes))
    check_method(method, saved.knowledge)
    net = Networks(networks.builder(network, saved.shape, classes), [saved.knowledge.seed])
    _check_network(tensors["theta"], net.layout.size)
    expected = {name: net.theta for name in tensors if name == "theta" or name.startswith("method.")}
    expected |= {f"buffer.{name}": buffer for name, buffer in net.buffers.items()}
    expect(expected.keys() == tensors.keys(), "the list of tensors")
    for name, like in expected.items():
        tensor = tensors[name]
        expect(tensor.shape == like.shape and tensor.dtype == like.dtype, name)
        expect(not tensor.is_floating_point() or bool(tensor.isfinite().all()), name)
    state = {name.removeprefix("method."): v for name, v in tensors.items() if name.startswith("method.")}
    expect(all(bool((importance >= 0).all()) for _, importance, _ in method.springs(state)), "an importance")


def _size_of(network: str | Factory, shape: tuple[int, ...], classes: int) -> int | None:
    """A network's parameters, counted where nothing is allocated; None if it cannot be built there."""
    try:
        with torch.device("meta"):
            return Layout.of(networks.find(network)(shape, classes)).size
    except Exception:  # of a network of the user's own; built in earnest, it says what is wrong
        return None


def _check_network(theta: Tensor, size: int | None) -> None:
    """What was written is whole, by its checksum: if the network does not fit, it is another."""
    if size is not None and theta.shape != (1, size):
        raise InputError(
            f"the network has {size:,} parameters, its own {theta.numel():,}: give the one it was trained with"
        )


def _checked_knowledge(
    record: Mapping[str, Any], tensors: Mapping[str, Tensor], shape: tuple[int, ...]
) -> Knowledge:
    seed, tasks, last_seen = record["seed"], record["tasks"], record["last_seen"]
    expect(is_whole(seed, 0, 2**63), "the seed")
    expect(is_whole(tasks, 1, 2**63), "the number of tasks")
    expect(isinstance(last_seen, list) and all(is_whole(task, -1, tasks) for task in last_seen), "last_seen")
    expect(max(last_seen, default=-1) >= 0, "last_seen")
    exemplars = {}
    for column, task in enumerate(last_seen):
        if (name := f"exemplars.{column}") in tensors:
            x = exemplars[column] = tensors[name]
            expect(task >= 0 and x.ndim == 1 + len(shape) and len(x) > 0, name)
            expect(x.shape[1:] == shape and x.dtype == torch.float32 and bool(x.isfinite().all()), name)
    learned = {name: tensor for name, tensor in tensors.items() if name.startswith(LEARNED)}
    expect(len(learned) + len(exemplars) == len(tensors), "the list of tensors")
    return Knowledge(seed, tasks, last_seen, exemplars, learned)


def _checked_shape(shape: Any) -> tuple[int, ...]:
    sound = isinstance(shape, list) and all(is_whole(size, 1, LARGEST_INPUT) for size in shape)
    expect(sound and 0 < len(shape) < 8 and math.prod(shape) < LARGEST_INPUT, "the input's shape")
    return tuple(shape)


def _checked_feature_names(names: Any, shape: tuple[int, ...]) -> list[str]:
    sound = isinstance(names, list) and all(isinstance(name, str) for name in names)
    expect(sound and len(names) in (0, shape[0]), "the features' names")
    return list(names)


def _params_to_json(params: Mapping[str, Any]) -> dict[str, Any]:
    """The constructor's parameters, without those that are code."""
    stored = {name: value.item() if isinstance(value, np.generic) else value for name, value in params.items()}
    stored["device"] = str(params["device"])
    if not isinstance(params["random_state"], Integral):
        stored["random_state"] = None  # the seed it gave is part of what was learned
    if not (isinstance(params["network"], str) and params["network"] in NETWORKS):
        del stored["network"]
    method = params["method"]
    if type(method) in WRITABLE.values():
        numbers = {each.name: getattr(method, each.name) for each in fields(method)}
        stored["method"] = {"name": method.name, **numbers}
    elif not (method is None or isinstance(method, str)):
        del stored["method"]
    return stored


def _checked_params(stored: Any, names: Sequence[str], given: Mapping[str, Any]) -> dict[str, Any]:
    """That their values can be used is left to those who use them."""
    for name in given:
        if name not in names:
            raise unknown("parameter", name, names)
    expect(isinstance(stored, dict) and set(stored) <= set(names), "the list of parameters")
    # A network given as package.module:factory is imported: no file may choose what is executed.
    expect(stored.get("network", "mlp") in NETWORKS, "the network")
    params = {**stored, **given}
    for name in names:
        if name not in params:
            raise InputError(f"its {name} is code, which no file holds: pass it again, load(path, {name}=…)")
    if isinstance(method := params["method"], dict):
        numbers = {name: number for name, number in method.items() if name != "name"}
        params["method"] = WRITABLE[method["name"]](**numbers)
    return params


def _labels_to_json(labels: NDArray[Any]) -> dict[str, Any]:
    values = labels.tolist()
    if not all(isinstance(value, str | int | float) for value in values):
        raise InputError(f"labels of type {type(values[0]).__name__} cannot be written: use strings or numbers")
    return {"type": "str" if labels.dtype.kind == "U" else labels.dtype.name, "values": values}


def _checked_labels(stored: Any) -> NDArray[Any]:
    kind, values = stored["type"], stored["values"]
    expect(kind in LABEL_TYPES and isinstance(values, list) and len(values) > 0, "the list of labels")
    types = str if kind == "str" else str | int | float
    expect(all(isinstance(value, types) for value in values), "the list of labels")
    labels = np.array(values, dtype=kind)
    expect(len(set(labels.tolist())) == len(labels), "the list of labels")
    return labels
