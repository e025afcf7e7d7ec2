"""Faster batching of the layers that vmap batches badly.

vmap turns a layer of R networks into one operation, but not always into the fastest one. Inside `BatchWell` these
layers are computed differently, in any network:

- Linear layers compute W xᵀ, so that the weights' gradients come in the order of θ. vmap computes x Wᵀ; its
  gradients must be transposed, which costs a pass over θ that cannot be fused.
- Convolutions, pooling and batch norm keep the runs among the channels, on CUDA with channels last. vmap moves
  the runs back and forth, and cuDNN's grouped kernels are faster this way.
- On CUDA the inputs of convolutions get zero channels until every run has as many inputs as outputs. cuDNN has
  one kernel for this case; otherwise it slices and copies.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode


class BatchWell(TorchFunctionMode):
    """Computes some layers faster under vmap, with the same results up to rounding.

    With autocast a linear layer adds its bias in float32; torch's own layer rounds first.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is F.linear and not kwargs and len(args) == 3 and args[0].dim() == 2:
            x, weight, bias = args
            out = weight @ x.mT
            return (out if bias is None else out + bias[:, None]).mT
        if func is F.conv2d and not kwargs and len(args) == 7 and args[0].dim() == 4:
            return _Conv2d.apply(*args)  # type: ignore[no-untyped-call]
        if func is F.max_pool2d and not kwargs.get("return_indices") and args[0].dim() == 4:
            return _MaxPool2d.apply(args[0], args[1:], kwargs)  # type: ignore[no-untyped-call]
        if func is F.batch_norm and args[0].dim() == 4:
            return _batch_norm(*args, **kwargs)
        return func(*args, **kwargs)


class _ByRule(torch.autograd.Function):
    """A layer with its own rule under vmap; autograd differentiates the operations in it."""

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass


class _Conv2d(_ByRule):
    """F.conv2d with the runs among the channels."""

    @staticmethod
    def forward(*args: Any) -> Tensor:
        return F.conv2d(*args)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *args: Any) -> tuple[Tensor, int]:
        (x, weight, bias, stride, padding, dilation, groups), runs = args, info.batch_size
        x, weight = _runs_first(x, in_dims[0], runs), _runs_first(weight, in_dims[1], runs)
        if groups == 1 and stride in (1, (1, 1)) and (missing := _missing_channels(weight)):
            x, weight = (F.pad(each, (0, 0, 0, 0, 0, missing)) for each in (x, weight))
        x = _runs_in_channels(x, 0, runs)
        weight = weight.flatten(0, 1)
        bias = None if bias is None else _runs_first(bias, in_dims[2], runs).flatten()
        if weight.is_cuda:
            weight = weight.contiguous(memory_format=torch.channels_last)
        out = F.conv2d(x, weight, bias, stride, padding, dilation, groups * runs)
        return out.unflatten(1, (runs, -1)), 1


def _missing_channels(weight: Tensor) -> int:
    """The number of zero channels to add to the inputs of weights [R, out, in, …], where that is faster.

    In float32 it is slower if few channels would become many, and for strided convolutions.
    """
    outside, inside = weight.shape[1:3]
    half = weight.dtype.itemsize == 2 or torch.is_autocast_enabled("cuda")
    return max(0, outside - inside) if weight.is_cuda and (half or 2 * inside >= outside) else 0


class _MaxPool2d(_ByRule):
    """F.max_pool2d with the runs among the channels; its options come as one tuple and one dict."""

    @staticmethod
    def forward(x: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        out: Tensor = F.max_pool2d(x, *args, **kwargs)
        return out

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[Any, ...], x: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Tensor, int]:
        x = _runs_in_channels(x, in_dims[0], info.batch_size)
        return F.max_pool2d(x, *args, **kwargs).unflatten(1, (info.batch_size, -1)), 1


def _batch_norm(
    x: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """Bring the arguments of F.batch_norm into one order."""
    statistics = (running_mean, running_var, weight, bias)
    out: Tensor = _BatchNorm.apply(x, *statistics, training, momentum, eps)  # type: ignore[no-untyped-call]
    return out


class _BatchNorm(_ByRule):
    """F.batch_norm with the runs among the channels: every channel of every run has its own statistics."""

    @staticmethod
    def forward(*args: Any) -> Tensor:
        return F.batch_norm(*args)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], x: Tensor, *args: Any) -> tuple[Tensor, int]:
        *statistics, training, momentum, eps = args
        x = _runs_in_channels(x, in_dims[0], info.batch_size)
        # Views where they are the fleet's buffers: running statistics are written in place.
        mean, var, weight, bias = (
            None if each is None else _runs_first(each, dim, info.batch_size).flatten()
            for each, dim in zip(statistics, in_dims[1:5], strict=True)
        )
        out = F.batch_norm(x, mean, var, weight, bias, training, momentum, eps)
        return out.unflatten(1, (info.batch_size, -1)), 1


def _runs_first(tensor: Tensor, dim: int | None, runs: int) -> Tensor:
    return tensor.expand(runs, *tensor.shape) if dim is None else tensor.movedim(dim, 0)


def _runs_in_channels(x: Tensor, dim: int | None, runs: int) -> Tensor:
    """[R, B, C, H, W] → [B, R·C, H, W]."""
    x = _runs_first(x, dim, runs).movedim(0, 1).flatten(1, 2)
    return x.contiguous(memory_format=torch.channels_last) if x.is_cuda else x
