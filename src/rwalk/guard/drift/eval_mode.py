"""A look at the model that leaves no trace: not in its modes or statistics, nor in gradients or random numbers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn


@contextmanager
def undisturbed(model: nn.Module, draws_count: bool = False) -> Iterator[None]:
    """Evaluation mode, in which batch norm keeps its statistics; gradients are set aside, random numbers put back.

    draws_count  random numbers drawn meanwhile are the user's own, and stay drawn
    """
    modes = {module: module.training for module in model.modules()}
    gradients = {parameter: parameter.grad for parameter in model.parameters()}
    devices = {parameter.device for parameter in gradients if parameter.device.type == "cuda"}
    drawn = torch.get_rng_state(), {device: torch.cuda.get_rng_state(device) for device in devices}
    try:
        model.eval()
        for parameter in gradients:
            parameter.grad = None
        yield
    finally:
        for parameter, gradient in gradients.items():
            parameter.grad = gradient
        for module, training in modes.items():
            module.training = training
        if not draws_count:
            torch.set_rng_state(drawn[0])
            for device, state in drawn[1].items():
                torch.cuda.set_rng_state(state, device)
