"""The families behind the estimator: which one a method names, and how it is made from its parameters."""

from __future__ import annotations

import inspect
import warnings
from pathlib import Path
from typing import Any

from sklearn.base import BaseEstimator

from rwalk import parts, sealed
from rwalk.classifier import records
from rwalk.classifier.choice import AutoClassifier
from rwalk.classifier.closed_form import METHODS, ClosedFormClassifier
from rwalk.classifier.network import NetworkClassifier
from rwalk.classifier.texts import TextClassifier, is_sparse, texts_of
from rwalk.data import samplers
from rwalk.errors import InputError, unknown

Family = ClosedFormClassifier | NetworkClassifier | AutoClassifier | TextClassifier
Sums = ClosedFormClassifier | TextClassifier  # families that forget and merge
FORMATS: dict[str, type[Family]] = {
    form: kind
    for kind in (ClosedFormClassifier, NetworkClassifier, AutoClassifier, TextClassifier)
    for form in kind._formats
}
AUTO = "auto"
for _kind in FORMATS.values():
    _kind.__name__ = "IncrementalClassifier"  # scikit-learn's messages name it so; `__qualname__` stays


def kind_of(method: Any) -> type[Family]:
    """The family that a method belongs to."""
    if isinstance(method, str):
        if method == AUTO:
            return AutoClassifier
        if method in METHODS:
            return ClosedFormClassifier
        if ":" not in method and method not in {**(known := parts.parts()), **parts.VARIANTS}:
            raise unknown("method", method, [AUTO, *METHODS, *known])
    return NetworkClassifier


def made(estimator: BaseEstimator, X: Any) -> Family:
    """A new one, of the family that the method and the inputs need; parameters it does not use are named once."""
    kind = kind_of(estimator.method)
    if estimator.encoder is not None:
        if kind is not ClosedFormClassifier:
            raise InputError(f"method={estimator.method!r} takes no encoder: set method='closed-form'")
    elif is_sparse(X) or texts_of(X) is not None:
        if kind is not ClosedFormClassifier:
            raise InputError(f"method={estimator.method!r} takes no texts: set method='closed-form'")
        kind = TextClassifier
    samplers.check_name(estimator.sampler)  # refused even where it is not used
    unused = [name for name in _given(estimator) if name not in kind._get_param_names()]
    if unused and not getattr(estimator, "_warned", False):
        estimator._warned = True
        what, other = f"method={estimator.method!r}", "method='closed-form' does"
        if kind is TextClassifier:
            what, other = "learning texts", "leave it out"
        elif kind is ClosedFormClassifier:
            other = "method='rwalk' does"
        warnings.warn(f"{what} does not use {', '.join(unused)}: {other}", stacklevel=3)
    return kind(**params_of(estimator, kind))


def params_of(estimator: BaseEstimator, kind: type[Family]) -> dict[str, Any]:
    return {name: getattr(estimator, name) for name in kind._get_param_names()}


def weights(family: Family, sample_weight: Any) -> dict[str, Any]:
    """The weights of a call's examples as the family takes them, if it does."""
    if sample_weight is not None and not isinstance(family, Sums):
        raise InputError(
            "networks take no sample_weight, as a step draws its examples class by class: leave it out, or set "
            "method='closed-form'"
        )
    return {} if sample_weight is None else {"sample_weight": sample_weight}


def written_in(path: Path) -> type[Family]:
    """The family whose model a file holds."""
    with records.reading(path):
        form = sealed.header(path).get("format")
    return FORMATS.get(form or "", ClosedFormClassifier)  # which says what it cannot read


def _given(estimator: BaseEstimator) -> list[str]:
    """The parameters that differ from their defaults."""
    defaults = inspect.signature(type(estimator)).parameters
    given = []
    for name in estimator._get_param_names():
        value, default = getattr(estimator, name), defaults[name].default
        # Equal, not identical: an unpickled estimator has defaults of its own.
        if not (value is default or (type(value) is type(default) and value == default)):
            given.append(name)
    return given
