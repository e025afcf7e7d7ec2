"""The parameters of all families in one place; `IncrementalClassifier` says what they mean."""

from __future__ import annotations

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
        backbone: str = "frozen",
        features: str = "auto",
        size: int | None = None,
        ridge: float | None = None,
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
        self.backbone = backbone
        self.features = features
        self.size = size
        self.ridge = ridge
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
