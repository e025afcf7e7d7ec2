"""A choice on disk: the files of all candidates in one, and the judges."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rwalk.classifier import records
from rwalk.classifier.stored import Contents, Stored
from rwalk.engine.networks import NETWORKS
from rwalk.errors import InputError
from rwalk.labels import columns_of
from rwalk.sealed import expect

FORMAT = "rwalk.auto/1"
JUDGES = ("judges.x", "judges.y")


class Saved(NamedTuple):
    """What a file holds."""

    params: dict[str, Any]
    classes: NDArray[Any]
    shape: tuple[int, ...]
    feature_names: list[str]
    judges: tuple[Tensor, NDArray[Any]]
    candidates: dict[str, Contents]


def about(
    params: Mapping[str, Any], classes: NDArray[Any], shape: tuple[int, ...], names: list[str]
) -> dict[str, Any]:
    """What is written beside the candidates."""
    records.check_writable(shape)
    stored = records.plain(params)
    network = params["network"]
    if not (network is None or (isinstance(network, str) and network in NETWORKS)):
        del stored["network"]
    if ":" in str(params["sampler"]):
        del stored["sampler"]
    labels = records.labels_to_json(classes)
    return {"params": stored, "classes": labels, "shape": list(shape), "feature_names": names}


def contents(
    record: dict[str, Any], candidates: Mapping[str, Stored], judges: tuple[Tensor, NDArray[Any]]
) -> Contents:
    x, y = judges
    classes = np.array(record["classes"]["values"], dtype=y.dtype)
    tensors = dict(zip(JUDGES, (x.cpu().contiguous(), columns_of(y, classes)), strict=True))
    held = {name: each._contents() for name, each in candidates.items()}
    for name, (_, own) in held.items():
        tensors |= {f"{name}/{key}": tensor for key, tensor in own.items()}
    return {**record, "candidates": {name: own for name, (own, _) in held.items()}}, tensors


def checked(
    record: dict[str, Any], tensors: Mapping[str, Tensor], names: Sequence[str], given: Mapping[str, Any]
) -> Saved:
    """What `contents` gave; parameters (of these names) that are given replace those in the file."""
    params = records.checked_params(record["params"], names, given)
    expect(record["params"].get("network") in (None, *NETWORKS), "the network")
    expect(":" not in str(record["params"].get("sampler")), "the sampler")
    for name in names:
        if name not in params:
            raise InputError(f"its {name} is code, which no file holds: pass it again, load(path, {name}=…)")
    expect(params["method"] == "auto", "the method")
    shape, classes = records.checked_shape(record["shape"]), records.checked_labels(record["classes"])
    x, columns = (tensors[name] for name in JUDGES)
    expect(tuple(x.shape[1:]) == shape and bool(x.isfinite().all()), "a judge")
    expect(columns.dtype == torch.int64 and columns.shape == (len(x),), "a judge")
    expect(bool(((columns >= 0) & (columns < len(classes))).all()), "a judge")
    own = {name: (each, _of(name, tensors)) for name, each in record["candidates"].items()}
    expect(len(JUDGES) + sum(len(each) for _, each in own.values()) == len(tensors), "the list of tensors")
    feature_names = records.checked_feature_names(record["feature_names"], shape)
    return Saved(params, classes, shape, feature_names, (x, classes[columns.numpy()]), own)


def _of(name: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    prefix = f"{name}/"
    return {key.removeprefix(prefix): each for key, each in tensors.items() if key.startswith(prefix)}
