"""Batch norm in a pull: probes are normalised together with the last training batch.

Training normalises a batch by its own statistics, evaluation by a running average. If a pull used the average, a
model could learn to answer in one way in training and in another in evaluation. So layers that are training stay
in that mode, and normalise probes by the mean and variance that probes and the training batch have in common.
These enter the running average, as they would if old inputs were replayed: once for every step since the last
pull.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from rwalk.guard.drift.divergences import wide
from rwalk.guard.drift.eval_mode import eval_mode
from rwalk.private_torch import put_parameters


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
            share = None if momentum is None else 1 - (1 - momentum) ** steps
            together = _Together(self._last_batch(layer, momentum), share)
            layer.momentum = 0.0  # the running averages are changed by `together`
            hooks.append(layer.register_forward_pre_hook(together.before))
            hooks.append(layer.register_forward_hook(together.after, always_call=True))
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


class _Together:
    """Hooks of one layer: probes are normalised as if as many rows of the training batch stood beside them.

    The layer normalises probes by their own mean and deviation, so, as in training, the result does not change if
    weights before it are scaled. For this pass it gets the weight and bias that turn this into the result by the
    common mean and deviation.
    """

    def __init__(self, batch: Tensor, share: float | None) -> None:
        self._batch = batch[0], batch[1].clamp(min=0)
        self._share = share

    def before(self, layer: _BatchNorm, args: tuple[Any, ...]) -> tuple[Any, ...]:
        probes, *others = args
        with torch.no_grad():
            mean, variance = _moments(wide(probes))
            away = (self._batch[0] - mean) / 2
            common = (variance + self._batch[1]) / 2 + away.square()
            rows = 2 * probes.numel() // len(mean)
            share = 1 / (_count(layer) + 1) if self._share is None else self._share
            now = torch.stack([mean + away, common * rows / (rows - 1)])
            for average, value in zip((layer.running_mean, layer.running_var), now, strict=True):
                average.lerp_(value.to(average), share)  # type: ignore[union-attr]
            deviation = (common + layer.eps).sqrt()
            scale, shift = (variance + layer.eps).sqrt() / deviation, -away / deviation
        self._own, self._rows = (layer.weight, layer.bias), len(probes)
        weight, bias = self._own
        if weight is not None:
            scale, shift = weight * scale, weight * shift + bias
        kind = probes if weight is None else weight
        put_parameters(layer, weight=scale.to(kind.dtype), bias=shift.to(kind.dtype))
        return torch.cat([probes, probes]) if rows == 2 else probes, *others  # layers refuse a single number

    def after(self, layer: _BatchNorm, args: tuple[Any, ...], output: Tensor) -> Tensor:
        weight, bias = self._own
        put_parameters(layer, weight=weight, bias=bias)
        return output[: self._rows]


def _moments(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance of each channel; `torch.var_mean` is many times slower on a CPU."""
    others = [0, *range(2, rows.ndim)]
    mean = rows.mean(others)
    return mean, (rows - mean.view(-1, *[1] * (rows.ndim - 2))).square().mean(others)
