"""A few more examples update a solution; the next exact one is the same as if they had come with the others."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from rwalk import IncrementalClassifier, IncrementalRegressor
from rwalk.closed_form import solve

Arrays = tuple[NDArray[Any], NDArray[Any]]


def rows(n: int = 1100) -> Arrays:
    draw = np.random.default_rng(0)
    y = draw.integers(0, 4, n)
    return draw.normal(size=(n, 6)) + draw.normal(size=(4, 6))[y], y


def solved(clf: IncrementalClassifier) -> bool:
    return clf._sums()._model._updates is None


def test_single_examples_are_learned_without_solving(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = rows()
    clf = IncrementalClassifier(size=60).fit(x[:1000], y[:1000])
    clf.predict(x[:1])
    clf.partial_fit(x[1000:1001], y[1000:1001]).predict(x[:1])  # from here on everything is at hand

    def fail(*_: Any) -> Any:
        raise AssertionError("solved again")

    monkeypatch.setattr(solve, "_factor", fail)
    for at in range(1001, 1030):
        clf.partial_fit(x[at : at + 1], y[at : at + 1]).predict(x[:1])
    assert not solved(clf)


def test_updated_scores_are_those_of_the_same_penalties() -> None:
    x, y = rows()
    clf = IncrementalClassifier(size=60, ridge=0.1).fit(x[:1000], y[:1000])
    clf.predict(x[:1])
    fit = clf._sums()._model.fit
    penalty = 0.1 * solve.penalties(fit.centred, fit.counted.map.blocks).numpy()
    for at in range(1000, 1040):
        clf.partial_fit(x[at : at + 1], y[at : at + 1], sample_weight=[1.0 + at % 2])
    assert not solved(clf)
    features = clf._sums().features_of(x[:1040])
    weight = np.concatenate([np.ones(1000), 1.0 + np.arange(1000, 1040) % 2])
    phi = np.hstack([features - features[:1000].mean(0), np.ones((1040, 1))])
    equations = phi.T @ (phi * weight[:, None]) + np.diag(np.append(penalty, 0))
    expected = phi @ np.linalg.solve(equations, phi.T @ (np.eye(4)[y[:1040]] * weight[:, None]))
    scores = clf._sums()._model.scores(torch.from_numpy(x[:1040]))
    np.testing.assert_allclose(scores.numpy(), expected, atol=1e-4)


def test_what_is_solved_exactly_does_not_depend_on_updates() -> None:
    x, y = rows()
    clf = IncrementalClassifier(size=60).fit(x[:1000], y[:1000])
    together = clf.fresh().partial_fit(x, y)
    for at in range(1000, 1100):
        clf.partial_fit(x[at : at + 1], y[at : at + 1])
        before = clf.predict(x)
    assert np.mean(before == together.predict(x)) > 0.99
    np.testing.assert_allclose(clf.coef_, together.coef_, atol=1e-8 * np.abs(together.coef_).max())
    np.testing.assert_allclose(clf.predict_proba(x), together.predict_proba(x), atol=1e-6)


def test_new_classes_and_larger_calls_are_solved_for() -> None:
    x, y = rows()
    clf = IncrementalClassifier(size=60).fit(x[:1000], y[:1000])
    clf.predict(x[:1])
    clf.partial_fit(x[1000:1001], y[1000:1001])
    assert not solved(clf)
    clf.partial_fit(x[1001:1002] + 9, ["new"] if y.dtype.kind == "U" else [7])
    clf.predict(x[:1])
    assert solved(clf) and 7 in clf.classes_
    clf.partial_fit(x[1002:], y[1002:])
    clf.predict(x[:1])
    assert solved(clf)


def test_a_regressor_learns_from_single_examples_too() -> None:
    x, _ = rows()
    target = x @ np.arange(6.0)
    regressor = IncrementalRegressor(size=60).fit(x[:1000], target[:1000])
    together = regressor.fresh().partial_fit(x[:1020], target[:1020])
    for at in range(1000, 1020):
        regressor.predict(x[:1])
        regressor.partial_fit(x[at : at + 1], target[at : at + 1])
    assert regressor._model._updates is not None
    np.testing.assert_allclose(regressor.predict(x), together.predict(x), atol=0.05 * target.std())
