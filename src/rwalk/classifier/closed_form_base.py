"""What classifier and regressor share: scikit-learn's conventions around a model that learns in closed form."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from rwalk.classifier import closed_form_files as files
from rwalk.classifier import closed_form_settings as settings
from rwalk.classifier import encoders, records
from rwalk.classifier.arrays import ArrayEstimator, Summable
from rwalk.classifier.parameters import Takes
from rwalk.classifier.stored import Contents, Stored
from rwalk.classifier.texts import texts_of
from rwalk.closed_form.ledger import Ledger
from rwalk.closed_form.model import Model
from rwalk.errors import InputError
from rwalk.sealed import shown

TAKES = ("network", "encoder", "backbone", "features", "size", "ridge", "half_life", "ledger", "standardize",
         "mirror", "warm_up", "dtype", "device", "random_state", "verbose")  # fmt: skip

FIXED = (
    "network",
    "encoder",
    "backbone",
    "features",
    "size",
    "standardize",
    "mirror",
    "dtype",
    "random_state",
    "ledger",
)


class ClosedForm(Takes, Summable, Stored, ArrayEstimator):
    """Inputs, files, and sums of estimators."""

    _formats = (files.FORMAT, files.FIRST)
    _share = 1.0
    _model: Model
    _ledger: Ledger | None = None
    _fixed: Mapping[str, Any] = MappingProxyType({})  # parameters that later calls cannot change

    # ── inputs ────────────────────────────────────────────────────────────────────────────────────────────────

    _encodes_texts = False

    def _inputs(self, X: Any) -> Tensor:
        return super()._inputs(self._encoded(X))

    def _examples(
        self, X: Any, y: Any, sample_weight: Any, afresh: bool, **checks: Any
    ) -> tuple[Tensor, Any, Tensor]:
        return super()._examples(self._encoded(X), y, sample_weight, afresh, **checks)

    def _encoded(self, X: Any) -> Any:
        if self.encoder is None:
            return X
        self._encodes_texts = texts_of(X) is not None
        return encoders.encoded(self.encoder, X, bool(self.verbose))

    # ── sums of what was learned ──────────────────────────────────────────────────────────────────────────────

    def fresh(self) -> Self:
        """One with the same feature map that has learned nothing yet: for another worker, to be merged later."""
        check_is_fitted(self)
        twin = copy.copy(self)
        twin._begin()
        twin._ledger = None if self._ledger is None else self._ledger.fresh()
        return twin

    def _begin(self) -> None:
        """Become one that knows the map and nothing else."""
        raise NotImplementedError

    def _fix(self) -> None:
        self._fixed = {name: getattr(self, name) for name in FIXED}

    def _note(self, afresh: bool, x: Tensor, y: Any, weight: Tensor) -> None:
        """Enter examples that were learned into the ledger, if there is to be one."""
        if afresh:
            self._fix()
            self._ledger = Ledger() if self.ledger else None
        if self._ledger is not None:
            self._ledger.add(x, y, weight)

    def _merge_ledgers(self, other: Self) -> None:
        if (self._ledger is None) != (other._ledger is None):
            raise InputError("one has a ledger and the other has none: set ledger= alike before they learn")
        if self._ledger is not None and other._ledger is not None:
            self._ledger.merge(other._ledger)

    # ── what was found ────────────────────────────────────────────────────────────────────────────────────────

    @property
    def ridge_(self) -> float:
        """The λ in use, relative to the mean variance of a feature."""
        return self._ready().fit.solution.ridge

    @property
    def coef_(self) -> NDArray[np.float64]:
        """Weights of the features, one row per class or target."""
        weights: NDArray[np.float64] = self._ready().fit.solution.weights.T.cpu().numpy().copy()
        return weights

    @property
    def intercept_(self) -> NDArray[np.float64]:
        bias: NDArray[np.float64] = self._ready().fit.intercept.cpu().numpy().copy()
        return bias

    def features_of(self, X: ArrayLike | Tensor) -> NDArray[Any]:
        """The features of these inputs: `coef_` and `intercept_` apply to them."""
        model = self._ready()
        features: NDArray[Any] = torch.cat([rows.cpu() for rows in model.features(self._inputs(X))]).numpy()
        return features

    # ── files ─────────────────────────────────────────────────────────────────────────────────────────────────

    # Sums are written, not examples, except while fewer than `warm_up` have been seen.

    def _contents(self) -> Contents:
        classes = self._share != 1  # a regression has no probabilities
        about = type(self).__qualname__, self.get_params(deep=False), self._to_record()
        record, tensors = files.contents(*about, self._ready(), classes)
        if classes:
            self._model.drop_sample()
        if self._ledger is not None:
            tensors |= {f"ledger.{name}": each for name, each in self._ledger.tensors().items()}
        return record, tensors

    @classmethod
    def _restored(cls, record: dict[str, Any], tensors: Mapping[str, Tensor], given: Mapping[str, Any]) -> Self:
        self = cls(**files.checked_params(record, cls.__qualname__, cls._get_param_names(), given, FIXED))
        self._from_record(record)
        self._fix()
        self._model = settings.model_of(self, self.input_shape_, self._columns())
        sums, self._ledger = files.without_ledger(tensors)
        files.restore(self._model, record, sums)
        return self

    def _to_record(self) -> dict[str, Any]:
        names = [*getattr(self, "feature_names_in_", [])]
        encoder = None if self.encoder is None else encoders.about(self.encoder, self._encodes_texts)
        return {"encoder": encoder, "shape": list(self.input_shape_), "feature_names": names}

    def _from_record(self, record: dict[str, Any]) -> None:
        stored = record.get("encoder")
        if (stored is None) != (self.encoder is None):
            which = "was learned without an encoder: leave it out"
            if stored is not None:
                name = shown(stored["name"])
                which = f"needs its encoder {name!r}, which no file holds: pass it again, load(path, encoder=…)"
            raise InputError(f"it {which}")
        if stored is not None:
            encoders.check_same(self.encoder, stored)
            self._encodes_texts = stored["probe"] is not None
        shape = self.input_shape_ = records.checked_shape(record["shape"])
        self.n_features_in_ = shape[0]
        if names := records.checked_feature_names(record["feature_names"], shape):
            self.feature_names_in_ = np.array(names, dtype=object)

    def _solver(self) -> str:
        return "ridge"

    def _columns(self) -> int:
        raise NotImplementedError

    def _check_fixed(self) -> None:
        """Refuse parameters that were changed after they had made the features."""
        for name, value in self._fixed.items():
            now = getattr(self, name)
            if not (now is value or (type(now) is type(value) and now == value)):
                raise InputError(
                    f"{name}={now!r} was set after the features were made with {name}={value!r}: set it back, or "
                    "call fit to begin anew"
                )

    @property
    def n_samples_seen_(self) -> int:
        """Examples learned and not forgotten."""
        counts = self._ready().counts
        return int(counts.sum() if self._share != 1 else counts.max())

    # ── state ─────────────────────────────────────────────────────────────────────────────────

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "_model")

    def _ready(self) -> Model:
        check_is_fitted(self)
        self._check_fixed()
        self._model.use_ridge(settings.checked_ridge(self.ridge))
        self._model.use_half_life(settings.checked_half_life(self.half_life))
        return self._model
