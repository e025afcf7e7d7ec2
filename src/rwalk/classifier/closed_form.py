"""Closed form: classifier and regressor of sums, by scikit-learn's conventions.

Inputs become features by a map that never changes, and only sums of the features are kept. The weights are solved
for when they are needed, so the order of calls makes no difference.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from numbers import Real
from types import MappingProxyType
from typing import Any, Self, cast

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import RegressorMixin
from sklearn.utils.validation import check_is_fitted
from torch import Tensor, nn

from rwalk.classifier import closed_form_files as sums_files
from rwalk.classifier import encoders, estimator_files
from rwalk.classifier.base import (
    ArrayClassifier,
    ArrayEstimator,
    Summable,
    positive,
)
from rwalk.classifier.encoders import texts_of
from rwalk.classifier.estimator_files import Contents, Stored
from rwalk.classifier.frames import form_of_table, rows_of
from rwalk.classifier.parameters import ClosedFormClassifierParameters, ClosedFormParameters
from rwalk.closed_form.examples import Examples
from rwalk.closed_form.features import Recipe
from rwalk.closed_form.ledger import Ledger
from rwalk.closed_form.model import Model, check_mergeable
from rwalk.closed_form.solution import Rule
from rwalk.closed_form.solve import FOR_CLASSES
from rwalk.errors import InputError, unknown, warn_caller
from rwalk.labels import columns_of, labels_of, merged, one_line
from rwalk.option_fields import described
from rwalk.threads import usual_torch

METHODS = {"closed-form": "ridge", "lda": "lda"}  # and how they solve
DTYPES = {"float32": torch.float32, "float64": torch.float64}
FIXED = ("network", "encoder", "features", "size", "standardize", "mirror", "dtype", "random_state",
         "ledger")  # fmt: skip


class ClosedForm(Summable, Stored, ArrayEstimator):
    """Inputs, files and sums of both estimators."""

    _formats = (sums_files.FORMAT, sums_files.FIRST)
    _share = 1.0  # of the λ that predicts targets best
    _model: Model
    _ledger: Ledger | None = None
    _fixed: Mapping[str, Any] = MappingProxyType({})  # parameters that later calls cannot change
    _encodes_texts = False

    # ── inputs ────────────────────────────────────────────────────────────────────────────────────────────────

    def _inputs(self, X: Any) -> Tensor:
        return super()._inputs(self._encoded(X))

    def _examples(
        self, X: Any, y: Any, sample_weight: Any, afresh: bool, **checks: Any
    ) -> tuple[Tensor, Any, Tensor]:
        return super()._examples(self._encoded(X), y, sample_weight, afresh, **checks)

    def _encoded(self, X: Any) -> Any:
        X = rows_of(self.form_, X)
        if self.encoder is None:
            return X
        self._encodes_texts = texts_of(X) is not None
        return encoders.encoded(self.encoder, X, bool(self.verbose))

    # ── learning ──────────────────────────────────────────────────────────────────────────────────────────────

    def _learned(self, model: Model, x: Tensor, y: Tensor, weight: Tensor, afresh: bool, labels: Any) -> None:
        """Learn these examples with a model, and take it over; `labels` are those of the ledger."""
        examples = Examples(x, y, weight)
        if not afresh:
            model.warn_outside(x, y, self._names())
        model.warn_mark(x, self._names())
        model.learn(examples)
        self._model, self.input_shape_ = model, model.shape
        if afresh:
            self._fix()
            self._ledger = Ledger() if self.ledger else None
        if self._ledger is not None:
            self._ledger.add(x, labels, weight)
        if self.verbose:
            print(f"{len(x):,} examples learned, {self.n_samples_seen_:,} in all")

    def _forgotten(self, x: Tensor, y: Tensor, weight: Tensor, labels: Any) -> None:
        ledger = None if self._ledger is None else self._ledger.without(x, labels, weight)
        self._model.forget(Examples(x, y, weight))
        self._ledger = ledger

    def fresh(self) -> Self:
        """One with the same feature map that has learned nothing yet: for another worker, to be merged later."""
        check_is_fitted(self)
        twin = copy.copy(self)
        twin._begin()
        twin._ledger = None if self._ledger is None else self._ledger.fresh()
        return twin

    def _begin(self) -> None:
        """Drop everything but the map."""
        raise NotImplementedError

    def _fix(self) -> None:
        self._fixed = {name: getattr(self, name) for name in FIXED}

    def _check_mergeable(self, other: Self) -> None:
        check_is_fitted(self)
        check_is_fitted(other)
        check_mergeable(self._model, other._model)

    def _merge_ledgers(self, other: Self) -> None:
        if (self._ledger is None) != (other._ledger is None):
            raise InputError("one has a ledger and the other has none: set ledger= alike before they learn")
        if self._ledger is not None and other._ledger is not None:
            self._ledger.merge(other._ledger)

    # ── the model ─────────────────────────────────────────────────────────────────────────────────────────────

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "_model")

    def _ready(self) -> Model:
        check_is_fitted(self)
        for name, value in self._fixed.items():
            now = getattr(self, name)
            if not (now is value or (type(now) is type(value) and now == value)):
                raise InputError(
                    f"{name}={now!r} was set after the features were made with {name}={value!r}: set it back, or "
                    "call fit to begin anew"
                )
        self._model.use_ridge(positive("ridge", self.ridge))
        self._model.use_half_life(positive("half_life", self.half_life, least=1))
        return self._model

    def _made(self, shape: tuple[int, ...], columns: int) -> Model:
        """A model that has learned nothing, by the parameters."""
        if self.dtype is not None and self.dtype not in DTYPES:
            raise unknown("dtype", str(self.dtype), DTYPES)
        size, warm_up = positive("size", self.size, whole=True), positive("warm_up", self.warm_up, whole=True)
        mirror = None if self.mirror is None else bool(self.mirror)
        return Model(
            Recipe(self._features(), size, bool(self.standardize), self._seed(), mirror),
            shape,
            columns,
            Rule(self._solver(), positive("ridge", self.ridge), self._share),
            warm_up=warm_up or 0,
            dtype=None if self.dtype is None else DTYPES[self.dtype],
            device=self._device(),
            half_life=positive("half_life", self.half_life, least=1),
        )

    def _features(self) -> str | nn.Module:
        network = self.network
        if not (network is None or isinstance(network, nn.Module)):
            raise InputError(
                f"closed form takes features from a trained nn.Module, not from network={network!r}: train it, "
                "IncrementalClassifier(method=None, network=…).fit(X, y), and give its network_"
            )
        return self.features if network is None else network

    def _solver(self) -> str:
        return "ridge"

    # ── results ───────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def ridge_(self) -> float:
        """The λ in use, relative to the mean variance of a feature."""
        with usual_torch():
            return self._ready().fit.solution.ridge

    @property
    def coef_(self) -> NDArray[np.float64]:
        """Weights of the features, one row per class or target."""
        with usual_torch():
            weights: NDArray[np.float64] = self._ready().fit.solution.weights.T.cpu().numpy().copy()
        return weights

    @property
    def intercept_(self) -> NDArray[np.float64]:
        with usual_torch():
            bias: NDArray[np.float64] = self._ready().fit.intercept.cpu().numpy().copy()
        return bias

    @property
    def n_samples_seen_(self) -> int:
        """Examples learned and not forgotten."""
        counts = self._ready().counts
        return int(counts.sum() if isinstance(self, ArrayClassifier) else counts.max())

    def features_of(self, X: ArrayLike | Tensor) -> NDArray[Any]:
        """The features of these inputs: `coef_` and `intercept_` apply to them."""
        model = self._ready()
        features: NDArray[Any] = torch.cat([rows.cpu() for rows in model.features(self._inputs(X))]).numpy()
        return features

    # ── files ─────────────────────────────────────────────────────────────────────────────────────────────────

    # Sums are written, not examples, except while fewer than `warm_up` have been seen.

    def _contents(self) -> Contents:
        classes = isinstance(self, ArrayClassifier)  # a regression has no probabilities
        params = estimator_files.plain(self.get_params(deep=False))
        del params["encoder"]
        encoder = None if self.encoder is None else encoders.about(self.encoder, self._encodes_texts)
        own = {"estimator": type(self).__qualname__, "params": params, "encoder": encoder}
        about, tensors = sums_files.contents(self._ready(), classes)
        if classes:
            self._model.drop_sample()
        if self._ledger is not None:
            tensors |= {f"ledger.{name}": each for name, each in self._ledger.tensors().items()}
        return {**estimator_files.about_inputs(self), **self._about(), **own, **about}, tensors

    @classmethod
    def _restored(cls, record: dict[str, Any], tensors: Mapping[str, Tensor], given: Mapping[str, Any]) -> Self:
        self = cls(**sums_files.checked_params(record, cls.__qualname__, cls._get_param_names(), given, FIXED))
        sums_files.check_encoder(self.encoder, record.get("encoder"))
        self._encodes_texts = bool((record.get("encoder") or {}).get("probe"))
        estimator_files.restore_inputs(self, record)
        self._fix()
        self._model = self._made(self.input_shape_, self._restore_targets(record))
        sums, self._ledger = sums_files.without_ledger(tensors)
        sums_files.restore(self._model, record, sums)
        return self

    def _about(self) -> dict[str, Any]:
        """The record of classes or targets."""
        raise NotImplementedError

    def _restore_targets(self, record: Mapping[str, Any]) -> int:
        """Read `_about`; the number of columns of targets."""
        raise NotImplementedError


class ClosedFormClassifier(ClosedFormClassifierParameters, ArrayClassifier, ClosedForm):
    """Learns classes call by call, in any order and any portions, exactly as if it had seen all at once.

    Nothing is forgotten unless `forget` is called. Parameters as for `IncrementalClassifier`.

    >>> clf = ClosedFormClassifier()
    >>> clf = clf.partial_fit([[0.0, 0.0], [1.0, 0.0]], ["left", "right"])
    >>> clf = clf.partial_fit([[0.5, 1.0]], ["up"])
    >>> clf.predict([[1.0, 0.0], [0.0, 0.0], [0.5, 1.0]]).tolist()
    ['right', 'left', 'up']
    """

    classes_: NDArray[Any]
    moved_: dict[Any, float]
    _share = FOR_CLASSES

    # ── learning ──────────────────────────────────────────────────────────────────────────────────────────────

    def fit(self, X: ArrayLike | Tensor, y: ArrayLike | Tensor, sample_weight: ArrayLike | None = None) -> Self:
        """Forget everything, then learn this."""
        return self._learn(X, y, None, sample_weight, afresh=True)

    def partial_fit(
        self,
        X: ArrayLike | Tensor,
        y: ArrayLike | Tensor,
        classes: ArrayLike | Tensor | None = None,
        sample_weight: ArrayLike | None = None,
    ) -> Self:
        """Learn some more. `classes` may announce labels that are still to come."""
        return self._learn(X, y, classes, sample_weight, afresh=not self.__sklearn_is_fitted__())

    def _learn(self, X: Any, y: Any, classes: Any, sample_weight: Any, afresh: bool) -> Self:
        x, labels, weight = self._examples(X, y, sample_weight, afresh)
        labels = labels_of(labels)
        known, every = self._classes_after(labels, classes, afresh)
        if self.method not in METHODS:
            raise unknown("method", str(self.method), METHODS)
        model = self._made(tuple(x.shape[1:]), len(every)) if afresh else copy.copy(self._ready())
        if len(every) != model.columns:
            model.move_columns(columns_of(known, every).tolist(), len(every))
        self._learned(model, x, columns_of(labels, every), weight, afresh, labels)
        drift = {} if model.counted is None else model.counted.drift
        names = every.tolist()
        self.moved_ = {names[column]: moved for column, moved in drift.items()}
        self.classes_ = every
        return self

    def forget(self, X: ArrayLike | Tensor, y: ArrayLike | Tensor, sample_weight: ArrayLike | None = None) -> Self:
        """Become the classifier that never learned these examples, given with the labels and weights of then.

        A class none of whose examples are left is gone from `classes_`.
        """
        self._ready()
        x, labels, weight = self._examples(X, y, sample_weight, afresh=False)
        columns = columns_of(labels_of(labels), self.classes_)
        if (columns < 0).any():
            raise InputError("an example of an unknown class is to be forgotten: give only learned examples")
        before = self._model.counts
        self._forgotten(x, columns, weight, labels)
        gone = (before > 0) & (self._model.counts == 0)
        if gone.any():
            places = torch.where(gone, -1, (~gone).cumsum(0) - 1).tolist()
            self._model.move_columns(places, int((~gone).sum()))
            self.classes_ = self.classes_[~gone.numpy()]
        return self

    def merge(self, other: Self) -> Self:
        """Learn everything that another has learned. Both must have the same feature map: see `fresh`."""
        self._check_mergeable(other)
        self._merge_ledgers(other)
        every = merged(self.classes_, other.classes_)
        theirs, ours = copy.copy(other._model), copy.copy(self._model)
        theirs.move_columns(columns_of(other.classes_, every).tolist(), len(every))
        ours.move_columns(columns_of(self.classes_, every).tolist(), len(every))
        ours.merge(theirs)
        self._model, self.classes_ = ours, every
        return self

    def _begin(self) -> None:
        self._model, self.classes_ = self._model.fresh(0), self.classes_[:0]

    # ── using ─────────────────────────────────────────────────────────────────────────────────────────────────

    def _scores(self, X: Any) -> Tensor:
        model = self._ready()
        x = self._inputs(X)
        model.warn_outside(x, None, self._names())
        scores, sure = model.scores(x), model.quick_fit.certainty
        seen, prior = model.counts > 0, model.prior
        emphasis = _emphasis(self.class_weight, self.classes_, prior.exp())
        scores = scores + (sure.prior * prior.where(seen, 0) + emphasis) / sure.sharpness
        return scores.masked_fill(~seen, -torch.inf)

    def _sharpness(self) -> float:
        return self._ready().quick_fit.certainty.sharpness

    def novelty(self, X: ArrayLike | Tensor) -> NDArray[np.float64]:
        """The share of known inputs that are less novel than each of these, between 0 and 1."""
        novelty: NDArray[np.float64] = self._ready().novelty(self._inputs(X)).numpy()
        return novelty

    def _solver(self) -> str:
        return METHODS[str(self.method)]

    @property
    def class_count_(self) -> NDArray[np.int64]:
        """Examples learned and not forgotten, by class."""
        counts: NDArray[np.int64] = self._ready().counts.numpy()
        return counts

    def _about(self) -> dict[str, Any]:
        return {"classes": estimator_files.labels_to_json(self.classes_)}

    def _restore_targets(self, record: Mapping[str, Any]) -> int:
        self.classes_ = estimator_files.checked_labels(record["classes"])
        return len(self.classes_)


class IncrementalRegressor(ClosedFormParameters, RegressorMixin, ClosedForm):  # type: ignore[misc]
    """Predicts numbers, one target or several, by closed form.

    {parameters}
    """

    _flat: bool

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    def fit(self, X: ArrayLike | Tensor, y: ArrayLike | Tensor, sample_weight: ArrayLike | None = None) -> Self:
        """Forget everything, then learn this."""
        with usual_torch():
            return self._learn(X, y, sample_weight, afresh=True)

    def partial_fit(
        self, X: ArrayLike | Tensor, y: ArrayLike | Tensor, sample_weight: ArrayLike | None = None
    ) -> Self:
        """Learn some more."""
        with usual_torch():
            return self._learn(X, y, sample_weight, afresh=not self.__sklearn_is_fitted__())

    def _learn(self, X: Any, y: Any, sample_weight: Any, afresh: bool) -> Self:
        form, X = form_of_table(X, self.encoder) if afresh else (self.form_, X)
        x, targets, weight, flat = self._with_targets(X, y, sample_weight, afresh)
        model = self._made(tuple(x.shape[1:]), targets.shape[1]) if afresh else copy.copy(self._ready())
        self._learned(model, x, targets, weight, afresh, targets.tolist())
        self._flat, self.form_ = flat, form
        return self

    def forget(self, X: ArrayLike | Tensor, y: ArrayLike | Tensor, sample_weight: ArrayLike | None = None) -> Self:
        """Remove examples exactly; give the targets and weights with which they were learned."""
        self._ready()
        x, targets, weight, _ = self._with_targets(X, y, sample_weight, afresh=False)
        with usual_torch():
            self._forgotten(x, targets, weight, targets.tolist())
        return self

    def merge(self, other: Self) -> Self:
        """Learn everything that another has learned. Both must have the same feature map: see `fresh`."""
        if hasattr(self, "_model") and hasattr(other, "_model") and self._model.columns != other._model.columns:
            raise InputError(f"{self._model.columns} and {other._model.columns} targets cannot be merged")
        if self.form_ != other.form_:
            raise InputError("its inputs are made of other columns: learn the same columns with both")
        self._check_mergeable(other)
        self._merge_ledgers(other)
        with usual_torch():
            self._model.merge(other._model)
        return self

    def predict(self, X: ArrayLike | Tensor) -> NDArray[np.float64]:
        """The predicted numbers: [n], or [n, targets] if the targets had two dimensions."""
        model = self._ready()
        x = self._inputs(X)
        model.warn_outside(x, None, self._names())
        with usual_torch():
            values = model.scores(x).numpy()
        return cast(NDArray[np.float64], values[:, 0] if self._flat else values)

    def _with_targets(
        self, X: Any, y: Any, sample_weight: Any, afresh: bool
    ) -> tuple[Tensor, Tensor, Tensor, bool]:
        if self.encoder is None and texts_of(X) is not None:
            raise InputError("numbers cannot be learned from texts alone: give vectors, or an encoder=")
        x, y, weight = self._examples(X, y, sample_weight, afresh, multi_output=True, y_numeric=True)
        with one_line():
            targets = torch.from_numpy(np.array(y, dtype=np.float64, ndmin=1))
        flat = targets.ndim == 1
        targets = targets[:, None] if flat else targets
        if not afresh and targets.shape[1] != self._model.columns:
            raise InputError(f"{targets.shape[1]} targets per example: give {self._model.columns}, as learned")
        return x, targets, weight, flat

    def _begin(self) -> None:
        self._model = self._model.fresh(self._model.columns)

    def _about(self) -> dict[str, Any]:
        return {"targets": self._model.columns, "flat": self._flat}

    def _restore_targets(self, record: Mapping[str, Any]) -> int:
        targets, self._flat = sums_files.checked_targets(record["targets"], record["flat"])
        return targets


IncrementalRegressor.__doc__ = (IncrementalRegressor.__doc__ or "").format(
    parameters=described(ClosedFormParameters)
)


def _emphasis(class_weight: Any, classes: Any, share: Tensor) -> Tensor:
    """The factors of the classes' probabilities, as logarithms [C]."""
    if class_weight is None:
        return torch.zeros_like(share)
    if isinstance(class_weight, str) and class_weight == "balanced":
        return -share.where(share > 0, 1.0).log()
    if not isinstance(class_weight, Mapping):
        raise InputError(
            f"class_weight={class_weight!r} is unknown: give 'balanced', a dict of weights by label, or None"
        )
    labels, known = classes.tolist(), {*classes.tolist()}
    if strange := [label for label in class_weight if label not in known]:
        warn_caller(f"class_weight has a weight for {strange[0]!r}, which is no class so far")
    weights = [class_weight.get(label, 1.0) for label in labels]
    if not all(isinstance(each, Real) and 0 < float(each) < np.inf for each in weights):
        raise InputError("class_weight has a weight that is no positive number: give one for each label")
    return torch.tensor(weights, dtype=torch.float64).log()
