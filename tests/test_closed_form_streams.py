"""Random streams of calls: learning never breaks predicting, and forgetting undoes learning."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rwalk import IncrementalClassifier, IncrementalRegressor
from rwalk.errors import InputError

WEIGHTS = (None, 1.0, 1e-6, 1e6, "mixed")


@st.composite
def streams(draw: st.DrawFn) -> tuple[dict[str, Any], list[tuple[Any, Any, Any]]]:
    """Parameters, and calls with duplicates, constant and offset columns, any weights, and few examples."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    image = draw(st.sampled_from([False, False, False, True]))
    dtype = draw(st.sampled_from([np.float32, np.float64]))
    shape = (1, 16, 16) if image else (draw(st.integers(1, 6)),)
    classes = draw(st.integers(1, 4))
    offset, spread = draw(st.sampled_from([0.0, 10.0, 1e4, -1e6])), draw(st.sampled_from([1.0, 1e-3, 1e3]))
    params = {
        "size": draw(st.integers(1, 8 if image else 40)),
        "warm_up": draw(st.sampled_from([1, 20, 100])),
        "dtype": draw(st.sampled_from([None, "float32", "float64"])),
        "method": draw(st.sampled_from(["closed-form", "closed-form", "lda"])),
    }
    calls = []
    for _ in range(draw(st.integers(1, 4))):
        n = draw(st.sampled_from([1, 2, 7, 60]))
        x = offset + spread * rng.normal(size=(n, *shape))
        if draw(st.booleans()):
            x[:, 0] = offset
        if draw(st.booleans()):
            x[:] = x[:1]
        kind = draw(st.sampled_from(WEIGHTS))
        weight = 10 ** rng.uniform(-6, 6, n) if kind == "mixed" else None if kind is None else np.full(n, kind)
        calls.append((x.astype(dtype), rng.integers(0, classes, n), weight))
    return params, calls


def check_stream(stream: tuple[dict[str, Any], list[tuple[Any, Any, Any]]]) -> None:
    params, calls = stream
    clf = IncrementalClassifier(**params)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for x, y, weight in calls:
            clf.partial_fit(x, y, sample_weight=weight)
            probability = clf.predict_proba(x)
            assert np.isfinite(probability).all() and np.allclose(probability.sum(1), 1)
            assert set(clf.predict(x)) <= set(clf.classes_)


@settings(max_examples=15, derandomize=True, suppress_health_check=list(HealthCheck))
@given(streams())
def test_learning_never_breaks_predicting(stream: Any) -> None:
    check_stream(stream)


@pytest.mark.slow
@settings(max_examples=500, suppress_health_check=list(HealthCheck))
@given(streams())
def test_learning_never_breaks_predicting_in_500_streams(stream: Any) -> None:
    check_stream(stream)


def check_undone(stream: tuple[dict[str, Any], list[tuple[Any, Any, Any]]]) -> None:
    """Learning a call, forgetting it and learning it again gives the scores of learning it once."""
    params, calls = stream
    clf = IncrementalClassifier(**params | {"ridge": 1e-2, "dtype": None})  # float32 products do not cancel
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for x, y, weight in calls:
            clf.partial_fit(x, y, sample_weight=weight)
        every = np.concatenate([x for x, _, _ in calls])
        before, known = clf.features_of(every) @ clf.coef_.T + clf.intercept_, clf.classes_
        x, y, weight = calls[-1]
        clf.forget(x, y, weight).partial_fit(x, y, sample_weight=weight)
        after = clf.features_of(every) @ clf.coef_.T + clf.intercept_
    np.testing.assert_array_equal(clf.classes_, known)
    largest = np.abs(before[np.isfinite(before)]).max(initial=1)  # a class of next to no weight scores −∞
    np.testing.assert_allclose(after, before, rtol=0, atol=1e-6 * largest)


@settings(max_examples=15, derandomize=True, suppress_health_check=list(HealthCheck))
@given(streams())
def test_learn_forget_learn_returns_to_the_same_scores(stream: Any) -> None:
    check_undone(stream)


@pytest.mark.slow
@settings(max_examples=500, suppress_health_check=list(HealthCheck))
@given(streams())
def test_learn_forget_learn_returns_to_the_same_scores_in_500_streams(stream: Any) -> None:
    check_undone(stream)


