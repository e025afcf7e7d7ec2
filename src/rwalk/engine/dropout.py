"""Dropout that a fleet and a resumed run repeat, in the place of torch's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from rwalk.compiled_programs import compiler_works, fused, recording
from rwalk.errors import InputError


class Dropout(nn.Module):
    """Dropout whose draws are a hash of a counter, kept as a buffer.

    A run must not depend on who shares its fleet, and must resume exactly: torch's own dropout draws from one
    global generator and can do neither. `whole` drops whole channels, like nn.Dropout2d.
    """

    counter: Tensor

    def __init__(self, p: float = 0.5, whole: bool = False) -> None:
        super().__init__()
        self.p = p
        self.whole = whole
        self.register_buffer("counter", torch.randint(2**62, ()))

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0:
            return x
        if self.p == 1:
            return x * 0.0
        self.counter.add_(1)
        return _Dropped.apply(x, self.counter.clone(), self.p, self.whole)  # type: ignore[no-any-return, no-untyped-call]


class _Dropped(torch.autograd.Function):
    """x where the hash of its position keeps it. The mask is not saved for the backward pass but drawn again."""

    @staticmethod
    def forward(x: Tensor, counter: Tensor, p: float, whole: bool) -> Tensor:
        return _fused(dropped, x)(x, counter, p, whole)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, float, bool], output: Tensor) -> None:
        _, counter, ctx.p, ctx.whole = inputs
        ctx.save_for_backward(counter)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        return _fused(dropped, grad)(grad, *ctx.saved_tensors, ctx.p, ctx.whole), None, None, None

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[Any, ...], x: Tensor, counter: Tensor, p: float, whole: bool
    ) -> tuple[Tensor, int]:
        x = x.expand(info.batch_size, *x.shape) if in_dims[0] is None else x.movedim(in_dims[0], 0)
        counter = counter.expand(info.batch_size) if in_dims[1] is None else counter
        return _Dropped.apply(x, counter, p, whole), 0  # type: ignore[no-untyped-call]


def dropped(x: Tensor, counter: Tensor, p: float, whole: bool = False) -> Tensor:
    """Dropout of x [B, ...] by a counter [], or of a fleet's [R, B, ...] by counters [R]."""
    shape = x.shape[: counter.dim() + 2] if whole else x.shape
    bits = hashed(counter, shape[counter.dim() :].numel())
    kept = (bits >= int(p * 2**31)).view(*shape, *(1 for _ in x.shape[len(shape) :]))
    return x * (kept.to(x.dtype) / (1.0 - p))


def hashed(counter: Tensor, n: int) -> Tensor:
    """n numbers, uniform over 0 … 2³¹ − 1, that depend on the counter alone; [R, n] for counters [R].

    Two rounds of multiply and xor-shift (Wellons' lowbias32), in wrapping int32 arithmetic.
    """
    key = counter * 0x5851F42D4C957F2D + 0x14057B7EF767814F
    place = torch.arange(n, dtype=torch.int32, device=counter.device)
    x = (place + (key >> 32).to(torch.int32)[..., None]) * -1640531527
    x = (x ^ ((x >> 16) & 0xFFFF)) * 0x7FEB352D
    x = (x ^ ((x >> 15) & 0x1FFFF)) * -2073254261
    return (x ^ ((x >> 16) & 0xFFFF)) & 0x7FFFFFFF


@cache
def _compiled(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return fused(function)


def _fused(function: Callable[..., Tensor], x: Tensor) -> Callable[..., Tensor]:
    """One kernel on CUDA, where eager arithmetic would launch many."""
    return _compiled(function) if x.is_cuda and not recording() and compiler_works("cuda") else function


DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)


def replace_dropout(module: nn.Module) -> None:
    """Replace torch's dropout by ours, everywhere in a network."""
    for parent, name, child in list(_children(module)):
        whole = isinstance(child, nn.Dropout1d | nn.Dropout2d | nn.Dropout3d)
        plain = next((kind for kind in DROPOUTS if isinstance(child, kind)), None)
        if plain is not None and type(child).forward is plain.forward:  # else it drops in its own way
            setattr(parent, name, Dropout(child.p, whole))  # type: ignore[arg-type]
        elif isinstance(child, nn.AlphaDropout | nn.FeatureAlphaDropout | nn.RReLU):
            raise InputError(
                f"the network uses {type(child).__name__}, whose random draws cannot be repeated: use nn.Dropout"
            )


def _children(module: nn.Module) -> Iterator[tuple[nn.Module, str, nn.Module]]:
    """(parent, name, child): a child with two names comes twice, unlike with named_children()."""
    for parent in module.modules():
        for name, child in parent._modules.items():
            if child is not None:
                yield parent, name, child
