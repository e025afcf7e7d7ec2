"""Accuracy on a stream, part by part before each is learned, and hyper-parameters chosen over a stream.

`GridSearchCV` fits once. In one call there is nothing to forget, so it cannot compare λ or sizes of the memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

from rwalk.errors import InputError
from rwalk.labels import array, columns_of, labels_of, merged


@dataclass(frozen=True)
class Prequential:
    """How many examples of each part were predicted, and how many of them right.

    The first part is only learned: there is nothing to predict it from.
    """

    examples: NDArray[np.int64]
    right: NDArray[np.int64]
    estimator: Any

    @property
    def accuracy(self) -> float:
        """The share of all predicted examples that were right."""
        return float(self.right.sum() / self.examples.sum())

    def curve(self, parts: int = 1) -> NDArray[np.float64]:
        """The accuracy over the last so many `parts`, after each part that was predicted."""
        if parts < 1:
            raise InputError(f"parts={parts!r} is no whole number of parts: give 1 or more")
        right, examples = (np.concatenate([[0], np.cumsum(each)]) for each in (self.right, self.examples))
        ends = np.arange(1, len(right))
        begins = np.maximum(0, ends - parts)
        share: NDArray[np.float64] = (right[ends] - right[begins]) / (examples[ends] - examples[begins])
        return share


def prequential(estimator: Any, stream: Iterable[tuple[Any, Any]], *, classes: Any = None) -> Prequential:
    """Predict every part of a stream, then learn it.

    Args:
        estimator: anything with `partial_fit` and `predict`. It learns the stream.
        stream: parts (X, y), in the order in which they come.
        classes: all labels, for estimators that need them in the first call.

    Returns:
        The accuracy on every part before it was learned.

    >>> from rwalk import IncrementalClassifier
    >>> x = np.arange(40.0)[:, None]; y = (x[:, 0] >= 20).astype(int)
    >>> stream = [(x[start::4], y[start::4]) for start in range(4)]
    >>> bool(prequential(IncrementalClassifier(size=20), stream).curve().min() >= 0.8)
    True
    """
    examples, right = [], []
    begun = _is_fitted(estimator)
    for X, y in stream:
        labels = labels_of(y)
        if begun:
            guesses = np.asarray(estimator.predict(X))
            examples.append(len(labels))
            right.append(sum(guess == label for guess, label in zip(guesses, labels, strict=True)))
        estimator.partial_fit(X, y, **({} if begun or classes is None else {"classes": classes}))
        begun = True
    if not examples:
        raise InputError("a stream needs at least two parts: the first is learned, the others are predicted first")
    return Prequential(np.array(examples), np.array(right, dtype=np.int64), estimator)


def _is_fitted(estimator: Any) -> bool:
    from sklearn.utils.validation import check_is_fitted

    try:
        check_is_fitted(estimator)
    except (NotFittedError, TypeError):
        return False
    return True


# ── hyper-parameters ───────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Trial:
    """One setting, and its accuracy after each call on the examples held out so far."""

    params: dict[str, Any]
    scores: list[float]

    @property
    def score(self) -> float:
        """After the last call, on the examples held out of all calls."""
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
    """Try every setting of a grid over a stream of calls, and take the best one after the last call.

    Args:
        estimator: anything with `partial_fit` and `score`.
        grid: parameters and their values, as scikit-learn's `GridSearchCV` takes them.
        calls: (X, y) in the order in which they come.
        holdout: the share of every call, class by class, that is predicted instead of learned.
        random_state: seed of the examples held out.
        refit: learn all calls, with nothing held out, by the best setting.

    Returns:
        The settings tried, the best of them, and an estimator that learned all calls with it.

    Raises:
        InputError: There are no calls, or `holdout` is not between 0 and 1.

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
        raise InputError("a call has no class with two examples: one is learned and one predicted")
    return out
