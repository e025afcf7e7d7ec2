"""A classifier on the disk: one safetensors file, whose metadata are JSON.

Nothing in it is code, names a function, or is unpickled. Whatever is read is checked before it is used, and its
size before anything of that size is made.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, NamedTuple

import torch
from numpy.typing import NDArray
from torch import Tensor

from rwalk import parts
from rwalk.classifier import records
from rwalk.classifier.lessons import Knowledge, check_method
from rwalk.classifier.stored import Contents
from rwalk.engine import networks
from rwalk.engine.networks import NETWORKS, Factory
from rwalk.engine.vectors import Layout, Networks
from rwalk.errors import InputError
from rwalk.learners import LAMS
from rwalk.methods import Method
from rwalk.sealed import expect, is_whole

FORMAT = "rwalk.IncrementalClassifier/2"
FIRST = "rwalk.IncrementalClassifier/1"  # whose classifiers took inputs as they came, and λ as it was


class Saved(NamedTuple):
    """What a file holds."""

    params: dict[str, Any]
    classes: NDArray[Any]
    shape: tuple[int, ...]
    feature_names: list[str]
    knowledge: Knowledge


def contents(saved: Saved) -> Contents:
    known = saved.knowledge
    records.check_writable(saved.shape)
    record = {
        "params": _params_to_json(saved.params),
        "classes": records.labels_to_json(saved.classes),
        "shape": saved.shape,
        "feature_names": saved.feature_names,
        "seed": known.seed,
        "tasks": known.tasks,
        "last_seen": known.last_seen,
        "best": known.best,
        "sharpness": known.sharpness,
    }
    record["inputs"] = {name: fingerprint(each) for name, each in _inputs(known).items()}
    tensors = {"theta": known.theta}
    tensors |= {f"method.{name}": each for name, each in known.method.items()}
    tensors |= {f"buffer.{name}": each for name, each in known.buffer.items()}
    tensors |= {f"scale.{name}": each for name, each in known.scale.items()}
    return record, tensors | _inputs(known)


def _inputs(known: Knowledge) -> dict[str, Tensor]:
    """The examples a file holds, by kind and class."""
    return {
        f"{kind}.{column}": x
        for kind, each in (("exemplars", known.exemplars), ("judges", known.judges))
        for column, x in each.items()
    }


def fingerprint(x: Tensor) -> str:
    """Tells apart the examples of two classes, and fewer or more of one."""
    content = x.detach().cpu().contiguous()
    return hashlib.sha256(str(list(x.shape)).encode() + content.numpy().tobytes()).hexdigest()[:16]


def checked(
    record: dict[str, Any], tensors: Mapping[str, Tensor], names: Sequence[str], given: Mapping[str, Any]
) -> Saved:
    """What `contents` gave; parameters (of these names) that are given replace those in the file.

    That the tensors fit the network and the method is left to `check_tensors`.
    """
    if "best" not in record:  # of the first format
        record["best"], record["sharpness"] = 0, 1.0
        record["params"] = {"lam": None, "standardize": False, **record["params"]}
    shape = records.checked_shape(record["shape"])
    return Saved(
        _checked_params(record["params"], names, given),
        records.checked_labels(record["classes"]),
        shape,
        records.checked_feature_names(record["feature_names"], shape),
        _checked_knowledge(record, tensors, shape),
    )


def check_tensors(saved: Saved, network: str | Factory, method: Method) -> None:
    """The tensors are those of this network, trained by this method."""
    classes, known = len(saved.classes), saved.knowledge
    expect(len(known.last_seen) == classes, "the list of classes")
    # The file must hold as much as it makes us build.
    _check_network(known.theta, _size_of(network, saved.shape, classes))
    check_method(method, known)
    net = Networks(networks.builder(network, saved.shape, classes), [known.seed] * len(known.theta))
    _check_network(known.theta, net.layout.size)
    expect(known.buffer.keys() == net.buffers.keys(), "the list of tensors")
    pairs = [("theta", known.theta, net.theta)]
    pairs += [(name, vector, net.theta) for name, vector in known.method.items()]
    pairs += [(name, buffer, net.buffers[name]) for name, buffer in known.buffer.items()]
    for name, tensor, like in pairs:
        expect(tensor.shape == like.shape and tensor.dtype == like.dtype, name)
        expect(not tensor.is_floating_point() or bool(tensor.isfinite().all()), name)
    stiff = (importance for _, importance, _ in method.springs(known.method))
    expect(all(bool((each >= 0).all()) for each in stiff), "an importance")


def _size_of(network: str | Factory, shape: tuple[int, ...], classes: int) -> int | None:
    """A network's parameters, counted where nothing is allocated; None if it cannot be built there."""
    try:
        with torch.device("meta"):
            return Layout.of(networks.find(network)(shape, classes)).size
    except Exception:  # of a network of the user's own; built in earnest, it says what is wrong
        return None


