"""An estimator's parameters, checked and made into what learns in closed form."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from rwalk.classifier.backbones import FirstCall
from rwalk.closed_form.features import Recipe
from rwalk.closed_form.fit import Rule
from rwalk.closed_form.model import Model
from rwalk.errors import InputError, unknown

if TYPE_CHECKING:
    from rwalk.classifier.closed_form_base import ClosedForm

BACKBONES = ("frozen", "first call")
DTYPES = {"float32": torch.float32, "float64": torch.float64}


def model_of(estimator: ClosedForm, shape: tuple[int, ...], columns: int) -> Model:
    """A model that has learned nothing, as the parameters say."""
    dtype, mirror = estimator.dtype, estimator.mirror
    if dtype is not None and dtype not in DTYPES:
        raise unknown("dtype", str(dtype), DTYPES)
    recipe = Recipe(
        _features_of(estimator),
        None if estimator.size is None else _positive("size", estimator.size),
        bool(estimator.standardize),
        estimator._seed(),
        None if mirror is None else bool(mirror),
    )
    return Model(
        recipe,
        shape,
        columns,
        Rule(estimator._solver(), checked_ridge(estimator.ridge), estimator._share),
        warm_up=_positive("warm_up", estimator.warm_up),
        dtype=None if dtype is None else DTYPES[dtype],
        device=estimator._device(),
        half_life=checked_half_life(estimator.half_life),
    )


def _features_of(estimator: ClosedForm) -> str | nn.Module | FirstCall:
    network, backbone = estimator.network, estimator.backbone
    if backbone not in BACKBONES:
        raise unknown("backbone", str(backbone), BACKBONES)
    if backbone == "first call":
        if network is None:
            raise InputError("backbone='first call' trains a network: name it, network='cnn', or give a module")
        return FirstCall(network, estimator._seed(), estimator._device())
    if not (network is None or isinstance(network, nn.Module)):
        raise InputError(
            f"closed form takes features from a trained nn.Module, not from network={network!r}: to train it on "
            "the first call, set backbone='first call'"
        )
    return estimator.features if network is None else network


def checked_ridge(ridge: Any) -> float | None:
    if ridge is not None and not (isinstance(ridge, Real) and 0 < float(ridge) < np.inf):
        raise InputError(f"ridge={ridge!r} is no positive number: give one, or None to have it chosen")
    return None if ridge is None else float(ridge)


def checked_half_life(half_life: Any) -> float | None:
    if half_life is not None and not (isinstance(half_life, Real) and 1 <= float(half_life) < np.inf):
        raise InputError(f"half_life={half_life!r} is no number of examples: give 1 or more, or None")
    return None if half_life is None else float(half_life)


def checked_class_weight(class_weight: Any, classes: Any, share: Tensor) -> Tensor:
    """What each class's probability is multiplied by, as logarithms [C]."""
    if class_weight is None:
        return torch.zeros_like(share)
    if isinstance(class_weight, str) and class_weight == "balanced":
        return -share.where(share > 0, 1.0).log()
    if not isinstance(class_weight, Mapping):
        raise InputError(
            f"class_weight={class_weight!r} is unknown: give 'balanced', a dict of weights by label, or None"
        )
    weights = [class_weight.get(label, 1.0) for label in classes.tolist()]
    if not all(isinstance(each, Real) and 0 < float(each) < np.inf for each in weights):
        raise InputError("class_weight has a weight that is no positive number: give one for each label")
    return torch.tensor(weights, dtype=torch.float64).log()


def _positive(name: str, value: Any) -> int:
    if not (isinstance(value, Integral) and int(value) > 0):
        raise InputError(f"{name}={value!r} is no positive whole number: give one")
    return int(value)
