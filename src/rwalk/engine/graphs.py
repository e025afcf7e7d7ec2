"""What keeps a CUDA device busy: steps as captured graphs, and losses that are read without waiting."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor

from rwalk.garbage import uncollected

Tensors = Tensor | tuple[Tensor, ...] | None


class Graphed:
    """A function of tensors as captured CUDA graphs, one for every shape of its inputs.

    The first calls with a shape run normally, the rest replay. Warming up with real calls keeps the training
    exact; capturing itself executes nothing.
    """

    warm_up = 3

    def __init__(self, function: Callable[..., Tensors]) -> None:
        self.function = function
        self.calls: dict[Any, int] = {}
        self.captured: dict[Any, _Capture] = {}

    def __call__(self, *inputs: Tensor) -> Any:
        shapes = tuple(each.shape for each in inputs)
        self.calls[shapes] = self.calls.get(shapes, 0) + 1
        if self.calls[shapes] <= self.warm_up:
            side = _side_stream(torch.cuda.current_device())
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                result = self.function(*inputs)
            torch.cuda.current_stream().wait_stream(side)
            return result
        if shapes not in self.captured:
            self.captured[shapes] = _Capture(self.function, inputs)
        return self.captured[shapes](inputs)


@cache
def _side_stream(device: int) -> torch.cuda.Stream:
    """One stream for all captures: cuBLAS keeps a workspace for every stream that it has ever seen."""
    return torch.cuda.Stream(device)


class _Capture:
    def __init__(self, function: Callable[..., Tensors], inputs: tuple[Tensor, ...]) -> None:
        self.inputs = [each.clone() for each in inputs]
        self.graph = torch.cuda.CUDAGraph()
        # Freeing a finished fleet's graph would spoil the capture in progress.
        with uncollected(), torch.cuda.graph(self.graph):
            self.result = function(*self.inputs)

    def __call__(self, inputs: tuple[Tensor, ...]) -> Tensors:
        for static, each in zip(self.inputs, inputs, strict=True):
            static.copy_(each)
        self.graph.replay()
        if isinstance(self.result, tuple):
            return tuple(each.clone() for each in self.result)
        return None if self.result is None else self.result.clone()


class Arriving:
    """A tensor on its way to the CPU: reading it waits for what was queued before it, not for what came later."""

    def __init__(self, tensor: Tensor) -> None:
        self._tensor = tensor
        self._event: torch.cuda.Event | None = None
        if tensor.is_cuda:
            self._tensor = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
            self._tensor.copy_(tensor, non_blocking=True)
            self._event = torch.cuda.Event()
            self._event.record()

    def arrived(self) -> Tensor:
        if self._event is not None:
            self._event.synchronize()
        return self._tensor
