"""The layers that vmap batches badly, in the form that a fleet computes well.

vmap turns a layer of R networks into one operation, but not always into the fastest. Inside `BatchWell` these
are computed differently, in any network:

- linear layers as W xᵀ: the weights' gradients then come in the order of θ. x Wᵀ, as vmap has it, yields them
  transposed, and transposing them back costs a pass over θ that cannot be fused;
- convolutions, pooling and batch norm keep the runs among the channels throughout, on CUDA with channels last:
  vmap would move the runs back and forth, and cuDNN's grouped kernels are faster this way;
- convolutions on CUDA get zero channels added to their inputs, until every run has as many inputs as outputs:
  for these cuDNN has one kernel, for others it slices and copies.

(R convolutions side by side, each on a stream of its own, were slower than one grouped convolution.)
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode


class BatchWell(TorchFunctionMode):
    """Under vmap, some layers are computed in another way: the same results, faster.

    Up to rounding: with autocast a linear layer adds its bias in float32, where torch's own rounds first.
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


class SquareWell(TorchFunctionMode):
    """Linear layers whose weights' "gradients" are sums over the examples of squared gradients.

    One example's gradient is an outer product, and its square that of the squares: Σᵢ (δᵢ xᵢᵀ)² = Σᵢ δᵢ² (xᵢ²)ᵀ.
    """

    layers = 0  # how many were met

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is F.linear and not kwargs and len(args) == 3 and args[0].dim() == 2:
            self.layers += 1
            return _SquaredLinear.apply(*args)  # type: ignore[no-untyped-call]
        return func(*args, **(kwargs or {}))


class _SquaredLinear(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return F.linear(x, weight, bias)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        x, weight, bias = inputs
        ctx.has_bias = bias is not None
        ctx.save_for_backward(x, weight)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        x, weight = ctx.saved_tensors
        square = grad.square()
        return grad @ weight, square.mT @ x.square(), square.sum(0) if ctx.has_bias else None


class _ByRule(torch.autograd.Function):
    """A layer with its own rule under vmap; the operations in it have their own derivatives: nothing is saved."""

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass


class _Conv2d(_ByRule):
    """F.conv2d, whose rule under vmap keeps the runs among the channels."""

    @staticmethod
    def forward(*args: Any) -> Tensor:
        return F.conv2d(*args)

    @staticmethod
    def vmap(
        info: Any,
        in_dims: tuple[int | None, ...],
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        stride: Any,
        padding: Any,
        dilation: Any,
        groups: int,
    ) -> tuple[Tensor, int]:
        runs = info.batch_size
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
    """How many zero channels bring the inputs of weights [R, out, in, …] up to their outputs, where that pays.

    In float32 it does not pay where few channels would become many, nor for strided convolutions.
    """
    outside, inside = weight.shape[1:3]
    half = weight.dtype.itemsize == 2 or torch.is_autocast_enabled("cuda")
    return max(0, outside - inside) if weight.is_cuda and (half or 2 * inside >= outside) else 0


class _MaxPool2d(_ByRule):
    """F.max_pool2d likewise, its positional and its keyword options bundled."""

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
    """F.batch_norm's signature, to bring its arguments into one order."""
    statistics = (running_mean, running_var, weight, bias)
    out: Tensor = _BatchNorm.apply(x, *statistics, training, momentum, eps)  # type: ignore[no-untyped-call]
    return out


class _BatchNorm(_ByRule):
    """F.batch_norm likewise: every channel of every run has statistics of its own."""

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
