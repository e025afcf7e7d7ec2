"""What all estimators share: scikit-learn's conventions about arrays, devices, seeds and scores."""

from __future__ import annotations

import copy
from numbers import Integral
from typing import Any, Self, cast

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import issparse
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import _check_sample_weight, validate_data
from torch import Tensor

from rwalk.errors import InputError, first_line
from rwalk.labels import array, inputs, labels_of, merged, one_line

TORCH_READS = (np.float32, np.float64, np.float16, np.uint8, np.int16, np.int32, np.int64, np.bool_)


class ArrayEstimator(BaseEstimator):  # type: ignore[misc]
    """Learns from arrays of one shape, on one device."""

    device: str | torch.device
    random_state: int | np.random.RandomState | None
    input_shape_: tuple[int, ...]
    _dtype: Any = "numeric"  # of inputs: as they come

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    def _device(self) -> torch.device:
        name = self.device
        if name == "auto":
            name = "cuda" if torch.cuda.is_available() else "cpu"
        try:
            return torch.empty(0, device=name).device
        except (AssertionError, RuntimeError) as error:
            reason = first_line(error)
            raise InputError(f"device {str(name)!r} cannot be used ({reason}): set device='cpu'") from error

    def _seed(self) -> int:
        state = check_random_state(self.random_state)
        return int(self.random_state) if isinstance(self.random_state, Integral) else int(state.randint(2**31 - 1))

    def _inputs(self, X: Any) -> Tensor:
        with one_line():
            x = validate_data(self, _dense(X), reset=False, dtype=self._dtype, allow_nd=True)
        return self._of_known_shape(_tensor(x))

    def _examples(
        self, X: Any, y: Any, sample_weight: Any, afresh: bool, **checks: Any
    ) -> tuple[Tensor, Any, Tensor]:
        """Inputs, labels or targets, and weights; without the examples that have none."""
        checks = {"dtype": self._dtype, "allow_nd": True, **checks}
        with one_line():
            x, y = validate_data(self, _dense(X), array(y), reset=afresh, **checks)
            weight = _check_sample_weight(array(sample_weight), x, dtype=np.float64, ensure_non_negative=True)
        if (weight == 0).any():
            x, y, weight = x[weight > 0], y[weight > 0], weight[weight > 0]
            if not len(x):
                raise InputError("every example has the weight 0: give at least one a positive weight")
        x = _tensor(x)
        return (x if afresh else self._of_known_shape(x)), y, torch.from_numpy(weight)

    def _of_known_shape(self, x: Tensor) -> Tensor:
        if tuple(x.shape[1:]) != self.input_shape_:
            raise InputError(f"inputs have shape {list(x.shape[1:])}: give {list(self.input_shape_)}, as learned")
        return x


class Summable:
    """Whatever merges can be added up."""

    def merge(self, other: Self) -> Self:
        """Learn all that another has learned."""
        raise NotImplementedError

    def __add__(self, other: Any) -> Self:
        """A new one that has learned what both have."""
        return copy.deepcopy(self).merge(other) if type(other) is type(self) else NotImplemented

    def __radd__(self, other: Any) -> Self:
        # sum() begins with 0.
        return copy.deepcopy(self) if isinstance(other, int) and other == 0 else NotImplemented


class ArrayClassifier(ClassifierMixin, ArrayEstimator):  # type: ignore[misc]
    """Predicts the class of the highest score."""

    classes_: NDArray[Any]

    def _scores(self, X: Any) -> Tensor:
        """A score for every class of `classes_`, −∞ for one only announced: float64 [n, classes], on the CPU."""
        raise NotImplementedError

    def _sharpness(self) -> float:
        """What scores are multiplied by before their softmax is a probability."""
        return 1.0

    def decision_function(self, X: ArrayLike | Tensor) -> NDArray[np.float64]:
        """A score per class, the highest the most likely; of two classes, how much the second is ahead."""
        scores = self._scores(X)
        if scores.shape[1] == 2:
            scores = scores[:, 1] - scores[:, 0]
        return cast(NDArray[np.float64], scores.numpy())

    def predict(self, X: ArrayLike | Tensor) -> NDArray[Any]:
        """The most likely of all classes learned."""
        best = self._scores(X).argmax(1).numpy()
        predicted: NDArray[Any] = self.classes_[best]
        return predicted

    def predict_proba(self, X: ArrayLike | Tensor) -> NDArray[np.float64]:
        """Probabilities, a column for each of `classes_`; classes only announced have 0."""
        scores = self._scores(X)
        probability: NDArray[np.float64] = (self._sharpness() * scores).softmax(1).numpy()
        return probability

    def predict_log_proba(self, X: ArrayLike | Tensor) -> NDArray[np.float64]:
        """Logarithms of `predict_proba`."""
        scores = self._scores(X)
        probability: NDArray[np.float64] = (self._sharpness() * scores).log_softmax(1).numpy()
        return probability

    def score(self, X: ArrayLike | Tensor, y: ArrayLike | Tensor, sample_weight: ArrayLike | None = None) -> float:
        """The accuracy."""
        # Not scikit-learn's own, which sorts the labels: not all can be.
        predicted, labels = self.predict(X), labels_of(y)
        merged(self.classes_, labels)  # 1 is not "1": mixing them is an error
        if len(predicted) != len(labels):
            raise InputError(f"{len(predicted)} inputs but {len(labels)} labels: give one label per example")
        right = np.array([guess == label for guess, label in zip(predicted, labels, strict=True)], dtype=float)
        return float(np.average(right, weights=None if sample_weight is None else np.asarray(sample_weight)))


def _dense(X: Any) -> Any:
    """Inputs for scikit-learn's checks; sparse ones as arrays."""
    return X.toarray() if issparse(X) else inputs(X)


def _tensor(x: NDArray[Any]) -> Tensor:
    """Without a copy where that can be; in a type torch has."""
    if x.dtype not in TORCH_READS:
        x = x.astype(np.float64)
    return torch.from_numpy(x if x.flags.writeable and x.flags.c_contiguous else x.copy())
