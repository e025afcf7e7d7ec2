"""The classifier: new classes at any time, in any order, exactly as if all had come at once."""

from __future__ import annotations

import copy
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from rwalk.classifier import closed_form_settings as settings
from rwalk.classifier import records
from rwalk.classifier.arrays import ArrayClassifier
from rwalk.classifier.closed_form_base import TAKES, ClosedForm
from rwalk.closed_form.examples import Examples
from rwalk.closed_form.model import check_mergeable
from rwalk.closed_form.ridge import FOR_CLASSES
from rwalk.errors import InputError, unknown
from rwalk.labels import columns_of, labels_of, merged

METHODS = {"closed-form": "ridge", "lda": "lda"}  # and how they solve


class ClosedFormClassifier(ArrayClassifier, ClosedForm):
    """Learns classes call by call, in any order and any portions, exactly as if it had seen all at once.

    Inputs become features by a map that never changes; of the features only sums are kept; the weights are solved
    for when they are needed. Nothing is forgotten but what `forget` is told to forget.

    Parameters as for `IncrementalClassifier`.

    >>> clf = ClosedFormClassifier()
    >>> clf = clf.partial_fit([[0.0, 0.0], [1.0, 0.0]], ["left", "right"])
    >>> clf = clf.partial_fit([[0.5, 1.0]], ["up"])
    >>> clf.predict([[1.0, 0.0], [0.0, 0.0], [0.5, 1.0]]).tolist()
    ['right', 'left', 'up']
    """

    classes_: NDArray[Any]
    moved_: dict[Any, float]
    _takes = ("method", "class_weight", *TAKES)
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
        """Learn some more. `classes` may announce labels that are still to come; it need not."""
        return self._learn(X, y, classes, sample_weight, afresh=not self.__sklearn_is_fitted__())

    def _learn(self, X: Any, y: Any, classes: Any, sample_weight: Any, afresh: bool) -> Self:
        x, labels, weight = self._examples(X, y, sample_weight, afresh)
        labels = labels_of(labels)
        announced = labels[:0] if classes is None else labels_of(classes)
        known = labels[:0] if afresh else self.classes_
        every = merged(known, labels, announced)
        if self.method not in METHODS:
            raise unknown("method", str(self.method), METHODS)
        model = settings.model_of(self, tuple(x.shape[1:]), len(every)) if afresh else copy.copy(self._ready())
        if len(every) != model.columns:
            model.move_columns(columns_of(known, every).tolist(), len(every))
        if not afresh:
            model.warn_outside(x, [*getattr(self, "feature_names_in_", [])])
        model.learn(Examples(x, columns_of(labels, every), weight))
        drift = {} if model.counted is None else model.counted.drift
        names = every.tolist()
        self.moved_ = {names[column]: moved for column, moved in drift.items()}
        self._model, self.classes_, self.input_shape_ = model, every, model.shape
        self._note(afresh, x, labels, weight)
        return self

    def forget(self, X: ArrayLike | Tensor, y: ArrayLike | Tensor, sample_weight: ArrayLike | None = None) -> Self:
        """Become what it would be had it never learned these examples, given with the labels and weights of then.

        A class none of whose examples are left is gone from `classes_`.
        """
        self._ready()
        x, labels, weight = self._examples(X, y, sample_weight, afresh=False)
        columns = columns_of(labels_of(labels), self.classes_)
        if (columns < 0).any():
            raise InputError("an example of an unknown class is to be forgotten: give only what was learned")
        before = self._model.counts
        ledger = None if self._ledger is None else self._ledger.without(x, labels, weight)
        self._model.forget(Examples(x, columns, weight))
        self._ledger = ledger
        gone = (before > 0) & (self._model.counts == 0)
        if gone.any():
            places = torch.where(gone, -1, (~gone).cumsum(0) - 1).tolist()
            self._model.move_columns(places, int((~gone).sum()))
            self.classes_ = self.classes_[~gone.numpy()]
        return self

    def merge(self, other: Self) -> Self:
        """Learn all that another has learned. Both must have the same feature map: see `fresh`."""
        check_is_fitted(self)
        check_is_fitted(other)
        check_mergeable(self._model, other._model)
        self._merge_ledgers(other)
        every = merged(self.classes_, other.classes_)
        theirs, ours = copy.copy(other._model), copy.copy(self._model)
        theirs.move_columns(columns_of(other.classes_, every).tolist(), len(every))
        ours.move_columns(columns_of(self.classes_, every).tolist(), len(every))
        ours.merge(theirs)
        self._model, self.classes_ = ours, every
        return self

    # ── using ─────────────────────────────────────────────────────────────────────────────────────────────────

    def _scores(self, X: Any) -> Tensor:
        model = self._ready()
        scores, sure = model.scores(self._inputs(X)), model.quick_fit.certainty
        seen, prior = model.counts > 0, model.prior
        emphasis = settings.checked_class_weight(self.class_weight, self.classes_, prior.exp())
        scores = scores + (sure.prior * prior.where(seen, 0) + emphasis) / sure.sharpness
        return scores.masked_fill(~seen, -torch.inf)

    def _sharpness(self) -> float:
        return self._ready().quick_fit.certainty.sharpness

    def novelty(self, X: ArrayLike | Tensor) -> NDArray[np.float64]:
        """The share of known inputs that are less novel than each of these, between 0 and 1."""
        novelty: NDArray[np.float64] = self._ready().novelty(self._inputs(X)).numpy()
        return novelty

    def _solver(self) -> str:
        return METHODS[self.method]

    def _begin(self) -> None:
        self._model, self.classes_ = self._model.fresh(0), self.classes_[:0]

    @property
    def class_count_(self) -> NDArray[np.int64]:
        """Examples learned and not forgotten, by class."""
        counts: NDArray[np.int64] = self._ready().counts.numpy()
        return counts

    def _columns(self) -> int:
        return len(self.classes_)

    def _to_record(self) -> dict[str, Any]:
        return {**super()._to_record(), "classes": records.labels_to_json(self.classes_)}

    def _from_record(self, record: dict[str, Any]) -> None:
        super()._from_record(record)
        self.classes_ = records.checked_labels(record["classes"])
