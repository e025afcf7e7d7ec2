"""Closed form on the features of a network: as it was given, or trained on the first call."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from rwalk import IncrementalClassifier, IncrementalRegressor, InputError, model_file
from rwalk.classifier import closed_form_files

FIRST: dict[str, Any] = {"backbone": "first call", "network": "mlp"}


def products(n: int, seed: int = 0) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Classes 0 to 3 by the signs of two products of columns: features that must be learned."""
    x = np.random.default_rng(seed).normal(size=(n, 12)).astype(np.float32)
    return x, 2 * (x[:, 0] * x[:, 1] > 0) + (x[:, 2] * x[:, 3] > 0)


def pretrained() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(12, 24), nn.ReLU(), nn.Linear(24, 7))


class Body(nn.Module):
    """Ends in no linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.inside = nn.Linear(12, 16)

    def forward(self, x: Tensor) -> Tensor:
        return self.inside(x).tanh()


def test_what_the_first_call_taught_helps_with_the_next() -> None:
    x, y = products(2000)
    first, later = y < 2, y >= 2
    x_test, y_test = products(1000, seed=1)
    scores = {}
    for name, params in {"learned": FIRST, "as it begins": {"network": _mlp_as_it_begins()}}.items():
        clf = IncrementalClassifier(**params).partial_fit(x[first], y[first])
        scores[name] = clf.partial_fit(x[later], y[later]).score(x_test, y_test)
    assert scores["learned"] > scores["as it begins"] + 0.05


def _mlp_as_it_begins() -> nn.Module:
    torch.manual_seed(0)
    layers = (nn.Linear(12, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 2))
    return nn.Sequential(*layers)


@pytest.mark.parametrize("network", ["mlp", pretrained(), Body()], ids=["name", "module", "no last layer"])
def test_after_the_first_call_order_does_not_matter(network: Any) -> None:
    x, y = products(400)
    clf = IncrementalClassifier(backbone="first call", network=network, dtype="float64").partial_fit(x, y)
    rows = np.random.default_rng(1).permutation(len(x))
    other = clf.fresh()
    for part in np.split(rows, 8):
        other.partial_fit(x[part], y[part])
    np.testing.assert_allclose(other.coef_, clf.coef_, rtol=0, atol=1e-8 * np.abs(clf.coef_).max())


def test_a_module_goes_on_from_its_weights_and_is_left_alone() -> None:
    module = pretrained()
    before = {name: each.clone() for name, each in module.state_dict().items()}
    clf = IncrementalClassifier(backbone="first call", network=module).fit(*products(400))
    assert all(torch.equal(each, before[name]) for name, each in module.state_dict().items())
    assert clf.coef_.shape == (4, 24)
    learned = clf._inner._model.counted.map.network[1][0].weight  # type: ignore[union-attr]
    moved, far = (learned - before["0.weight"]).norm(), (learned - torch.randn_like(learned)).norm()
    assert 0 < moved < far / 2


@pytest.mark.parametrize("network", ["mlp", pretrained()], ids=["name", "module"])
def test_it_is_saved_whole_and_goes_on_exactly(network: Any, tmp_path: Path) -> None:
    x, y = products(400)
    path = tmp_path / "model"
    clf = IncrementalClassifier(backbone="first call", network=network).partial_fit(x, y)
    clf.save(path)
    given = {} if isinstance(network, str) else {"network": pretrained()}
    again = IncrementalClassifier.load(path, **given)
    for each in (clf, again):
        each.partial_fit(*products(50, seed=3))
    np.testing.assert_array_equal(again.predict_proba(x), clf.predict_proba(x))
    if given:
        with pytest.raises(InputError, match="its features are a network, which no file holds"):
            IncrementalClassifier.load(path)
        with pytest.raises(InputError, match="not the one that was trained"):
            IncrementalClassifier.load(path, network=Body())


def test_a_damaged_file_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "model"
    IncrementalClassifier(**FIRST).fit(*products(200)).save(path)
    metadata, tensors = model_file.read(path)
    record = json.loads(metadata["record"])
    name = next(key for key in tensors if key.startswith("map.1") and key.endswith("weight"))
    wrong = {
        "the number of outputs": ({**record, "map": {**record["map"], "outputs": 10**6}}, tensors),
        "not the one that was trained": (record, {**tensors, name: tensors[name][1:].clone()}),
        "the network": (record, {**tensors, name: tensors[name] * float("nan")}),
        "the features are others": (record, {**tensors, name: tensors[name] + 1}),
    }
    for what, contents in wrong.items():
        model_file.write(path, closed_form_files.FORMAT, *contents)
        with pytest.raises(InputError, match=what):
            IncrementalClassifier.load(path)


def test_forgetting_says_that_the_network_still_knows() -> None:
    x, y = products(300)
    clf = IncrementalClassifier(**FIRST).fit(x, y)
    with pytest.warns(UserWarning, match="a network trained on them"):
        clf.forget(x[:10], y[:10])
    frozen = IncrementalClassifier(network=pretrained()).fit(x, y)
    frozen.forget(x[:10], y[:10])  # given, it knows nothing of these data: nothing to warn about


@pytest.mark.parametrize(
    ("act", "match"),
    [
        (lambda x, y: IncrementalClassifier(backbone="first call").fit(x, y), "name it, network='cnn'"),
        (lambda x, y: IncrementalClassifier(backbone="frist call").fit(x, y), "did you mean 'first call'"),
        (lambda x, y: IncrementalClassifier(network="mlp").fit(x, y), "set backbone='first call'"),
        (lambda x, y: IncrementalClassifier(**FIRST).fit(x, y * 0), "at least two in the first call"),
        (lambda x, y: IncrementalRegressor(**FIRST).fit(x, x[:, 0]), "learns to separate classes"),
    ],
)
def test_what_cannot_be_trained_is_said(act: Any, match: str) -> None:
    with pytest.raises(InputError, match=match):
        act(*products(200))
