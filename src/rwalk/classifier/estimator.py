"""The estimator: classes that arrive call by call, learned without forgetting, by scikit-learn's conventions.

Three families stand behind it, each an estimator of its own. Closed form, the default, keeps sums, forgets nothing
and is the same in any order; for texts it has sums of its own. Networks learn their features too, and keep old
classes by a method and exemplars. The classifier here has the parameters of all families, makes the one that
`method` names, and passes every call to it.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from rwalk import model_file, parts
from rwalk.classifier.base import ArrayClassifier, Summable
from rwalk.classifier.closed_form import METHODS, ClosedFormClassifier
from rwalk.classifier.encoders import texts_of
from rwalk.classifier.estimator_files import reading
from rwalk.classifier.frames import form_of_table, names_of, rows_of
from rwalk.classifier.network import NetworkClassifier
from rwalk.classifier.parameters import (
    ClosedFormClassifierParameters,
    MethodParameter,
    NetworkParameters,
    Parameters,
    SharedParameters,
)
from rwalk.classifier.texts import TextClassifier, is_sparse
from rwalk.data import samplers
from rwalk.data.streams import Form
from rwalk.errors import InputError, unknown, warn_caller
from rwalk.labels import array
from rwalk.option_fields import described
from rwalk.threads import usual_torch

Sums = ClosedFormClassifier | TextClassifier  # families that forget and merge
Family = Sums | NetworkClassifier
FORMATS: dict[str, type[Family]] = {
    form: kind for kind in (ClosedFormClassifier, NetworkClassifier, TextClassifier) for form in kind._formats
}
NO_CHOICE = "method='auto' is no more: name one, and compare several with rwalk.stream_search"
for _kind in FORMATS.values():
    _kind.__name__ = "IncrementalClassifier"  # scikit-learn's messages show this name; `__qualname__` stays


class IncrementalClassifier(Parameters, Summable, ArrayClassifier):
    """Learns classes call by call without forgetting earlier ones.

    Every call of `partial_fit` may bring new classes, repeat old ones, or both. With the defaults there is
    nothing to tune, no examples are kept, and the result is that of one call with everything, in any order.

    {both}

    Closed form:

    {closed_form}

    Networks:

    {networks}

    Inputs are [n, features] or images [n, channels, height, width], in any units, sparse matrices, or texts (a
    list or a column of strings, learned from hashed words and character n-grams). Labels are of any one type.
    After a call there are `classes_`, the labels of all classes learned or announced, sorted; in closed form
    `coef_`, `intercept_` and `ridge_`; of networks `network_`, `exemplars_` and `tasks_seen_`.

    >>> clf = IncrementalClassifier()
    >>> clf = clf.partial_fit([[0.0, 0.0], [1.0, 0.0]], ["left", "right"])
    >>> clf = clf.partial_fit([[0.5, 1.0]], ["up"])
    >>> clf.predict([[1.0, 0.0], [0.0, 0.0], [0.5, 1.0]]).tolist()
    ['right', 'left', 'up']
    """

    _inner: Family
    form_: Form | None = None
    _warned = False

    # ── learning ──────────────────────────────────────────────────────────────────────────────────────────────

    def fit(self, X: ArrayLike | Tensor, y: ArrayLike | Tensor, sample_weight: ArrayLike | None = None) -> Self:
        """Forget everything, then learn these examples.

        Args:
            X: inputs: arrays, a DataFrame, images, or texts.
            y: their labels, strings or numbers.
            sample_weight: weights of the examples; all 1 by default.
        """
        form, X = form_of_table(X, self.encoder)
        inner = _made(self, X)
        with usual_torch():
            inner.fit(X, y, **_weights(inner, sample_weight))
        self._inner, self.form_ = inner, form
        return self

    def partial_fit(
        self,
        X: ArrayLike | Tensor | Iterator[tuple[Any, Any]],
        y: Any = None,
        classes: ArrayLike | Tensor | None = None,
        sample_weight: ArrayLike | None = None,
    ) -> Self:
        """Learn more examples. A call that fails leaves the classifier as it was before that call.

        Args:
            X: inputs; or an iterator of (X, y) or (X, y, sample_weight), or torch's DataLoader, of which each item
                is one call.
            y: their labels; new classes may appear in any call.
            classes: labels that are still to come, as scikit-learn announces them; not needed.
            sample_weight: weights of the examples; with an iterator, of all items in their order.
        """
        inputs: Any = X
        if isinstance(X, Iterator) and y is not None:
            raise InputError("X is an iterator: let it give (X, y), or give all inputs as an array or a list")
        if isinstance(X, Iterator) or (y is None and hasattr(X, "dataset")):
            return self._learn_each(iter(inputs), classes, sample_weight)
        if y is None:
            raise InputError("labels are missing: give y, or an iterator of (X, y)")
        if self.__sklearn_is_fitted__():
            inner, form, inputs = self._current(), self.form_, rows_of(self.form_, X)
        else:
            form, inputs = (self.form_, X) if self.form_ else form_of_table(X, self.encoder)
            inner = _made(self, inputs)
        with usual_torch():
            inner.partial_fit(inputs, y, classes, **_weights(inner, sample_weight))
        self._inner, self.form_ = inner, form
        return self

    def _learn_each(self, items: Iterator[Any], classes: Any, sample_weight: Any) -> Self:
        every = None if sample_weight is None else np.asarray(array(sample_weight))
        used = 0
        for X, y, *own in items:
            if every is not None:
                own, used = [every[used : used + len(y)]], used + len(y)
                if used > len(every):
                    raise InputError(
                        f"sample_weight has {len(every)} weights, which are too few: give one per example"
                    )
            self.partial_fit(X, y, classes, *own)
        if every is not None and used < len(every):
            raise InputError(f"sample_weight has {len(every)} weights for {used} examples: give one per example")
        return self

    def forget(self, X: ArrayLike | Tensor, y: ArrayLike | Tensor, sample_weight: ArrayLike | None = None) -> Self:
        """Remove examples exactly, as if they had never been learned; closed form only.

        A class without examples disappears from `classes_`.

        Args:
            X: the inputs to remove.
            y: the labels with which they were learned.
            sample_weight: the weights with which they were learned.
        """
        with usual_torch():
            self._sums().forget(rows_of(self.form_, X), y, sample_weight)
        return self

    def merge(self, other: Self) -> Self:
        """Add all examples that another classifier has learned; closed form only.

        Args:
            other: a classifier with the same feature map: see `fresh`.
        """
        if not isinstance(other, IncrementalClassifier):
            raise InputError(f"merge takes another IncrementalClassifier, not {type(other).__name__}")
        mine, theirs = self._sums(), other._sums()
        if type(mine) is not type(theirs):
            raise InputError("one has learned texts and the other has not: only equal kinds can be merged")
        if self.form_ != other.form_:
            raise InputError("its inputs are made of other columns or images")
        with usual_torch():
            mine.merge(theirs)
        return self

    def fresh(self) -> Self:
        """A classifier with the same feature map and no examples: for another worker, to be merged later."""
        twin = copy.copy(self)
        twin._inner = self._sums().fresh()
        return twin

    # ── using ─────────────────────────────────────────────────────────────────────────────────────────────────

    def predict(self, X: ArrayLike | Tensor, *, unknown: Any = None, at: float = 0.05) -> NDArray[Any]:
        """The most likely of all classes learned.

        Args:
            X: inputs.
            unknown: a label for inputs that are unlike everything learned, of any type; None to name a class in
                any case.
            at: the share of inputs of known classes that may be called unknown.
        """
        predicted = super().predict(X)
        if unknown is None:
            return predicted
        if not 0 < at < 1:
            raise InputError(f"at={at!r} is no share: give a number between 0 and 1, such as 0.05")
        kind = np.array(unknown).dtype
        alike = (kind.kind in "US") == (predicted.dtype.kind in "US")
        labels = np.promote_types(kind, predicted.dtype) if alike else np.dtype(object)  # 1 is not "1"
        return np.where(self.novelty(X) > 1 - at, np.array(unknown, dtype=labels), predicted.astype(labels))

    def novelty(self, X: ArrayLike | Tensor) -> NDArray[np.float64]:
        """How unlike everything learned these inputs are, between 0 and 1.

        It is the share of inputs of known classes that are less novel: 0.95 and more is rare among them.

        Args:
            X: inputs.
        """
        with usual_torch():
            return self._sums().novelty(rows_of(self.form_, X))

    def features_of(self, X: ArrayLike | Tensor) -> NDArray[Any]:
        """The features of these inputs in closed form: `coef_` and `intercept_` apply to them."""
        inner = self._sums()
        if not isinstance(inner, ClosedFormClassifier):
            raise InputError("texts have no features but hashed n-grams: give vectors, or an encoder=")
        with usual_torch():
            return inner.features_of(rows_of(self.form_, X))

    def _scores(self, X: Any) -> Tensor:
        with usual_torch():
            return self._current()._scores(rows_of(self.form_, X))

    def _sharpness(self) -> float:
        with usual_torch():
            return self._current()._sharpness()

    def __getattr__(self, name: str) -> Any:
        """Attributes of the family that learned."""
        if not name.startswith("__") and name.endswith("_") and "_inner" in self.__dict__:
            names = None if self.form_ is None else names_of(self.form_)
            if names is not None and name in ("feature_names_in_", "n_features_in_"):
                return names if name == "feature_names_in_" else len(names)
            return getattr(self._current(), name)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    # ── files ─────────────────────────────────────────────────────────────────────────────────────────────────

    def save(self, path: str | Path) -> None:
        """Write everything into one safetensors file, all of it or nothing; `load` continues exactly from there.

        Closed form writes sums, networks their parameters and exemplars. Code is not written: a network or a
        method of your own has to be given to `load` again. Labels must be strings or numbers.

        Args:
            path: the file; an old one is replaced.
        """
        self._current().form_ = self.form_
        self._inner.save(path)

    @classmethod
    def load(cls, path: str | Path, **params: Any) -> Self:
        """The classifier in a file. Nothing in the file is executed, and all of it is checked.

        Args:
            path: a file that `save` wrote.
            params: replace the constructor's parameters that the file holds.

        Raises:
            InputError: The file is damaged, of another kind, or needs code that was not given.
        """
        with reading(path):
            kind = model_file.header(Path(path)).get("format") or ""
            if kind == "rwalk.auto/1":
                raise InputError(f"it was learned with method='auto', and {NO_CHOICE}")
        # An unknown format is refused by any family.
        inner = FORMATS.get(kind, ClosedFormClassifier).load(path, **params)
        self = cls(**inner.get_params(deep=False))
        self._inner, self.form_ = inner, inner.form_
        return self

    # ── the family behind it ──────────────────────────────────────────────────────────────────────────────────

    def __sklearn_is_fitted__(self) -> bool:
        return "_inner" in self.__dict__

    def _current(self) -> Family:
        """The one that learned so far, with the parameters as they are now."""
        check_is_fitted(self)
        kind = _kind_of(self.method)
        if not isinstance(self._inner, Sums if kind is ClosedFormClassifier else kind):
            raise InputError(f"method={self.method!r} did not learn this: set it back, or call fit")
        self._inner.set_params(**_params_of(self, type(self._inner)))
        return self._inner

    def _sums(self) -> Sums:
        inner = self._current()
        if not isinstance(inner, Sums):
            raise InputError("only sums can be taken apart and put together: set method='closed-form'")
        return inner


# ── families ───────────────────────────────────────────────────────────────────────────────────────────────────


def _kind_of(method: Any) -> type[Family]:
    """The family that a method belongs to."""
    if isinstance(method, str):
        if method == "auto":
            raise InputError(NO_CHOICE)
        if method in METHODS:
            return ClosedFormClassifier
        if ":" not in method and method not in {**(known := parts.parts()), **parts.VARIANTS}:
            raise unknown("method", method, [*METHODS, *known])
    return NetworkClassifier


def _made(estimator: IncrementalClassifier, X: Any) -> Family:
    """A new one, of the family that the method and the inputs need; parameters it does not use are named once."""
    kind = _kind_of(estimator.method)
    if estimator.encoder is not None:
        if kind is not ClosedFormClassifier:
            raise InputError(f"method={estimator.method!r} takes no encoder: set method='closed-form'")
    elif is_sparse(X) or texts_of(X) is not None:
        if kind is not ClosedFormClassifier:
            raise InputError(f"method={estimator.method!r} takes no texts: set method='closed-form'")
        kind = TextClassifier
    samplers.check_name(estimator.sampler)  # refused even where it is not used
    unused = [name for name in _given(estimator) if name not in kind._get_param_names()]
    if unused and not estimator._warned:
        estimator._warned = True
        what, other = f"method={estimator.method!r}", "method='closed-form' does"
        if kind is TextClassifier:
            what, other = "learning texts", "leave it out"
        elif kind is ClosedFormClassifier:
            other = "method='rwalk' does"
        warn_caller(f"{what} does not use {', '.join(unused)}: {other}")
    return kind(**_params_of(estimator, kind))


def _params_of(estimator: Parameters, kind: type[Family]) -> dict[str, Any]:
    return {name: getattr(estimator, name) for name in kind._get_param_names()}


def _weights(family: Family, sample_weight: Any) -> dict[str, Any]:
    """The weights of a call's examples as the family takes them, if it does."""
    if sample_weight is not None and not isinstance(family, Sums):
        raise InputError(
            "networks take no sample_weight, as a step draws its examples class by class: leave it out, or set "
            "method='closed-form'"
        )
    return {} if sample_weight is None else {"sample_weight": sample_weight}


def _given(estimator: IncrementalClassifier) -> list[str]:
    """The parameters that differ from their defaults."""
    defaults = inspect.signature(type(estimator)).parameters
    given = []
    for name in estimator._get_param_names():
        value, default = getattr(estimator, name), defaults[name].default
        # Equal, not identical: an unpickled estimator has defaults of its own.
        if not (value is default or (type(value) is type(default) and value == default)):
            given.append(name)
    return given


_SHARED = [each.name for kind in (MethodParameter, SharedParameters) for each in fields(kind)]
IncrementalClassifier.__doc__ = (IncrementalClassifier.__doc__ or "").format(
    both=described(MethodParameter, SharedParameters),
    closed_form=described(ClosedFormClassifierParameters, but=_SHARED),
    networks=described(NetworkParameters, but=_SHARED),
)
