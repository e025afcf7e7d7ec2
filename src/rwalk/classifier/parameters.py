"""The parameters of all estimators, declared once; `IncrementalClassifier` documents them."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch import nn

from rwalk.classifier.arrays import ArrayClassifier
from rwalk.engine.networks import Factory
from rwalk.losses import Loss
from rwalk.methods import Method
from rwalk.projectors import Projector


class Parameters(ArrayClassifier):
    """A classifier that may be of any family."""

    def __init__(
        self,
        *,
        method: str | Method | Loss | Projector | None = "closed-form",
        network: str | Factory | nn.Module | None = None,
        encoder: Any = None,
        backbone: str = "frozen",
        features: str = "auto",
        size: int | None = None,
        ridge: float | None = None,
        class_weight: str | Mapping[Any, float] | None = None,
        half_life: float | None = None,
        ledger: bool = False,
        standardize: bool = True,
        mirror: bool | None = None,
        warm_up: int = 100,
        dtype: str | None = None,
        lam: float | str | None = None,
        memory: int | None = None,
        memory_total: int | None = None,
        sampler: str = "mof",
        epochs: int | None = None,
        batch_size: int = 64,
        learning_rate: float = 1e-3,
        device: str | torch.device = "cpu",
        random_state: int | np.random.RandomState | None = 0,
        verbose: bool | int = False,
    ) -> None:
        self.method = method
        self.network = network
        self.encoder = encoder
        self.backbone = backbone
        self.features = features
        self.size = size
        self.ridge = ridge
        self.class_weight = class_weight
        self.half_life = half_life
        self.ledger = ledger
        self.standardize = standardize
        self.mirror = mirror
        self.warm_up = warm_up
        self.dtype = dtype
        self.lam = lam
        self.memory = memory
        self.memory_total = memory_total
        self.sampler = sampler
        self.epochs = epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.device = device
        self.random_state = random_state
        self.verbose = verbose


DECLARED = inspect.signature(Parameters.__init__).parameters


class Takes:
    """Base of estimators that take some of these parameters: a subclass names them in `_takes`."""

    _takes: ClassVar[tuple[str, ...]]
    _defaults: ClassVar[Mapping[str, Any]] = {}  # where they differ from those declared above

    def __init__(self, **given: Any) -> None:
        raise NotImplementedError

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "_takes" in cls.__dict__:
            cls.__init__ = _constructor(cls._takes, cls._defaults)  # type: ignore[method-assign]

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...


def _constructor(names: tuple[str, ...], defaults: Mapping[str, Any]) -> Any:
    signature = inspect.Signature(
        [
            inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD),
            *(DECLARED[name].replace(default=defaults.get(name, DECLARED[name].default)) for name in names),
        ]
    )

    def __init__(self: Any, **given: Any) -> None:
        bound = signature.bind(self, **given)
        bound.apply_defaults()
        for name in names:
            setattr(self, name, bound.arguments[name])

    __init__.__signature__ = signature  # type: ignore[attr-defined]
    return __init__
