"""Learning in closed form: exact in any order and any portions, against fits of all data at once."""

from __future__ import annotations

import copy
import dataclasses
import platform
import subprocess
import sys
import warnings
from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

from rwalk.classifier.closed_form import ClosedFormClassifier, IncrementalRegressor
from rwalk.closed_form.features import Recipe
from rwalk.closed_form.features.patches import SIDE, PatchFeatures
from rwalk.closed_form.features.vectors import VectorFeatures
from rwalk.closed_form.solve import solve
from rwalk.closed_form.sums import Statistics
from rwalk.errors import InputError

Array = NDArray[np.float64]


def table(n: int = 300, classes: int = 4, columns: int = 6, seed: int = 0) -> tuple[Array, NDArray[np.int64]]:
    """Clusters in columns of very different units."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, classes, n)
    x = rng.normal(size=(classes, columns))[y] * 2 + rng.normal(size=(n, columns))
    return x * 10.0 ** np.arange(columns) + 100, y


def small(**params: object) -> ClosedFormClassifier:
    return ClosedFormClassifier(**{"size": 100, **params})  # type: ignore[arg-type]


def started(x: Array, **params: object) -> ClosedFormClassifier:
    """Nothing learned yet, the map made of these inputs."""
    return small(**params).fit(x, np.zeros(len(x), dtype=np.int64)).fresh()


def same_weights(one: ClosedFormClassifier, other: ClosedFormClassifier, tolerance: float = 1e-8) -> None:
    assert one.classes_.tolist() == other.classes_.tolist()
    assert one.ridge_ == pytest.approx(other.ridge_)
    scale = np.abs(other.coef_).max()
    np.testing.assert_allclose(one.coef_ / scale, other.coef_ / scale, rtol=0, atol=tolerance)
    np.testing.assert_allclose(one.intercept_, other.intercept_, rtol=0, atol=tolerance * max(1.0, scale))


# ── exact in any order ────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def data() -> tuple[Array, NDArray[np.int64]]:
    return table()


@pytest.mark.parametrize("portion", [1, 7, 150])
def test_any_portions_in_any_order_give_the_weights_of_all_at_once(data, portion):
    x, y = data
    start = started(x)
    at_once = copy.deepcopy(start).partial_fit(x, y)
    order = np.random.default_rng(portion).permutation(len(x))
    for rows in np.array_split(order, len(x) // portion):
        start.partial_fit(x[rows], y[rows])
    same_weights(start, at_once)


def test_new_classes_in_later_calls_give_the_weights_of_all_at_once(data):
    x, y = data
    start = started(x)
    at_once = copy.deepcopy(start).partial_fit(x, y)
    for label in (2, 0, 3, 1):
        start.partial_fit(x[y == label], y[y == label])
    same_weights(start, at_once)


def test_one_example_at_a_time_from_the_very_first_equals_one_call(data):
    x, y = data
    one_by_one = small(warm_up=len(x))
    for row in range(len(x)):
        one_by_one.partial_fit(x[row : row + 1], y[row : row + 1])
    same_weights(one_by_one, small(warm_up=len(x)).fit(x, y))


def test_predicting_in_between_changes_nothing(data):
    x, y = data
    looked, blind = small(), small()
    for rows in np.array_split(np.arange(len(x)), 10):
        looked.partial_fit(x[rows], y[rows]).predict_proba(x[:5])
        blind.partial_fit(x[rows], y[rows])
    same_weights(looked, blind, 1e-10)


def test_a_map_from_the_seed_alone_needs_no_first_call():
    x, y = table()
    x = (x - x.mean(0)) / x.std(0)
    forwards, backwards = (small(standardize=False, random_state=3) for _ in range(2))
    for rows in np.array_split(np.arange(len(x)), 20):
        forwards.partial_fit(x[rows], y[rows])
        backwards.partial_fit(x[::-1][rows], y[::-1][rows])
    same_weights(forwards, backwards)


def test_weights_are_those_of_the_normal_equations(data):
    """Against NumPy, from the features themselves."""
    x, y = data
    clf = small(ridge=0.01).fit(x, y)
    phi = clf.features_of(x)
    centred = phi - phi.mean(0)
    target = np.eye(4)[y] - np.eye(4)[y].mean(0)
    blocks = np.cumsum([0, 6, 50, 50])
    variance = (centred**2).sum(0)
    penalty = np.concatenate([np.full(b - a, 3 * variance[a:b].sum() / phi.shape[1]) for a, b in pairwise(blocks)])
    expected = np.linalg.solve(centred.T @ centred + 0.01 * np.diag(penalty), centred.T @ target)
    np.testing.assert_allclose(clf.coef_.T, expected, rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(clf.decision_function(x), centred @ expected + np.eye(4)[y].mean(0), atol=1e-8)


def test_another_ridge_is_used_at_once(data):
    x, y = data
    clf = small().fit(x, y)
    clf.predict(x)
    assert clf.set_params(ridge=3.0).ridge_ == 3.0
    same_weights(clf, small(ridge=3.0).fit(x, y))


# ── forgetting and merging ────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("which", ["a tenth", "a class", "one example"])
def test_forgetting_equals_never_having_learned(data, which):
    x, y = data
    rng = np.random.default_rng(1)
    gone = {
        "a tenth": rng.random(len(x)) < 0.1,
        "a class": y == 2,
        "one example": np.arange(len(x)) == 17,
    }[which]
    start = started(x)
    never = copy.deepcopy(start).partial_fit(x[~gone], y[~gone])
    same_weights(start.partial_fit(x, y).forget(x[gone], y[gone]), never)


@pytest.mark.usefixtures("quiet")
def test_forgetting_with_weights_and_more_rows_than_are_computed_at_once():
    x, y = table(5000)
    weight = np.random.default_rng(0).random(len(x)) + 0.5
    start = started(x, size=40)
    never = copy.deepcopy(start).partial_fit(x[4000:], y[4000:], sample_weight=weight[4000:])
    start.partial_fit(x, y, sample_weight=weight).forget(x[:4000], y[:4000], sample_weight=weight[:4000])
    same_weights(start, never)


def test_forgetting_before_the_map_is_made_leaves_no_trace(data):
    x, y = data
    clf = small(warm_up=1000).partial_fit(x, y).forget(x[:50], y[:50])
    same_weights(clf, small(warm_up=1000).partial_fit(x[50:], y[50:]))
    with pytest.raises(InputError, match="not learned"):
        clf.forget(x[:1], y[:1])


def test_forgetting_one_of_two_equal_held_examples_keeps_the_order_of_the_others():
    draw = np.random.default_rng(0)
    x, y = draw.normal(size=(6, 1, 16, 16)), np.array([0, 1, 0, 1, 0, 1])
    x[[1, 5]] = 0.0  # equal, with one label
    clf = ClosedFormClassifier(size=2, warm_up=20, ridge=1e-2).fit(x, y)
    before = clf.coef_
    clf.forget(x[5:], y[5:]).partial_fit(x[5:], y[5:])
    np.testing.assert_array_equal(clf.coef_, before)


def test_forgetting_says_once_that_the_map_stays(data):
    x, y = data
    clf = small().fit(x, y)
    with pytest.warns(UserWarning, match="feature map was made from the first examples"):
        clf.forget(x[:1], y[:1])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        clf.forget(x[1:2], y[1:2])
        small(standardize=False).fit(x / 1e6, y).forget(x[:1] / 1e6, y[:1])


def test_more_than_was_learned_cannot_be_forgotten(data):
    x, y = data
    clf = small().fit(x, y)
    before = clf.coef_
    with pytest.raises(InputError, match="more examples are to be forgotten"):
        clf.forget(np.repeat(x, 2, axis=0), np.repeat(y, 2))
    with pytest.raises(InputError, match="unknown class"):
        clf.forget(x[:1], [99])
    np.testing.assert_array_equal(clf.coef_, before)


@pytest.mark.usefixtures("quiet")
def test_with_everything_forgotten_there_is_nothing_to_predict_from(data):
    x, y = data
    clf = small().fit(x, y).forget(x, y)
    assert len(clf.classes_) == 0
    with pytest.raises(InputError, match="nothing is left"):
        clf.predict(x)
    clf.partial_fit(x, y)
    assert clf.score(x, y) > 0.9


def test_ten_parts_merged_equal_one(data):
    x, y = data
    start = started(x)
    parts = [
        copy.deepcopy(start).partial_fit(x[rows], y[rows])
        for rows in np.array_split(np.argsort(y, kind="stable"), 10)  # most parts know but one class
    ]
    together = sum(parts)
    same_weights(together, copy.deepcopy(start).partial_fit(x, y))
    same_weights(sum(reversed(parts)), together)
    assert parts[0].classes_.tolist() == [0]  # the parts are as they were


def test_those_still_warming_up_merge_too(data):
    x, y = data
    warm, cold = small().fit(x[:200], y[:200]), small().fit(x[200:240], y[200:240])
    expected = copy.deepcopy(warm).partial_fit(x[200:240], y[200:240])
    same_weights(warm + cold, expected)
    same_weights(cold + warm, expected)
    colder = small().fit(x[240:260], y[240:260])
    assert (cold + colder)._model.counted is None
    same_weights(cold + colder, small().fit(x[200:260], y[200:260]))


def test_different_maps_do_not_merge(data):
    x, y = data
    one = small().fit(x, y)
    before = one.coef_
    with pytest.raises(InputError, match=r"different feature maps.*fresh\(\)"):
        one.merge(small(random_state=1).fit(x, y + 10))
    with pytest.raises(InputError, match="cannot be merged"):
        one.merge(small().fit(x[:, :2], y))
    assert one.classes_.tolist() == [0, 1, 2, 3]
    np.testing.assert_array_equal(one.coef_, before)


# ── precision ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_float32_features_are_summed_without_losing_digits():
    """A million examples in float32, against float64: the error is that of one feature, however many there are."""
    x, y = table(2000, columns=3)
    exact, single = started(x, size=20), started(x, size=20, dtype="float32")
    for _ in range(100):
        single.partial_fit(np.tile(x, (5, 1)), np.tile(y, 5))
    exact.partial_fit(x, y, sample_weight=np.full(len(x), 500.0))
    gram, expected = (clf._model.counted.statistics.centred().gram for clf in (single, exact))
    assert (gram - expected).abs().max() < 5e-6 * expected.abs().max()
    assert (single.predict(x) == exact.predict(x)).mean() > 0.999


def test_small_calls_wait_to_be_added_together_and_are_not_lost():
    sums = Statistics.empty(3, 2)
    rows, y, weight = torch.rand(1000, 3, dtype=torch.float64), torch.arange(1000) % 2, torch.ones(1000).double()
    for row in range(1000):
        sums.add(rows[row : row + 1], y[row : row + 1], weight[row : row + 1])
    gram = sums.centred().gram
    centred = rows - rows.mean(0)
    torch.testing.assert_close(gram, centred.T @ centred)
    assert sums.counts.tolist() == [500, 500]


def noisy_line(n: int) -> tuple[torch.Tensor, torch.Tensor, Statistics]:
    """Ten features, of which three matter; the centred features and targets, and their sums."""
    generator = torch.Generator().manual_seed(0)
    phi = torch.randn(n, 10, generator=generator, dtype=torch.float64)
    target = phi[:, :3].sum(1, keepdim=True) + 3 * torch.randn(n, 1, generator=generator, dtype=torch.float64)
    sums = Statistics.empty(10, 1)
    sums.add(phi, target, torch.ones(n).double())
    return phi - phi.mean(0), target - target.mean(), sums


GRID = 10.0 ** np.arange(-3.5, 2.1, 0.5)


def test_with_few_examples_the_ridge_with_the_most_evidence_is_chosen():
    """Against the density of the targets, the weights integrated out."""
    x, y, sums = noisy_line(25)
    variance = float(x.square().sum() / 10)

    def minus_twice_log_density(ridge: float) -> float:
        covariance = torch.eye(25).double() + x @ x.T / (ridge * variance)
        return float(torch.logdet(covariance) + 25 * (y.T @ torch.linalg.solve(covariance, y)).log())

    chosen = solve(sums.centred(), [10]).ridge
    assert minus_twice_log_density(chosen) <= min(map(minus_twice_log_density, GRID)) + 1e-9


def test_with_enough_examples_the_ridge_of_least_error_on_examples_left_out_is_chosen():
    """Against fits that leave out one example after the other."""
    x, y, sums = noisy_line(200)
    variance = float(x.square().sum() / 10)

    def error_left_out(ridge: float) -> float:
        hat = x @ torch.linalg.solve(x.T @ x + ridge * variance * torch.eye(10).double(), x.T) + 1 / 200
        return float(((y - hat @ y + y.mean()) / (1 - hat.diagonal()[:, None])).square().sum())

    chosen = solve(sums.centred(), [10]).ridge
    assert error_left_out(chosen) <= 1.002 * min(map(error_left_out, GRID))
    assert solve(sums.centred(), [10], share=0.1).ridge == pytest.approx(chosen / 10)


# ── features ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_units_do_not_matter(data):
    x, y = data
    one, other = small().fit(x, y), small().fit(x * 1e-3 - 7, y)
    np.testing.assert_allclose(one.decision_function(x), other.decision_function(x * 1e-3 - 7), atol=1e-6)


def test_constant_columns_and_outliers_do_no_harm(data):
    x, y = data
    odd = np.column_stack([np.full(len(x), 5.0), x, np.zeros(len(x))])
    clf = small().fit(odd, y)
    odd[0] = 1e30
    clf.partial_fit(odd[:1], y[:1])
    assert clf.score(odd[1:], y[1:]) > 0.95


def test_a_column_that_varies_only_later_is_learned():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(400, 2)), np.repeat([0, 1, 2, 3], 100)
    x[:, 0] += 8 * (y % 2)
    x[y < 2, 1] = 0.0  # tells 2 and 3 apart from the others, and does not move before they come
    x[y >= 2, 1] += 8
    clf = small().partial_fit(x[y < 2], y[y < 2]).partial_fit(x[y >= 2], y[y >= 2])
    assert clf.score(x, y) > 0.97


def patch_features_slowly(features: PatchFeatures, image: torch.Tensor) -> torch.Tensor:
    """Patch by patch, as the words say: normalise, project, threshold, average over quadrants."""
    size = image.shape[1] - SIDE + 1
    answers = torch.zeros(len(features.filters), size, size, dtype=torch.float64)
    for row in range(size):
        for column in range(size):
            patch = image[:, row : row + SIDE, column : column + SIDE]
            normal = (patch - patch.mean()) / (patch.var(correction=0) + features.faint).sqrt()
            answers[:, row, column] = (features.filters * normal).sum((1, 2, 3)) - features.offsets
    half = -(-size // 2)
    quadrants = [(slice(0, half), slice(size - half, size))[k] for k in (0, 1)]
    pooled = [
        torch.stack([side[:, a, b].mean((1, 2)) for a in quadrants for b in quadrants], dim=1).flatten()
        for side in ((answers - 0.25).clamp(min=0), (-answers - 0.25).clamp(min=0))
    ]
    averages = torch.cat(pooled)
    return averages if features.floor is None else (averages + features.floor).sqrt()


def test_images_that_could_be_their_mirror_images_are_taken_for_the_same() -> None:
    draws = torch.Generator().manual_seed(0)
    photographs = torch.rand(120, 3, 16, 16, generator=draws)
    photographs[:, :, 8:] *= 0.5  # darker below: what is above and below may differ, left and right do not
    writing = photographs + torch.linspace(0, 0.3, 16) * torch.arange(16)[:, None]  # strokes that lean to one side
    assert float(PatchFeatures.make(photographs, 10, 0).mirrored) == 0.5
    assert float(PatchFeatures.make(writing, 10, 0).mirrored) == 0
    assert float(PatchFeatures.make(photographs[:20], 10, 0).mirrored) == 0  # too few to tell
    both = PatchFeatures.make(photographs, 10, 0)
    torch.testing.assert_close(both(photographs.double()), both(photographs.double().flip(-1)))
    averages = dataclasses.replace(both, floor=None)
    one = dataclasses.replace(averages, mirrored=torch.zeros(()))
    mean = (one(photographs.double()) + one(photographs.double().flip(-1))) / 2
    torch.testing.assert_close(averages(photographs.double()), mean)


def test_patch_features_are_what_they_say():
    images = torch.rand(20, 3, 16, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    features = PatchFeatures.make(images, 8, seed=0)
    fast = features(images[:2])
    slow = torch.stack([patch_features_slowly(features, image) for image in images[:2]])
    torch.testing.assert_close(fast, slow)
    without_root = dataclasses.replace(features, floor=None)  # as earlier files and studies have it
    slow = torch.stack([patch_features_slowly(without_root, image) for image in images[:2]])
    torch.testing.assert_close(without_root(images[:2]), slow)


def stripes(n: int = 120, seed: int = 0) -> tuple[Array, NDArray[np.int64]]:
    """Images of horizontal, vertical and diagonal stripes at random offsets: no single pixel tells them apart."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 3, n)
    row, column = np.mgrid[:20, :20]
    waves = np.stack([row, column, (row + column) / 1.5])[y] + rng.random((n, 1, 1)) * 8
    return (np.sin(waves) + 0.5 * rng.normal(size=(n, 20, 20)))[:, None] * 100 + 128, y


