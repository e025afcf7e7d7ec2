"""Sums of half the symmetric matrix against sums of the whole one, by slow and obvious code."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch

from rwalk import IncrementalClassifier
from rwalk.closed_form.sums import BLOCK, Statistics

CLASSES = 3


def examples(
    n: int, features: int, dtype: torch.dtype = torch.float64, seed: int = 0
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(seed)
    phi = torch.randn(n, features, generator=draw, dtype=torch.float64) + 3
    y = torch.randint(CLASSES, (n,), generator=draw)
    return phi.to(dtype), y, torch.rand(n, generator=draw, dtype=torch.float64) + 0.5


def learned(*parts: tuple[torch.Tensor, torch.Tensor, torch.Tensor]) -> Statistics:
    sums = Statistics.empty(parts[0][0].shape[1], CLASSES)
    for part in parts:
        sums.add(*part)
    return sums


def whole(phi: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return phi.double().T @ (phi.double() * weight[:, None])


def assert_close(found: torch.Tensor, expected: torch.Tensor, tolerance: float) -> None:
    assert (found - expected).abs().max() <= tolerance * expected.abs().max()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("features", [1, 2, 11, 12, 13, 25, 130])
@pytest.mark.parametrize("n", [1, 700, BLOCK + 1])
def test_half_of_the_matrix_gives_the_whole(dtype: torch.dtype, features: int, n: int) -> None:
    phi, y, weight = examples(n, features, dtype)
    sums, tolerance = learned((phi, y, weight)), 1e-12 if dtype == torch.float64 else 1e-4
    gram = whole(phi, weight)
    assert_close(sums.symmetric(), gram, tolerance)
    assert torch.equal(sums.symmetric(), sums.symmetric().T)
    assert_close(sums.second_moments(), gram.diagonal(), tolerance)
    part = features // 2 + 1
    assert_close(sums.symmetric(part), gram[:part, :part], tolerance)
    mean = (weight @ phi.double()) / weight.sum()
    about = sums.centred(features=part).gram
    assert (about - whole(phi.double() - mean, weight)[:part, :part]).abs().max() <= 10 * tolerance * gram.max()


def test_sums_take_little_more_than_half_of_the_matrix() -> None:
    size = 600
    assert Statistics.empty(size, CLASSES).gram.nbytes < 0.55 * size**2 * 8


def test_shifted_merged_and_subtracted_sums_are_those_of_the_examples() -> None:
    one, other = examples(300, 25, seed=1), examples(400, 25, seed=2)
    by = torch.linspace(-2, 5, 25, dtype=torch.float64)
    moved = learned(one).shifted(by)
    assert_close(moved.symmetric(), whole(one[0] + by, one[2]), 1e-12)
    both = learned(one)
    both.merge(learned(other))
    assert_close(both.symmetric(), learned(one, other).symmetric(), 1e-12)
    both.merge(learned(other), sign=-1)
    assert_close(both.symmetric(), whole(one[0], one[2]), 1e-11)


@pytest.mark.parametrize("n", [5, 300])  # a factor, and the upper half
def test_stored_half_is_restored(n: int) -> None:
    sums = learned(examples(n, 25))
    before = sums.symmetric()
    again = Statistics.of(sums.compact(), torch.device("cpu"))
    assert torch.equal(again.symmetric(), sums.symmetric())
    assert_close(again.symmetric(), before, 1e-12)


def test_pickled_classifier_holds_no_matrix_beside_the_sums() -> None:
    draw = np.random.default_rng(0)
    x, y = draw.normal(size=(1500, 10)), draw.integers(0, 3, 1500)
    clf = IncrementalClassifier(size=600).fit(x, y)
    clf.predict_proba(x), clf.novelty(x)
    features = 10 + 600
    sample = 1000 * features * 4
    stored = pickle.dumps(clf)
    assert len(stored) < 0.6 * features**2 * 8 + sample + 200_000
    again = pickle.loads(stored)
    np.testing.assert_array_equal(again.predict_proba(x), clf.predict_proba(x))
    np.testing.assert_allclose(again.novelty(x), clf.novelty(x), rtol=0, atol=1e-9)
    np.testing.assert_allclose(
        again.partial_fit(x, y).predict_proba(x), clf.partial_fit(x, y).predict_proba(x), rtol=0, atol=1e-12
    )


@pytest.mark.parametrize("places", [[0, 1, 2], [1, 2, 3], [0, 2, 4], [2, 0, 1], [0, -1, 1], [-1, -1, -1]])
def test_columns_go_to_their_places(places: list[int]) -> None:
    sums = learned(examples(50, 4))
    moved = sums.columns(places, 5)
    expected = torch.zeros(4, 5, dtype=torch.float64)
    for old, new in enumerate(places):
        if new >= 0:
            expected[:, new] = sums.cross[:, old]
            assert moved.counts[new] == sums.counts[old] and moved.targets[new] == sums.targets[old]
    assert torch.equal(moved.cross, expected)
    assert moved.counts.sum() == sum(int(sums.counts[old]) for old, new in enumerate(places) if new >= 0)
