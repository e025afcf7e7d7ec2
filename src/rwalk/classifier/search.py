"""Hyper-parameters of a learner that learns call by call: what counts is what it still knows at the end.

`GridSearchCV` fits once, and in one call there is nothing to forget: λ and memory would all look alike to it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone

from rwalk.errors import InputError
from rwalk.labels import array, columns_of, labels_of, merged


@dataclass(frozen=True)
class Trial:
    """One setting, and how it did on what was held out of the calls so far, after each of them."""

    params: dict[str, Any]
    scores: list[float]

    @property
    def score(self) -> float:
        """After the last call, on what was held out of all calls."""
        return self.scores[-1]


@dataclass(frozen=True)
class StreamSearch:
    """The settings tried, the best of them, and an estimator that learned all calls with it."""

    trials: list[Trial]
    best_estimator_: Any

    @property
    def best(self) -> Trial:
        return max(self.trials, key=lambda trial: trial.score)

    @property
    def best_params_(self) -> dict[str, Any]:
        return self.best.params

    @property
    def best_score_(self) -> float:
        return self.best.score


def stream_search(
    estimator: Any,
    grid: Mapping[str, Sequence[Any]] | Sequence[Mapping[str, Sequence[Any]]],
    calls: Iterable[tuple[Any, Any]],
    *,
    holdout: float = 0.2,
    random_state: int = 0,
    refit: bool = True,
) -> StreamSearch:
    """Try every setting of a grid over a stream of calls, and take the one that knows most at the end.

    estimator     anything with `partial_fit` and `score`
    grid          parameters and their values, as scikit-learn's `GridSearchCV` takes them
    calls         (X, y) in the order in which they come
    holdout       the share of every call, class by class, that is not learned but asked about
    refit         learn all calls, with nothing held out, by the best setting

    >>> from rwalk import IncrementalClassifier
    >>> x = np.arange(40.0)[:, None]; y = np.repeat([0, 1, 2, 3], 10)
    >>> calls = [(x[:20], y[:20]), (x[20:], y[20:])]
    >>> found = stream_search(IncrementalClassifier(size=20), {"ridge": [1e-4, 1e6]}, calls)
    >>> found.best_params_
    {'ridge': 0.0001}
    """
    from sklearn.model_selection import ParameterGrid  # it imports a good part of scikit-learn

    calls = [(np.asarray(array(X)), labels_of(y)) for X, y in calls]
    if not calls:
        raise InputError("there are no calls to search over: give a list of (X, y)")
    if not 0 < holdout < 1:
        raise InputError(f"holdout={holdout!r} is no share: give a number between 0 and 1")
    draw = np.random.default_rng(random_state)
    aside = [_held_out(y, holdout, draw) for _, y in calls]
    settings = [(params, clone(estimator).set_params(**params)) for params in ParameterGrid(grid)]
    trials = [Trial(params, _scores(candidate, calls, aside)) for params, candidate in settings]
    found = StreamSearch(trials, None)
    if not refit:
        return found
    best = clone(estimator).set_params(**found.best_params_)
    for X, y in calls:
        best.partial_fit(X, y)
    return StreamSearch(trials, best)


def _scores(estimator: Any, calls: Sequence[tuple[Any, Any]], aside: Sequence[NDArray[np.bool_]]) -> list[float]:
    asked: list[tuple[Any, Any]] = []
    scores = []
    for (X, y), out in zip(calls, aside, strict=True):
        estimator.partial_fit(X[~out], y[~out])
        asked.append((X[out], y[out]))
        scores.append(float(estimator.score(*(np.concatenate(part) for part in zip(*asked, strict=True)))))
    return scores


def _held_out(y: NDArray[Any], share: float, draw: np.random.Generator) -> NDArray[np.bool_]:
    """A share of every class that has at least two examples, and at least one of them."""
    out = np.zeros(len(y), dtype=bool)
    columns = columns_of(y, merged(y[:0], y)).numpy()
    for column in np.unique(columns):
        own = np.flatnonzero(columns == column)
        if len(own) > 1:
            out[draw.permutation(own)[: min(len(own) - 1, max(1, round(share * len(own))))]] = True
    if not out.any():
        raise InputError("a call has no class with two examples: one is to be learned and one asked about")
    return out
