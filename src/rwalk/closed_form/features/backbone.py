"""Features of a trained network: the input of its last layer, and a random lift of it.

The lift is random waves (random Fourier features of a Gaussian kernel, Rahimi & Recht 2007), in the manner of
RanPAC (McDonnell et al. 2023): it lets a linear rule use products of the network's features. `Fit` uses it where
there are enough examples and the evidence is for it.
The waves depend on their number alone, not on a seed or on data, so models of one network can be merged.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rwalk.errors import InputError, first_line
from rwalk.seeds import generator

LIFT = 1000, 6000  # random waves: five per feature of the network, at least, and at most
FREQUENCY = 0.5  # of a wave, along features of mean 0 and variance 1


class BackboneFeatures:
    """A frozen network. If it ends in a linear layer, what enters that layer; otherwise what comes out.

    `lift` random waves of these features follow them; None for a good number of them.

    Wrap a network whose last linear layer is part of the features: nn.Sequential(network, nn.Identity()).
    """

    kind = "backbone"

    def __init__(self, network: nn.Module, example: Tensor, lift: int | None = 0) -> None:
        owned = copy.deepcopy(network)  # the owner may train on
        self.network = owned.eval().requires_grad_(False).to(example.device)
        self._dtype = next((p.dtype for p in self.network.parameters()), torch.float32)
        self._head = self._last_linear(example)
        own = self._own(example)
        size = own.shape[1]
        lift = min(max(LIFT[0], 5 * size), LIFT[1]) if lift is None else lift
        draw = generator("closed-form", "lift", size, lift)
        # Each wave has a cosine and a sine.
        waves = torch.randn(size, -(-lift // 2), generator=draw, dtype=torch.float32)
        self.waves, self.lift = (waves * (FREQUENCY / size**0.5)).to(own), lift
        self.blocks = [size, lift] if lift else [size]

    def to(self, device: torch.device) -> BackboneFeatures:
        self.network.to(device)
        self.waves = self.waves.to(device)
        return self

    @torch.no_grad()
    def __call__(self, x: Tensor) -> Tensor:
        own = self._own(x)
        if not self.lift:
            return own
        # Averages of rectified features are skewed: their roots are less so.
        even = torch.where((own >= 0).all(dim=1, keepdim=True), own.clamp(min=0).sqrt(), own)
        phase = F.layer_norm(even, even.shape[1:]) @ self.waves  # scale and offset of an example cancel
        lifted = torch.stack([phase.cos(), phase.sin_()], dim=2).flatten(1)
        return torch.cat([own, lifted[:, : self.lift]], dim=1)

    @torch.no_grad()
    def _own(self, x: Tensor) -> Tensor:
        entered: list[Tensor] = []
        hook = None
        if self._head is not None:
            hook = self._head.register_forward_pre_hook(lambda _, inputs: entered.append(inputs[0]))
        try:
            out = self._run(x)
        finally:
            if hook is not None:
                hook.remove()
        features = entered[-1] if entered else out
        if not isinstance(features, Tensor) or features.ndim < 2 or len(features) != len(x):
            raise InputError("the network gives no row of features per example: return a tensor [n, …]")
        return features.flatten(1)

    def _run(self, x: Tensor) -> Any:
        try:
            return self.network(x.to(self._dtype))
        except (RuntimeError, ValueError) as error:
            raise InputError(
                f"the network does not take inputs of shape {list(x.shape[1:])} ({first_line(error)}): give them "
                "as it expects them"
            ) from error

    @torch.no_grad()
    def _last_linear(self, example: Tensor) -> nn.Linear | None:
        """The linear layer whose output is the network's own."""
        outputs: list[tuple[nn.Linear, Tensor]] = []
        linears = [module for module in self.network.modules() if isinstance(module, nn.Linear)]
        hooks = [
            module.register_forward_hook(lambda layer, _, output: outputs.append((layer, output)))
            for module in linears
        ]
        try:
            final = self._run(example)
        finally:
            for hook in hooks:
                hook.remove()
        return next((layer for layer, output in outputs if output is final), None)
