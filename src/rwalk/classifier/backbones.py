"""A network trained on the first call, whose features are fixed then: closed form on what was learned."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from rwalk.classifier.lessons import Scaling
from rwalk.classifier.network import NetworkClassifier
from rwalk.closed_form.features.backbone import BackboneFeatures
from rwalk.engine import networks
from rwalk.engine.networks import Factory
from rwalk.errors import InputError


@dataclass(frozen=True)
class FirstCall:
    """Trains the network on the first examples, classes against each other, as long as it pays.

    A module goes on from the weights it has, with a last layer of its own.
    """

    network: str | Factory | nn.Module
    seed: int
    device: torch.device

    def __call__(self, x: Tensor, y: Tensor) -> nn.Module:
        if y.ndim != 1 or len(y.unique()) < 2:
            raise InputError(
                "backbone='first call' learns to tell classes apart: give it at least two in the first call"
            )
        learner = NetworkClassifier(
            method=None, network=self._factory(), device=self.device, random_state=self.seed
        )
        return learner.fit(x.cpu(), y.cpu()).network_

    def blank(self, shape: tuple[int, ...], outputs: int) -> nn.Module:
        """A network of the form that training gives, to be filled from a file."""
        column = torch.zeros(shape[0], *(1 for _ in shape[1:]))
        module = networks.find(self._factory())(shape, outputs)
        return nn.Sequential(Scaling(column, column + 1), module).eval()

    def _factory(self) -> str | Factory:
        module = self.network
        if not isinstance(module, nn.Module):
            return module
        return lambda shape, classes: _with_head(module, shape, classes)


def _with_head(module: nn.Module, shape: tuple[int, ...], classes: int) -> nn.Module:
    """A copy that ends in a fresh linear layer: in place of its last one, if it has one, or after it."""
    features = BackboneFeatures(module, torch.zeros(1, *shape))
    twin, name = copy.deepcopy(module), features.head_name
    if name is None:
        return nn.Sequential(twin, nn.Flatten(), nn.Linear(features.blocks[0], classes))
    if name == "":
        return nn.Linear(features.blocks[0], classes)
    twin.set_submodule(name, nn.Linear(features.blocks[0], classes))
    return twin
