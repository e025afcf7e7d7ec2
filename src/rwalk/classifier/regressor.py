"""The regressor: the same sums, with numbers in place of class indicators."""

from __future__ import annotations

import copy
from typing import Any, Self, cast

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import RegressorMixin
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from rwalk.classifier import closed_form_files as files
from rwalk.classifier import closed_form_settings as settings
from rwalk.classifier.closed_form_base import TAKES, ClosedForm
from rwalk.closed_form.examples import Examples
from rwalk.closed_form.model import check_mergeable
from rwalk.errors import InputError


class IncrementalRegressor(RegressorMixin, ClosedForm):  # type: ignore[misc]
    """The same for numbers: one target or several. Parameters as for `IncrementalClassifier`."""

    _takes = TAKES
    _flat: bool

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    def fit(self, X: ArrayLike | Tensor, y: ArrayLike | Tensor, sample_weight: ArrayLike | None = None) -> Self:
        """Forget everything, then learn this."""
        return self._learn(X, y, sample_weight, afresh=True)

    def partial_fit(
        self, X: ArrayLike | Tensor, y: ArrayLike | Tensor, sample_weight: ArrayLike | None = None
    ) -> Self:
        """Learn some more."""
        return self._learn(X, y, sample_weight, afresh=not self.__sklearn_is_fitted__())

    def _learn(self, X: Any, y: Any, sample_weight: Any, afresh: bool) -> Self:
        x, targets, weight, flat = self._with_targets(X, y, sample_weight, afresh)
        model = (
            settings.model_of(self, tuple(x.shape[1:]), targets.shape[1]) if afresh else copy.copy(self._ready())
        )
        if not afresh:
            model.warn_outside(x, [*getattr(self, "feature_names_in_", [])])
        model.learn(Examples(x, targets, weight))
        self._model, self._flat, self.input_shape_ = model, flat, model.shape
        self._note(afresh, x, targets.tolist(), weight)
        return self

    def forget(self, X: ArrayLike | Tensor, y: ArrayLike | Tensor, sample_weight: ArrayLike | None = None) -> Self:
        """Become what it would be had it never learned these, given with the targets and weights of then."""
        self._ready()
        x, targets, weight, _ = self._with_targets(X, y, sample_weight, afresh=False)
        ledger = None if self._ledger is None else self._ledger.without(x, targets.tolist(), weight)
        self._model.forget(Examples(x, targets, weight))
        self._ledger = ledger
        return self

    def merge(self, other: Self) -> Self:
        """Learn all that another has learned. Both must have the same feature map: see `fresh`."""
        check_is_fitted(self)
        check_is_fitted(other)
        if self._model.columns != other._model.columns:
            raise InputError(f"{self._model.columns} and {other._model.columns} targets cannot be merged")
        check_mergeable(self._model, other._model)
        self._merge_ledgers(other)
        self._model.merge(other._model)
        return self

    def predict(self, X: ArrayLike | Tensor) -> NDArray[np.float64]:
        """[n], or [n, targets] if targets came so."""
        model = self._ready()
        values = model.scores(self._inputs(X)).numpy()
        return cast(NDArray[np.float64], values[:, 0] if self._flat else values)

    def _with_targets(
        self, X: Any, y: Any, sample_weight: Any, afresh: bool
    ) -> tuple[Tensor, Tensor, Tensor, bool]:
        x, y, weight = self._examples(X, y, sample_weight, afresh, multi_output=True, y_numeric=True)
        targets = torch.from_numpy(np.array(y, dtype=np.float64, ndmin=1))
        flat = targets.ndim == 1
        targets = targets[:, None] if flat else targets
        if not afresh and targets.shape[1] != self._model.columns:
            raise InputError(f"{targets.shape[1]} targets per example: give {self._model.columns}, as learned")
        return x, targets, weight, flat

    def _begin(self) -> None:
        self._model = self._model.fresh(self._model.columns)

    def _columns(self) -> int:
        return self._targets

    def _to_record(self) -> dict[str, Any]:
        return {**super()._to_record(), "targets": self._model.columns, "flat": self._flat}

    def _from_record(self, record: dict[str, Any]) -> None:
        super()._from_record(record)
        self._targets, self._flat = files.checked_targets(record["targets"], record["flat"])