def _check_network(theta: Tensor, size: int | None) -> None:
    """What was written is whole, by its checksum: if the network does not fit, it is another."""
    if size is not None and theta.shape[1:] != (size,):
        raise InputError(
            f"the network has {size:,} parameters, its own {theta[0].numel():,}: give the one it was trained with"
        )


def _checked_knowledge(
    record: Mapping[str, Any], tensors: Mapping[str, Tensor], shape: tuple[int, ...]
) -> Knowledge:
    seed, tasks, last_seen = record["seed"], record["tasks"], record["last_seen"]
    expect(is_whole(seed, 0, 2**63), "the seed")
    expect(is_whole(tasks, 1, 2**63), "the number of tasks")
    expect(isinstance(last_seen, list) and all(is_whole(task, -1, tasks) for task in last_seen), "last_seen")
    expect(max(last_seen, default=-1) >= 0, "last_seen")
    exemplars, judges = (_inputs_by_class(tensors, kind, last_seen, shape) for kind in ("exemplars", "judges"))
    if "inputs" in record:  # not in files of 0.2.0
        held = [name for name in tensors if name.startswith(("exemplars.", "judges."))]
        expect(record["inputs"] == {name: fingerprint(tensors[name]) for name in held}, "the list of exemplars")
    method, buffer, scale = (_section(tensors, prefix) for prefix in ("method.", "buffer.", "scale."))
    expect("theta" in tensors, "the list of tensors")
    known = sum(len(each) for each in (method, buffer, scale, exemplars, judges))
    expect(1 + known == len(tensors), "the list of tensors")
    expect(scale.keys() in (set(), {"centre", "deviation"}), "the scale")
    for name, each in scale.items():
        expect(each.shape == (shape[0], *(1 for _ in shape[1:])) and each.dtype == torch.float32, name)
        expect(bool(each.isfinite().all()) and (name == "centre" or bool((each > 0).all())), name)
    expect(tensors["theta"].ndim == 2 and len(tensors["theta"]) in (1, len(LAMS)), "theta")
    sharp = record["sharpness"]
    expect(isinstance(sharp, float) and 0 < sharp < 100, "the sharpness")
    expect(is_whole(record["best"], 0, len(tensors["theta"])), "the best run")
    return Knowledge(
        seed, tasks, last_seen, exemplars, tensors["theta"], method, buffer, scale, judges, record["best"], sharp
    )


def _inputs_by_class(
    tensors: Mapping[str, Tensor], kind: str, last_seen: Sequence[int], shape: tuple[int, ...]
) -> dict[int, Tensor]:
    found = {}
    for column, task in enumerate(last_seen):
        if (name := f"{kind}.{column}") in tensors:
            x = found[column] = tensors[name]
            expect(task >= 0 and x.ndim == 1 + len(shape) and len(x) > 0, name)
            expect(x.shape[1:] == shape and x.dtype == torch.float32 and bool(x.isfinite().all()), name)
    return found


def _section(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): each for name, each in tensors.items() if name.startswith(prefix)}


def _params_to_json(params: Mapping[str, Any]) -> dict[str, Any]:
    """The constructor's parameters, without those that are code."""
    stored = records.plain(params)
    network = params["network"]
    if not (network is None or (isinstance(network, str) and network in NETWORKS)):
        del stored["network"]
    method = params["method"]
    if type(method) in parts.parts().values():
        settings = {each.name: getattr(method, each.name) for each in fields(method)}
        stored["method"] = {"name": method.name, **settings}
    elif not (method is None or (isinstance(method, str) and ":" not in method)):
        del stored["method"]
    if ":" in str(params["sampler"]):
        del stored["sampler"]
    return stored


def _checked_params(stored: Any, names: Sequence[str], given: Mapping[str, Any]) -> dict[str, Any]:
    """That their values can be used is left to those who use them."""
    params = records.checked_params(stored, names, given)
    # A network given as package.module:factory is imported: no file may choose what is executed.
    expect(stored.get("network") in (None, *NETWORKS), "the network")
    for name in ("method", "sampler"):
        expect(not isinstance(stored.get(name), str) or ":" not in stored[name], f"the {name}")
    for name in names:
        if name not in params:
            raise InputError(f"its {name} is code, which no file holds: pass it again, load(path, {name}=…)")
    if isinstance(method := params["method"], dict):
        settings = {name: value for name, value in method.items() if name != "name"}
        params["method"] = parts.parts()[method["name"]](**settings)
    return params
