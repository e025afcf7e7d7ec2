"""Parameters, arrays, devices, seeds and scores of all estimators, by scikit-learn's conventions."""

from __future__ import annotations

import copy
from importlib.metadata import metadata
from numbers import Integral, Real
from pathlib import Path
from typing import Any, Self, cast

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import issparse
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import _check_sample_weight, validate_data
from torch import Tensor

from rwalk.data.datasets.images import ImageForm, pixels_of, read_image, unit_pixels
from rwalk.errors import InputError, first_line
from rwalk.labels import array, check_kind, inputs, is_frame, labels_of, merged, one_line

TORCH_READS = (np.float32, np.float64, np.float16, np.uint8, np.int16, np.int32, np.int64, np.bool_)
CHANNELS = (1, 3, 4)  # of images whose channels come last
HEAVIEST = 1e100  # sample weight, and its inverse the lightest: sums of squares must not overflow


class ArrayEstimator(BaseEstimator):  # type: ignore[misc]
    """Learns from arrays of one shape, on one device."""

    device: str | torch.device
    random_state: int | np.random.RandomState | None
    input_shape_: tuple[int, ...]
    _dtype: Any = "numeric"  # inputs keep their type

    _doc_link_module = "rwalk"

    @property
    def _doc_link_template(self) -> str:
        """The link of the HTML representation: the documentation's address, where the package names one."""
        addresses = dict(each.split(", ", 1) for each in metadata("rwalk").get_all("Project-URL", []))
        return str(addresses.get("Documentation", ""))

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
        dense = self._dense(X)
        if len(self.input_shape_) > 1 and np.shape(dense) == self.input_shape_:
            raise InputError(f"X is one input of shape {list(self.input_shape_)}: give a list of inputs")
        with one_line():
            x = _tensor(validate_data(self, dense, reset=False, dtype=self._dtype, allow_nd=True))
        self._check_shape(x)
        return x

    def _examples(
        self, X: Any, y: Any, sample_weight: Any, afresh: bool, **checks: Any
    ) -> tuple[Tensor, Any, Tensor]:
        """Inputs, labels or targets, and weights; examples of weight 0 are left out."""
        checks = {"dtype": self._dtype, "allow_nd": True, **checks}
        check_kind(y)
        with one_line():
            x, y = validate_data(self, self._dense(X, afresh), array(y), reset=afresh, **checks)
        weight, some = checked_weights(sample_weight, x)
        if len(some) < len(x):
            x, y = x[some], y[some]
        x = _tensor(x)
        if not afresh:
            self._check_shape(x)
        return x, y, torch.from_numpy(weight)

    def _dense(self, X: Any, afresh: bool = False) -> Any:
        """Inputs for scikit-learn's checks: sparse ones as arrays, the channels of images first."""
        shape = None if afresh else getattr(self, "input_shape_", None)
        if issparse(X):
            return X.toarray()
        x = inputs(_pixels(X.sparse.to_dense() if _is_sparse_frame(X) else X, shape))
        if isinstance(x, list | tuple) and len(np.shape(x[0] if len(x) else ())) == 3:
            other = next((each for each in x if np.shape(each) != np.shape(x[0])), x[0])
            if np.shape(other) != np.shape(x[0]):
                shapes = " and ".join(str(list(np.shape(each))) for each in (x[0], other))
                raise InputError(f"inputs have the shapes {shapes}: give all one shape")
            x = np.asarray(x)
        given = tuple(np.shape(x)[1:]) if isinstance(x, np.ndarray) else ()
        if len(given) != 3 or given == shape:
            return x
        last = given[2] in CHANNELS and given[0] not in CHANNELS and min(given[:2]) > max(CHANNELS)
        if last and shape in (None, (given[2], *given[:2])):
            return np.moveaxis(x, 3, 1)
        if shape is not None:
            self._check_shape(x)
        return x

    def _check_shape(self, x: Tensor | NDArray[Any]) -> None:
        if tuple(x.shape[1:]) != self.input_shape_:
            raise InputError(f"inputs have shape {list(x.shape[1:])}: give {list(self.input_shape_)}, as learned")

    def _names(self) -> list[str]:
        """The columns' names, if the first inputs had any."""
        return [*getattr(self, "feature_names_in_", [])]


class Summable:
    """Can be added up, because it can merge."""

    def merge(self, other: Self) -> Self:
        """Learn everything that another one has learned."""
        raise NotImplementedError

    def __add__(self, other: Any) -> Self:
        """A new one that has learned the examples of both."""
        return copy.deepcopy(self).merge(other) if type(other) is type(self) else NotImplemented

    def __radd__(self, other: Any) -> Self:
        # sum() begins with 0.
        return copy.deepcopy(self) if isinstance(other, int) and other == 0 else NotImplemented


