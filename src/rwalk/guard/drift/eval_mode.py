"""A pass through the model that leaves no trace: not in modes or statistics, gradients or random numbers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn


@contextmanager
def eval_mode(model: nn.Module, keep_draws: bool = False) -> Iterator[None]:
    """Evaluation mode, with gradients set aside and random numbers put back afterwards.

    Modules change their mode by their own `train` and `eval`, because some do more there than set a flag.

    Args:
        model: its modes and gradients are the same afterwards.
        keep_draws: random numbers drawn inside belong to the user and stay drawn.
    """
    modes = {module: module.training for module in model.modules()}
    gradients = {parameter: parameter.grad for parameter in model.parameters() if parameter.grad is not None}
    devices = {parameter.device for parameter in model.parameters() if parameter.device.type == "cuda"}
    with torch.random.fork_rng(devices=list(devices), enabled=not keep_draws):
        try:
            if any(modes.values()):
                model.eval()
            for parameter in gradients:
                parameter.grad = None
            yield
        finally:
            for parameter in model.parameters():
                parameter.grad = gradients.get(parameter)
            _restore(modes)


def _restore(modes: dict[nn.Module, bool]) -> None:
    """Parents first, because `train` of a parent sets the mode of its children."""
    for module, training in modes.items():
        if module.training != training:
            module.train(training)
