"""Batch norm in a pull: probes are normalised together with the last training batch.

Training normalises a batch by its own statistics, evaluation by a running average. If a pull used the average, a
model could learn to answer in one way in training and in another in evaluation. So layers that are training stay
in that mode. Each one gets rows with the mean and variance of the training batch beside the probes. Their common
statistics enter the running average, as they would if old inputs were replayed: once for every step since the
last pull.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from rwalk.guard.drift.eval_mode import eval_mode


class BatchNorm:
    """The statistics of a model's last training batch, computed from its layers' running averages."""

    def __init__(self, model: nn.Module) -> None:
        modules = model.modules()
        self._layers = [m for m in modules if isinstance(m, _BatchNorm) and m.running_mean is not None]
        self._before: dict[_BatchNorm, tuple[Tensor, Tensor]] = {}

    @torch.no_grad()
    def follow(self) -> None:
        """Note the running averages: a step is over."""
        self._before = {layer: (_count(layer).clone(), _averages(layer)) for layer in self._layers}

    @contextmanager
    def pull_mode(self, model: nn.Module, steps: int) -> Iterator[None]:
        """Evaluation mode, except that batch norm normalises probes and the last training batch together.

        Args:
            model: the model.
            steps: how many steps the pull stands for.
        """
        training = {layer: layer.momentum for layer in self._layers if layer.training}
        hooks = []
        for layer, momentum in training.items():
            layer.momentum = None if momentum is None else 1 - (1 - momentum) ** steps
            rows = partial(_add_rows, self._last_batch(layer, momentum))
            hooks.append(layer.register_forward_pre_hook(rows))
            hooks.append(layer.register_forward_hook(_take_rows_away))
        try:
            with eval_mode(model, except_for=training):
                yield
        finally:
            for layer, momentum in training.items():
                layer.momentum = momentum
            for hook in hooks:
                hook.remove()

    @torch.no_grad()
    def _last_batch(self, layer: _BatchNorm, momentum: float | None) -> Tensor:
        """Mean and variance of the batches in this step: now = (1 − m)ᵏ before + (1 − (1 − m)ᵏ) batches."""
        now = _averages(layer)
        if layer not in self._before or momentum is None:
            return now
        count, before = self._before[layer]
        kept = (1 - momentum) ** (_count(layer) - count)
        return torch.where(kept < 1, (now - kept * before) / (1 - kept), now)


def _count(layer: _BatchNorm) -> Tensor:
    assert layer.num_batches_tracked is not None
    return layer.num_batches_tracked


def _averages(layer: _BatchNorm) -> Tensor:
    assert layer.running_mean is not None and layer.running_var is not None
    return torch.stack([layer.running_mean, layer.running_var])


def _add_rows(batch: Tensor, layer: _BatchNorm, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """As many rows as there are probes, half of them mean + deviation of the batch, half of them mean − deviation.

    They are written in units of the probes' mean and deviation. So, as in training, the result does not change
    if weights before this layer are scaled.
    """
    probes, *others = args
    var, mean = torch.var_mean(probes.float(), [0, *range(2, probes.ndim)], correction=0)
    unit = (var + layer.eps).sqrt()
    deviation = batch[1].clamp(min=0).sqrt()
    far = (torch.stack([batch[0] + deviation, batch[0] - deviation]) - mean) / unit
    rows = (mean + far.detach() * unit).to(probes.dtype).view(2, -1, *[1] * (probes.ndim - 2))
    rows = rows.repeat_interleave((len(probes) + 1) // 2, 0).expand(-1, -1, *probes.shape[2:])
    return torch.cat([probes, rows]), *others


def _take_rows_away(layer: nn.Module, args: tuple[Any, ...], output: Tensor) -> Tensor:
    return output[: len(args[0]) // 2]