@pytest.mark.parametrize("dtype", [None, "float64"])
def test_images_are_learned_by_their_patches_class_by_class(dtype):
    x, y = stripes()
    x_test, y_test = stripes(seed=1)
    clf = small(size=16, warm_up=30, dtype=dtype)
    for label in range(3):
        clf.partial_fit(x[y == label], y[y == label])
    assert clf.score(x_test, y_test) > 0.95
    at_once = clf.fresh().partial_fit(x, y)
    if dtype == "float64":
        same_weights(clf, at_once)
    np.testing.assert_allclose(clf.decision_function(x_test), at_once.decision_function(x_test), atol=0.01)


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 20), nn.BatchNorm1d(20), nn.ReLU())
        self.head = nn.Linear(20, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x))


def test_a_network_gives_what_enters_its_last_layer(data):
    x, y = data
    x = ((x - x.mean(0)) / x.std(0)).astype(np.float32)
    torch.manual_seed(0)
    network = Network()
    clf = ClosedFormClassifier(network=network).partial_fit(x, y)
    with torch.no_grad():
        expected = network.eval().body(torch.from_numpy(x))
    np.testing.assert_allclose(clf.features_of(x)[:, :20], expected.numpy(), rtol=1e-5, atol=1e-6)  # and a lift
    assert clf.score(x, y) > 0.9
    for parameter in network.parameters():
        parameter.data.zero_()  # its owner goes on training: not our features
    assert clf.score(x, y) > 0.9


