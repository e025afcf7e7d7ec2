"""Test, then learn: how well a learner predicts each part of a stream before it has learned it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.exceptions import NotFittedError

from rwalk.errors import InputError
from rwalk.labels import labels_of


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
        """Of all examples that were predicted."""
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
        classes: all labels, for estimators that must be told at the first call.

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
