"""Closed form on the disk: whatever was saved goes on exactly, whatever is wrong is one line."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from safetensors import safe_open
from torch import nn

from rwalk import model_file
from rwalk.classifier import closed_form_files as files
from rwalk.classifier.closed_form import ClosedFormClassifier, IncrementalRegressor
from rwalk.closed_form.features.patches import PatchFeatures
from rwalk.errors import InputError


def table() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 200)
    return rng.normal(size=(3, 4))[y] * 3 + rng.normal(size=(200, 4)), np.array(["ant", "bee", "cat"])[y]


def saved(path: Path, **params: object) -> ClosedFormClassifier:
    clf = ClosedFormClassifier(**{"size": 40, **params})  # type: ignore[arg-type]
    clf.fit(*table()).save(path)
    return clf


@pytest.mark.parametrize("warm_up", [100, 1000], ids=["sums", "still holding examples"])
@pytest.mark.parametrize("method", ["closed-form", "lda"])
def test_a_loaded_classifier_goes_on_as_if_it_had_never_been_saved(tmp_path, warm_up, method):
    x, _ = table()
    clf = saved(tmp_path / "c", warm_up=warm_up, method=method, random_state=np.random.RandomState(3))
    again = ClosedFormClassifier.load(tmp_path / "c")
    assert again.classes_.tolist() == ["ant", "bee", "cat"]
    np.testing.assert_array_equal(clf.predict_proba(x), again.predict_proba(x))
    for each in (clf, again):
        each.partial_fit(x[:30], ["dog"] * 30)
    np.testing.assert_array_equal(clf.coef_, again.coef_)
    both = clf + again if warm_up == 100 else None
    assert both is None or both.classes_.tolist() == ["ant", "bee", "cat", "dog"]


def test_a_regressor_and_its_shape_of_targets_come_back(tmp_path):
    x, _ = table()
    for y in (x[:, 0] ** 2, x[:, :2] ** 2):
        IncrementalRegressor(size=40).fit(x, y).save(tmp_path / "r")
        assert IncrementalRegressor.load(tmp_path / "r").predict(x).shape == y.shape


def test_images_come_back(tmp_path):
    x = np.random.default_rng(0).random((30, 1, 16, 16))
    clf = ClosedFormClassifier(size=5, warm_up=10).fit(x, np.arange(30) % 2)
    clf.save(tmp_path / "i")
    np.testing.assert_array_equal(ClosedFormClassifier.load(tmp_path / "i").coef_, clf.coef_)


def test_images_of_earlier_files_have_no_root(tmp_path, monkeypatch):
    made = PatchFeatures.make.__func__
    monkeypatch.setattr(
        PatchFeatures, "make", classmethod(lambda cls, *a, **k: replace(made(cls, *a, **k), floor=None))
    )
    x = np.random.default_rng(0).random((30, 1, 16, 16))
    clf = ClosedFormClassifier(size=5, warm_up=10).fit(x, np.arange(30) % 2)
    clf.save(tmp_path / "i")
    with safe_open(tmp_path / "i", "pt") as file:
        assert "map.floor" not in file.keys()  # noqa: SIM118 - no mapping
    again = ClosedFormClassifier.load(tmp_path / "i")
    np.testing.assert_array_equal(again.predict_proba(x), clf.predict_proba(x))


def test_a_file_holds_no_examples_once_the_map_is_made(tmp_path):
    saved(tmp_path / "c")
    with safe_open(tmp_path / "c", "pt") as file:
        names = set(file.keys())
    assert not any(name.startswith("held") for name in names)


def test_a_network_is_asked_for_again_and_must_be_the_same(tmp_path):
    x, y = table()
    torch.manual_seed(0)
    network, other = nn.Sequential(nn.Linear(4, 8), nn.Tanh()), nn.Sequential(nn.Linear(4, 8), nn.Tanh())
    clf = ClosedFormClassifier(network=network).fit(x, y)
    clf.save(tmp_path / "n")
    with pytest.raises(InputError, match=r"load\(path, network=…\)"):
        ClosedFormClassifier.load(tmp_path / "n")
    with pytest.raises(InputError, match="give the same network"):
        ClosedFormClassifier.load(tmp_path / "n", network=other)
    again = ClosedFormClassifier.load(tmp_path / "n", network=network)
    np.testing.assert_array_equal(again.predict(x), clf.predict(x))


def test_another_estimator_is_named(tmp_path):
    saved(tmp_path / "c")
    with pytest.raises(InputError, match="holds a IncrementalClassifier"):
        IncrementalRegressor.load(tmp_path / "c")
    with pytest.raises(InputError, match="did you mean 'ridge'"):
        ClosedFormClassifier.load(tmp_path / "c", rigde=1.0)
    with pytest.raises(InputError, match="no such file"):
        ClosedFormClassifier.load(tmp_path / "nowhere")


def test_labels_that_cannot_be_written_are_refused(tmp_path):
    labels = np.empty(4, dtype=object)
    labels[:] = [(0, 1), (1, 2), (0, 1), (1, 2)]
    clf = ClosedFormClassifier(size=8).fit(np.eye(4), labels)
    with pytest.raises(InputError, match="use strings or numbers"):
        clf.save(tmp_path / "c")


def test_every_flipped_bit_is_noticed(tmp_path):
    path = tmp_path / "c"
    saved(path)
    whole = path.read_bytes()
    rng = np.random.default_rng(0)
    for place in rng.integers(0, len(whole), 60):
        damaged = bytearray(whole)
        damaged[place] ^= 1 << int(rng.integers(0, 8))
        path.write_bytes(damaged)
        with pytest.raises(InputError) as caught:
            ClosedFormClassifier.load(path)
        assert "\n" not in str(caught.value)


def rewritten(path: Path, record: dict[str, object], tensors: dict[str, torch.Tensor]) -> None:
    """As somebody who knows the format would forge it: with a checksum that fits."""
    with safe_open(path, "pt") as file:
        old = json.loads(file.metadata()["record"])
        kept = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    text, every = json.dumps({**old, **record}), {**kept, **tensors}
    metadata = model_file.metadata(files.FORMAT, text, every)
    path.write_bytes(safetensors.torch.save(every, metadata))


@pytest.mark.parametrize(
    ("record", "tensors"),
    [
        ({"shape": [1 << 30]}, {}),
        ({"shape": "4"}, {}),
        ({"classes": {"type": "object_", "values": []}}, {}),
        ({"classes": {"type": "str", "values": ["a", "a", "b"]}}, {}),
        ({"classes": {"type": "str", "values": ["a"]}}, {}),
        ({"params": {"features": "auto", "evil": 1}}, {}),
        ({"params": 7}, {}),
        ({"map": {"kind": "images", "fingerprint": ""}}, {}),
        ({"map": None, "held": 10**9}, {}),
        ({"seed": -1}, {}),
        ({}, {"sums.counts": torch.tensor([-1, 3, 4])}),
        ({}, {"sums.total": torch.full((44,), torch.nan, dtype=torch.float64)}),
        ({}, {"sums.cross": torch.zeros(44, 2, dtype=torch.float64)}),
        ({}, {"map.scale": torch.zeros(4, dtype=torch.float64)}),
        ({}, {"map.waves": torch.zeros(5, 10, dtype=torch.float64)}),
        ({}, {"more": torch.zeros(1)}),
    ],
)
def test_what_cannot_be_right_is_refused_even_with_a_sound_checksum(tmp_path, record, tensors):
    path = tmp_path / "c"
    saved(path)
    rewritten(path, record, tensors)
    with pytest.raises(InputError) as caught:
        ClosedFormClassifier.load(path)
    assert "\n" not in str(caught.value)


def _forged_moments() -> dict[str, torch.Tensor]:
    """Second moments that no features have, as the upper triangle that a file holds."""
    gram = torch.eye(44, dtype=torch.float64) * 200
    rows, columns = torch.triu_indices(44, 44)
    direction = torch.ones(44, dtype=torch.float64) / 44**0.5
    return {
        "negative": -gram[rows, columns],
        "a negative variance": (gram - torch.diag_embed(250.0 * (torch.arange(44) == 7)))[rows, columns],
        "a pair beyond its variances": (gram + 300.0 * (torch.arange(44) == 7)[None] * 1.0)[rows, columns],
        "one negative direction": (gram - 250 * torch.outer(direction, direction))[rows, columns],
    }


@pytest.mark.parametrize("forged", _forged_moments())
def test_load_refuses_second_moments_that_are_not_positive(tmp_path, forged):
    path = tmp_path / "c"
    saved(path)
    totals = {"sums.total": torch.zeros(44, dtype=torch.float64)}
    rewritten(
        path, {}, {"sums.gram": torch.eye(44, dtype=torch.float64)[*torch.triu_indices(44, 44)] * 200, **totals}
    )
    ClosedFormClassifier.load(path)  # these can be
    rewritten(path, {}, {"sums.gram": _forged_moments()[forged], **totals})
    with pytest.raises(InputError, match="gram cannot be right"):
        ClosedFormClassifier.load(path)


@pytest.mark.parametrize("left", [0, 1, 30])
def test_load_takes_the_rounding_that_forgetting_leaves(tmp_path, left):
    x, y = table()
    x[:, 0] += 1e4  # a large offset: rounding shows
    clf = ClosedFormClassifier(size=40, warm_up=10).fit(x, y)
    with pytest.warns(UserWarning, match="these examples were removed, but the feature map"):
        clf.forget(x[left:], y[left:])
    clf.save(tmp_path / "c")
    ClosedFormClassifier.load(tmp_path / "c")