def test_a_network_in_half_precision_is_summed_in_full(data):
    x, y = data
    x = ((x - x.mean(0)) / x.std(0)).astype(np.float32)
    torch.manual_seed(0)
    clf = ClosedFormClassifier(network=Network().bfloat16()).partial_fit(x, y)
    assert clf.features_of(x).dtype == np.float32
    assert clf.score(x, y) > 0.9


def test_features_that_are_not_finite_change_nothing(data):
    class Broken(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x / (x[:, :1] != 0)

    x = np.ones((4, 2))
    clf = ClosedFormClassifier(network=Broken()).partial_fit(x, [0, 1, 0, 1])
    with pytest.raises(InputError, match="not finite"):
        clf.partial_fit(np.zeros((1, 2)), [2])
    assert clf.classes_.tolist() == [0, 1]
    assert clf._model.counts.tolist() == [2, 2]


def test_waves_are_orthogonal_and_depend_on_the_seed_alone():
    x, weight = torch.rand(50, 8, dtype=torch.float64), torch.ones(50, dtype=torch.float64)
    one, same, other = (VectorFeatures.make(x, weight, 64, seed) for seed in (0, 0, 1))
    assert torch.equal(one.waves, same.waves) and not torch.equal(one.waves, other.waves)
    block = one.waves[:, :8]
    cosines = torch.nn.functional.normalize(block, dim=0).T @ torch.nn.functional.normalize(block, dim=0)
    torch.testing.assert_close(cosines, torch.eye(8).double())


def test_very_wide_inputs_do_not_make_as_many_features():
    rng = np.random.default_rng(0)
    y = np.arange(200) % 2
    x = (rng.random((200, 3000)) < 0.01) + (rng.random(3000) < 0.02) * (rng.random((200, 3000)) < 0.3) * y[:, None]
    clf = small(size=400).fit(x[:150], y[:150])
    assert clf.features_of(x[:1]).shape == (1, 800)
    assert clf.score(x[150:], y[150:]) > 0.8


def test_small_images_are_taken_as_vectors():
    assert Recipe().kind((1, 8, 8)) == "vectors"
    assert Recipe().kind((3, 32, 32)) == "images"
    rng = np.random.default_rng(0)
    clf = small().fit(rng.normal(size=(20, 1, 8, 8)), [0, 1] * 10)
    assert clf.features_of(rng.normal(size=(2, 1, 8, 8))).shape == (2, 64 + 100)


# ── probabilities, discriminants, numbers ─────────────────────────────────────────────────────────────────────


def test_probabilities_are_about_right():
    """Overlapping classes: of predictions held to be p likely, about p are right."""
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(5, 4)) * 0.8
    y = rng.integers(0, 5, 6000)
    x = centres[y] + rng.normal(size=(6000, 4))
    clf = ClosedFormClassifier(size=200).fit(x[:3000], y[:3000])
    probability = clf.predict_proba(x[3000:])
    np.testing.assert_allclose(probability.sum(1), 1)
    sure, right = probability.max(1), clf.predict(x[3000:]) == y[3000:]
    for low, high in ((0.0, 0.5), (0.5, 0.7), (0.7, 1.0)):
        inside = (sure > low) & (sure <= high)
        assert abs(sure[inside].mean() - right[inside].mean()) < 0.1