def heavy_beside_light(light: float) -> list[tuple[Any, Any, Any]]:
    """Rows of weight 1 and `light`, then seven equal rows of weight 1e6; only the light row has other inputs."""
    rows = [np.zeros((1, 3)), np.ones((1, 3)), np.zeros((7, 3))]
    labels = [np.array([1]), np.array([0]), np.array([0, 2, 2, 1, 1, 0, 0])]
    weights = [np.ones(1), np.full(1, light), np.full(7, 1e6)]
    return [(x.astype(np.float32), y, weight) for x, y, weight in zip(rows, labels, weights, strict=True)]


@pytest.mark.parametrize("method", ["closed-form", "lda"])
def test_forget_takes_out_weights_twelve_decades_above_the_rest(method: str) -> None:
    params = {"size": 5, "warm_up": 1, "method": method}
    one, light, heavy = heavy_beside_light(1e-6)
    check_undone((params, [one, light, heavy]))
    clf = IncrementalClassifier(**params)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "these examples were removed")
        warnings.filterwarnings("error", "some examples that are left")
        for x, y, weight in (one, light, heavy):
            clf.partial_fit(x, y, sample_weight=weight)
        clf.forget(*heavy)
    assert clf.classes_.tolist() == [0, 1]
    np.testing.assert_allclose(clf.predict_proba(one[0]).sum(1), 1)
    assert clf.predict(one[0]).tolist() == [1]
    with pytest.raises(InputError, match="unknown class"):
        clf.forget(*heavy)
    with pytest.raises(InputError, match="nothing was forgotten"):
        clf.forget(one[0], [0], [1.0])


@pytest.mark.filterwarnings("ignore:these examples were removed:UserWarning")
@pytest.mark.parametrize("alone", [False, True])
def test_forget_warns_if_the_rest_weighs_less_than_rounding(alone: bool) -> None:
    one, light, heavy = heavy_beside_light(1e-12)
    clf = IncrementalClassifier(size=5, warm_up=1)
    for x, y, weight in (light, heavy) if alone else (one, light, heavy):
        clf.partial_fit(x, y, sample_weight=weight)
    with pytest.warns(UserWarning, match="weigh less than the rounding"):
        clf.forget(*heavy)
    if alone:
        with pytest.raises(InputError, match="nothing is left to predict from"):
            clf.predict(one[0])
        with pytest.raises(InputError, match="nothing is left to predict from"):
            clf.forget(*light)
        clf.partial_fit(*one[:2])
    assert np.isfinite(clf.predict_proba(one[0])).all() and clf.predict(one[0]).tolist() == [1]


@pytest.mark.parametrize("weight", [1e-60, 1.0, 1e60])
def test_forget_does_not_warn_of_rounding_if_all_weights_are_equal(weight: float) -> None:
    x, y, weights = np.random.default_rng(0).normal(size=(30, 3)), np.arange(30) % 3, np.full(30, weight)
    clf = IncrementalClassifier(size=5, warm_up=1).fit(x, y, sample_weight=weights)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "these examples were removed")
        warnings.filterwarnings("error", "some examples that are left")
        clf.forget(x[1:], y[1:], weights[1:])
    assert clf.classes_.tolist() == [0]


@settings(max_examples=15, derandomize=True)
@given(st.integers(0, 2**32 - 1), st.integers(1, 150), st.sampled_from([1.0, 1e-3, 1e3]))
def test_learn_forget_learn_returns_to_the_same_weights(seed: int, gone: int, weight: float) -> None:
    rng = np.random.default_rng(seed)
    x, y = rng.normal(size=(200, 4)), np.arange(200) % 3
    clf = IncrementalClassifier(size=30, ridge=1e-2).fit(x, y, sample_weight=np.full(200, weight))
    before = clf.coef_
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        weights = np.full(gone, weight)
        clf.forget(x[:gone], y[:gone], weights).partial_fit(x[:gone], y[:gone], sample_weight=weights)
    np.testing.assert_allclose(clf.coef_, before, rtol=0, atol=1e-6 * np.abs(before).max())


@pytest.mark.parametrize("offset", [-5.0, 5.0])
def test_numbers_of_any_sign_are_forgotten(offset: float) -> None:
    x = np.random.default_rng(0).normal(size=(300, 4))
    y = x @ np.arange(4.0) + offset
    whole = IncrementalRegressor(size=50, standardize=False).fit(x, y).forget(x[200:], y[200:])
    part = IncrementalRegressor(size=50, standardize=False).fit(x[:200], y[:200])
    np.testing.assert_allclose(whole.predict(x), part.predict(x), rtol=1e-6, atol=1e-6)