class ArrayClassifier(ClassifierMixin, ArrayEstimator):  # type: ignore[misc]
    """Predicts the class of the highest score."""

    classes_: NDArray[Any]

    def _classes_after(
        self, labels: NDArray[Any], announced: Any, afresh: bool
    ) -> tuple[NDArray[Any], NDArray[Any]]:
        """The classes so far, and these with the classes of a call and those announced."""
        known = labels[:0] if afresh else self.classes_
        return known, merged(known, labels, labels[:0] if announced is None else labels_of(announced))

    def _scores(self, X: Any) -> Tensor:
        """A score for every class of `classes_`, −∞ for one only announced: float64 [n, classes], on the CPU."""
        raise NotImplementedError

    def _sharpness(self) -> float:
        """The factor of scores whose softmax is a probability."""
        return 1.0

    def decision_function(self, X: ArrayLike | Tensor) -> NDArray[np.float64]:
        """A score per class, the highest the most likely; for two classes, the lead of the second."""
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
        # scikit-learn's own method sorts the labels, and not all can be sorted.
        predicted, labels = self.predict(X), labels_of(y)
        merged(self.classes_, labels)  # 1 is not "1": mixing them is an error
        if len(predicted) != len(labels):
            raise InputError(f"{len(predicted)} inputs but {len(labels)} labels: give one label per example")
        right = np.array([guess == label for guess, label in zip(predicted, labels, strict=True)], dtype=float)
        return float(np.average(right, weights=None if sample_weight is None else np.asarray(sample_weight)))


def _is_sparse_frame(X: Any) -> bool:
    return is_frame(X) and bool(len(X.dtypes)) and all(hasattr(kind, "fill_value") for kind in X.dtypes)


def _pixels(X: Any, shape: tuple[int, ...] | None) -> Any:
    """The pixels of Pillow's images or of image files, in as many channels as inputs of this shape; else X."""
    if getattr(X, "ndim", 0) == 1 and X.dtype == np.dtype(object):
        X = list(X)  # a column or an array of paths
    first = X[0] if isinstance(X, list | tuple) and len(X) else None
    if not (isinstance(first, Path) or hasattr(first, "getexif")):
        return X

    def read(image: Any, form: ImageForm | None) -> NDArray[Any]:
        return read_image(image, form) if isinstance(image, Path) else pixels_of(image, form)

    channels = max(len(read(each, None)) for each in X) if shape is None or len(shape) != 3 else shape[0]
    images = [read(each, ImageForm(channels, 1, 1)) for each in X]
    for place, each in enumerate(images):
        if each.shape != images[0].shape:
            sizes = [f"{shape[2]} × {shape[1]} pixels" for shape in (images[0].shape, each.shape)]
            raise InputError(f"image 0 has {sizes[0]}, image {place} has {sizes[1]}: resize all to one size")
    deep = any(each.dtype != np.uint8 for each in images)
    return np.stack([unit_pixels(each) for each in images] if deep else images)


def checked_weights(sample_weight: Any, x: Any) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """The weights of examples that have any, and the places of these examples."""
    with one_line():
        weight = _check_sample_weight(array(sample_weight), x, dtype=np.float64, ensure_non_negative=True)
    some = np.flatnonzero(weight > 0)
    if not len(some):
        raise InputError("every example has the weight 0: give at least one a positive weight")
    if not 1 / HEAVIEST <= weight[some].min() <= weight[some].max() <= HEAVIEST:
        raise InputError(f"a sample_weight is beyond {1 / HEAVIEST:g} … {HEAVIEST:g}: bring weights to scale")
    return weight[some], some


def positive(name: str, value: Any, whole: bool = False, least: float = 0.0) -> Any:
    """A parameter that is a positive number, or None."""
    if value is None:
        return None
    kind = Integral if whole else Real
    if not isinstance(value, kind) or not max(least, 5e-324) <= float(value) < np.inf:
        noun = "positive whole number" if whole else f"number of {least:g} or more" if least else "positive number"
        raise InputError(f"{name}={value!r} is no {noun}: give one, or None")
    number = float(value)
    return round(number) if whole else number


def _tensor(x: NDArray[Any]) -> Tensor:
    """The array's own memory where torch can read it, else a copy."""
    if x.dtype not in TORCH_READS:
        x = x.astype(np.float64)
    return torch.from_numpy(x if x.flags.writeable and x.flags.c_contiguous else x.copy())
