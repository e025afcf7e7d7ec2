"""A random lift of a given network's features: used where it helps, and where few data were learned it is not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from rwalk import IncrementalClassifier
from rwalk.closed_form.features.backbone import BackboneFeatures

Arrays = tuple[NDArray[Any], NDArray[Any]]


class Rotation(nn.Module):
    """Gives its inputs back, turned: features in which the classes below are not linear."""

    def __init__(self) -> None:
        super().__init__()
        turn = torch.linalg.qr(torch.randn(8, 8, generator=torch.Generator().manual_seed(0))).Q
        self.register_buffer("turn", turn)

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.turn


def products(n: int, seed: int = 0) -> Arrays:
    """Two classes by the sign of a product: no linear rule tells them apart."""
    x = np.random.default_rng(seed).normal(size=(n, 8)).astype(np.float32)
    return x, (x[:, 0] * x[:, 1] > 0).astype(int)


def used(clf: IncrementalClassifier) -> list[int]:
    return clf._sums()._model.fit.blocks


def test_lift_lets_a_given_network_learn_what_is_not_linear() -> None:
    clf = IncrementalClassifier(network=Rotation()).partial_fit(*products(2000))
    assert used(clf) == [8, 1000]
    assert clf.score(*products(500, seed=1)) > 0.65  # a linear rule has 0.5
    assert clf._sums().features_of(products(3)[0]).shape == (3, 1008)
    assert clf.coef_.shape[1] == 1008


def test_lift_is_not_used_with_few_examples() -> None:
    x, y = products(15)
    clf = IncrementalClassifier(network=Rotation()).partial_fit(x, y)
    assert used(clf) == [8]
    assert not clf.coef_[:, 8:].any()


def test_lift_is_not_used_where_the_evidence_is_against_it() -> None:
    x, _ = products(400)
    clf = IncrementalClassifier(network=Rotation()).partial_fit(x, (x[:, 0] > 0).astype(int))
    alone = IncrementalClassifier(network=Rotation(), size=1).partial_fit(x, (x[:, 0] > 0).astype(int))
    x_test, _ = products(500, seed=1)
    right = x_test[:, 0] > 0
    assert clf.score(x_test, right.astype(int)) > alone.score(x_test, right.astype(int)) - 0.02


def test_size_sets_the_width_of_the_lift() -> None:
    clf = IncrementalClassifier(network=Rotation(), size=30).partial_fit(*products(200))
    assert clf._sums().features_of(products(3)[0]).shape == (3, 38)


@pytest.mark.parametrize("negative", [False, True])
def test_lift_is_waves_of_even_features(negative: bool) -> None:
    rows = torch.rand(3, 6, generator=torch.Generator().manual_seed(0)) - (0.5 if negative else 0.0)
    features = BackboneFeatures(nn.Identity(), rows, 5)
    for row, found in zip(rows, features(rows), strict=True):
        even = row if negative else row.sqrt()
        even = (even - even.mean()) / (even.var(correction=0) + 1e-5).sqrt()
        waves = [wave(even @ column) for column in features.waves.T for wave in (torch.cos, torch.sin)]
        torch.testing.assert_close(found, torch.cat([row, torch.stack(waves)[:5]]))


def test_lift_is_used_as_soon_as_later_calls_bring_enough_examples() -> None:
    x, y = products(600)
    clf = IncrementalClassifier(network=Rotation())
    for rows in (slice(0, 10), slice(10, 12), slice(12, 600)):
        clf.partial_fit(x[rows], y[rows]).predict(x[:3])
    together = IncrementalClassifier(network=Rotation()).partial_fit(x, y)
    np.testing.assert_allclose(clf.coef_, together.coef_, rtol=0, atol=1e-6 * np.abs(together.coef_).max())
    assert used(clf) == [8, 600]


@pytest.mark.parametrize("n", [12, 100, 600])
def test_lifted_model_goes_on_as_its_file_does(n: int, tmp_path: Path) -> None:
    x, y = products(700)
    clf = IncrementalClassifier(network=Rotation()).partial_fit(x[:n], y[:n])
    expected = clf.predict_proba(x)
    clf.save(tmp_path / "clf")
    again = IncrementalClassifier.load(tmp_path / "clf", network=Rotation())
    np.testing.assert_array_equal(again.predict_proba(x), expected)
    for each in (clf, again):
        each.partial_fit(x[n:], y[n:])
    np.testing.assert_array_equal(again.predict_proba(x), clf.predict_proba(x))
    whole = IncrementalClassifier(network=Rotation()).partial_fit(x, y)
    np.testing.assert_allclose(again.coef_, whole.coef_, rtol=0, atol=1e-6 * np.abs(whole.coef_).max())


def test_file_of_few_examples_is_small_and_forgets_exactly(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    x, y = draw.normal(size=(40, 1, 16, 16)), np.arange(40) % 2
    x[y == 1] *= 2
    clf = IncrementalClassifier(size=50, warm_up=1, dtype="float64").partial_fit(x[:30], y[:30])
    start, learned = clf.fresh(), clf.partial_fit(x[30:], y[30:])
    learned.save(tmp_path / "clf")
    assert (tmp_path / "clf").stat().st_size < 400 * 401 / 2 * 8 / 2  # half of the half matrix
    again = IncrementalClassifier.load(tmp_path / "clf")
    with pytest.warns(UserWarning, match="feature map"):
        again.forget(x[30:], y[30:])
    never = start.partial_fit(x[:30], y[:30])
    scale = np.abs(never.coef_).max()
    np.testing.assert_allclose(again.coef_ / scale, never.coef_ / scale, rtol=0, atol=1e-6)