def test_announced_classes_have_probability_zero(data):
    x, y = data
    clf = small().partial_fit(x, y, classes=[0, 1, 2, 3, 9])
    assert clf.classes_.tolist() == [0, 1, 2, 3, 9]
    assert (clf.predict_proba(x)[:, 4] == 0).all()
    assert set(clf.predict(x)) <= {0, 1, 2, 3}


def test_discriminants_equal_scikit_learns():
    from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

    x, y = table(500)
    clf = small(method="lda", ridge=1e-12, size=4, dtype="float64").fit(x, y)
    phi = clf.features_of(x)
    reference = LinearDiscriminantAnalysis(solver="lsqr").fit(phi, y)
    scores, expected = clf.decision_function(x), reference.decision_function(phi)
    scores, expected = scores - scores.mean(1, keepdims=True), expected - expected.mean(1, keepdims=True)
    np.testing.assert_allclose(scores, expected, rtol=1e-5, atol=1e-5 * np.abs(expected).max())


def test_numbers_are_learned_in_portions_too():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(600, 3))
    y = np.column_stack([np.sin(2 * x[:, 0]) + x[:, 1], 1000 * x[:, 2] ** 2])
    start = IncrementalRegressor(size=200).fit(x, y).fresh()
    at_once = copy.deepcopy(start).fit(x, y)
    for rows in np.array_split(rng.permutation(500), 13):
        start.partial_fit(x[rows], y[rows])
    whole = copy.deepcopy(start).partial_fit(x[500:], y[500:])
    np.testing.assert_allclose(whole.predict(x), at_once.predict(x), rtol=1e-6, atol=1e-6)
    residual = y[500:] - start.predict(x[500:])
    assert (residual.std(0) / y.std(0) < 0.1).all()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        whole.forget(x[500:], y[500:])
    np.testing.assert_allclose(whole.coef_, start.coef_, rtol=1e-6, atol=1e-6 * np.abs(start.coef_).max())


