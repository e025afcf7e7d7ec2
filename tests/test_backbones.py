"""Closed form on the features of a network that was trained before."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

from rwalk import IncrementalClassifier, InputError, model_file
from rwalk.classifier import closed_form_files


def products(n: int, seed: int = 0) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Classes 0 to 3 by the signs of two products of columns: features that must be learned."""
    x = np.random.default_rng(seed).normal(size=(n, 12)).astype(np.float32)
    return x, 2 * (x[:, 0] * x[:, 1] > 0) + (x[:, 2] * x[:, 3] > 0)


def pretrained() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(12, 24), nn.ReLU(), nn.Linear(24, 7))


def test_a_network_of_the_first_call_helps_with_the_next() -> None:
    x, y = products(2000)
    first, later = y < 2, y >= 2
    asked = products(1000, seed=1)
    trained = IncrementalClassifier(method=None, network="mlp").fit(x[first], y[first]).network_
    scores = []
    for network in (trained, _mlp_as_it_begins()):
        clf = IncrementalClassifier(network=network, size=1).partial_fit(x[first], y[first])
        scores.append(clf.partial_fit(x[later], y[later]).score(*asked))
    assert scores[0] > scores[1] + 0.05


def _mlp_as_it_begins() -> nn.Module:
    torch.manual_seed(0)
    layers = (nn.Linear(12, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 2))
    return nn.Sequential(*layers)


def test_a_file_needs_its_network(tmp_path: Path) -> None:
    x, y = products(400)
    IncrementalClassifier(network=pretrained()).fit(x, y).save(tmp_path / "model")
    again = IncrementalClassifier.load(tmp_path / "model", network=pretrained())
    assert again.score(x, y) > 0.3
    with pytest.raises(InputError, match="its features are a network, which no file holds"):
        IncrementalClassifier.load(tmp_path / "model")
    other = nn.Sequential(nn.Linear(12, 24), nn.ReLU(), nn.Linear(24, 7))
    with pytest.raises(InputError, match="the features are others"):
        IncrementalClassifier.load(tmp_path / "model", network=other)


def test_files_with_a_network_of_the_first_call_are_refused_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "model"
    IncrementalClassifier(size=10).fit(*products(50)).save(path)
    metadata, tensors = model_file.read(path)
    record = json.loads(metadata["record"])
    for backbone, opens in (("frozen", True), ("first call", False)):  # what version 0.2.0 wrote
        record["params"]["backbone"] = backbone
        model_file.write(path, closed_form_files.FORMAT, record, tensors)
        if opens:
            IncrementalClassifier.load(path)
            continue
        with pytest.raises(
            InputError, match=r"trained by backbone='first call', which is no more: learn it again$"
        ):
            IncrementalClassifier.load(path)


def test_forgetting_from_a_given_network_has_nothing_to_warn_about() -> None:
    x, y = products(300)
    frozen = IncrementalClassifier(network=pretrained()).fit(x, y)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        frozen.forget(x[:10], y[:10])


def test_a_network_that_is_not_trained_is_refused_with_the_remedy() -> None:
    with pytest.raises(InputError, match=r"IncrementalClassifier\(method=None, network=…\)\.fit"):
        IncrementalClassifier(network="mlp").fit(*products(50))
