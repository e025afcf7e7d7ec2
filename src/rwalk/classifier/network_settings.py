"""An estimator's parameters, checked and made into what the engine takes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import nn

from rwalk.classifier.trials import longest
from rwalk.data.memory import MemorySpec
from rwalk.data.samplers import RESERVOIR
from rwalk.engine.networks import Factory
from rwalk.errors import InputError
from rwalk.labels import whole
from rwalk.learners import Learner, learner, with_lam
from rwalk.training import Training

if TYPE_CHECKING:
    from rwalk.classifier.network import NetworkClassifier
    from rwalk.classifier.parameters import Parameters

AUTO = "auto"


@dataclass(frozen=True)
class Settings:
    """How calls are learned.

    every_lam  learn with every λ, and have one chosen
    measured   train as long as it pays, not for a fixed number of epochs
    """

    network: str | Factory
    learner: Learner
    training: Training
    device: torch.device
    every_lam: bool
    measured: bool

    def training_on(self, examples: int) -> Training:
        """The training of a call with so many examples, exemplars included; at most that, if it is measured."""
        if not self.measured:
            return self.training
        return replace(self.training, steps=longest(examples, self.training.batch))


def settings_of(estimator: NetworkClassifier) -> Settings:
    epochs = estimator.epochs
    training = Training(
        epochs=1 if epochs is None else whole(epochs),
        batch=whole(estimator.batch_size),
        lr=estimator.learning_rate,
    )
    return Settings(
        factory_of(estimator),
        learner_of(estimator),
        training,
        estimator._device(),
        every_lam=estimator.lam == AUTO,
        measured=epochs is None,
    )


def factory_of(estimator: NetworkClassifier) -> str | Factory:
    if isinstance(estimator.network, nn.Module):
        raise InputError(
            "network is a module, but classes may still come: give a function (input_shape, classes) that "
            "makes one, or take the module's features, method='closed-form'"
        )
    return "mlp" if estimator.network is None else estimator.network


def learner_of(estimator: NetworkClassifier) -> Learner:
    memory, lam = memory_of(estimator), estimator.lam
    made = learner("vanilla" if estimator.method is None else estimator.method, memory)
    if lam == AUTO and memory is None:
        raise InputError("lam='auto' is judged by exemplars: set memory=10, or give a number")
    if isinstance(lam, str) and lam != AUTO:
        raise InputError(f"lam={lam!r} is unknown: give a number, 'auto' or None")
    if lam is not None and not isinstance(lam, str):
        made = with_lam(made, lam)
    if made.solver is not None:
        raise InputError(f"{made.solver.name} trains no network: set method='closed-form'")
    if made.loss.everything:
        raise InputError(f"{made.loss.name} learns from all data together: call fit with all of them")
    if made.loss.keeps:
        raise InputError(f"{made.loss.name} stores {', '.join(made.loss.keeps)}, which the classifier cannot yet")
    return made


def memory_of(estimator: NetworkClassifier | Parameters) -> MemorySpec | None:
    """Made in any case, so that a wrong sampler is refused even where nothing is kept."""
    if estimator.sampler == RESERVOIR:
        raise InputError("the classifier chooses exemplars class by class: take another sampler")
    absent = estimator.memory is None and estimator.memory_total is None
    spec = MemorySpec(1 if absent else whole(estimator.memory), whole(estimator.memory_total), estimator.sampler)
    return None if absent else spec