# ── scikit-learn ──────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "estimator",
    [
        ClosedFormClassifier(size=100),
        IncrementalRegressor(size=100),
        pytest.param(ClosedFormClassifier(), marks=pytest.mark.slow),
    ],
    ids=["classes", "numbers", "the defaults"],
)
def test_scikit_learns_checks_pass_without_exception(estimator):
    from sklearn.utils.estimator_checks import check_estimator

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        results = check_estimator(estimator)
    assert len(results) > 50
    assert {each["status"] for each in results} <= {"passed", "skipped"}


def test_a_call_that_fails_changes_nothing(data):
    x, y = data
    clf = small().fit(x, y)
    before = clf.coef_
    for bad in (x[:, :2], np.full_like(x, np.nan)):
        with pytest.raises(InputError):
            clf.partial_fit(bad, y + 10)
    with pytest.raises(InputError):
        clf.partial_fit(x, [str(label) for label in y])
    assert clf.classes_.tolist() == [0, 1, 2, 3]
    np.testing.assert_array_equal(clf.coef_, before)


@pytest.mark.parametrize(
    ("params", "match"),
    [
        ({"method": "lad"}, "did you mean 'lda'"),
        ({"features": "image"}, "did you mean 'images'"),
        ({"dtype": "float46"}, "unknown dtype"),
        ({"size": 0}, "no positive whole number"),
        ({"ridge": -1.0}, "no positive number"),
        ({"device": "nowhere"}, "cannot be used"),
    ],
)
def test_a_wrong_parameter_is_named_in_one_line(data, params, match):
    x, y = data
    with pytest.raises(InputError, match=match) as caught:
        small(**params).fit(x, y)
    assert "\n" not in str(caught.value)


FAULTS = """
import torch
from resource import RUSAGE_SELF, getrusage
from rwalk.closed_form.features.patches import PatchFeatures
torch.set_num_threads(1)
features, images = PatchFeatures.blank((1, 32, 32), 800), torch.rand(24, 1, 32, 32)
features(images[:4])
before = getrusage(RUSAGE_SELF).ru_minflt
features(images)
print(getrusage(RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc", reason="other allocators return memory by rules of their own"
)
def test_patch_features_use_the_same_memory_again():
    done = subprocess.run([sys.executable, "-c", FAULTS], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 24 * 27 * 27 * 800 * 4 / 4096 / 4  # pages of a quarter of the answers
