"""Several tensors under one name: a model has hundreds of parameters, and one kernel can take many of them.

The methods' equations are elementwise, so it makes no difference to them whether θ is one tensor or many. Each
operation is a call of torch's foreach kernels, if there is such a kernel; all others are done tensor by tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from itertools import repeat
from typing import Any

import torch
from torch import Tensor

from rwalk.guard.step.symbolic import Operand
from rwalk.private_torch import foreach

KERNELS = {
    *("add", "sub", "mul", "div", "addcmul", "addcdiv", "lerp", "neg", "abs", "sqrt", "reciprocal"),
    *("maximum", "minimum", "clamp_min", "clamp_max", "copy", "zero"),
}


class Many(Operand):
    """Tensors that every operation goes over.

    >>> pair = Many([torch.ones(1, 2), torch.zeros(1, 3)])
    >>> torch.add(pair, 2 * pair).tensors
    [tensor([[3., 3.]]), tensor([[0., 0., 0.]])]
    """

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self.tensors = list(tensors)

    @staticmethod
    def done(name: str, function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        out = kwargs.pop("out", None)
        results = _in_one_call(name, args, kwargs)
        if results is None:
            columns = [each.tensors if type(each) is Many else repeat(each) for each in args]
            results = [function(*row, **kwargs) for row in zip(*columns, strict=False)]
        if out is not None:
            return out.copy_(Many(results))
        return args[0] if name[-1] == "_" else Many(results)

    def attribute(self, name: str) -> Any:
        return getattr(self.tensors[0], name)  # the same of all

    def to(self, device: torch.device, dtype: torch.dtype) -> Many:
        """Itself where it already is as asked for."""
        if (self.tensors[0].device, self.tensors[0].dtype) == (device, dtype):
            return self
        room = [torch.empty_like(each, device=device, dtype=dtype) for each in self.tensors]
        copied: Many = Many(room).copy_(self)
        return copied


def together(tensors: Sequence[Tensor]) -> Any:
    """As one; a single tensor is one already."""
    return tensors[0] if len(tensors) == 1 else Many(tensors)


def apart(one: Any) -> list[Tensor]:
    return one.tensors if isinstance(one, Many) else [one]


def _in_one_call(name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> Sequence[Tensor] | None:
    """None where there is no such kernel."""
    if name[:6] in ("square", "clamp", "clamp_"):
        name, args, kwargs = _spelled(name, args, kwargs)
    kernel = _kernel(name)
    if kernel is None:
        return None
    lists = [each.tensors if type(each) is Many else each for each in args]
    if any(isinstance(each, Tensor) for each in lists):
        return None
    return kernel(*lists, **kwargs) or ()


@cache
def _kernel(name: str) -> Callable[..., Any] | None:
    return foreach(name) if name.removesuffix("_") in KERNELS else None


def _spelled(name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[str, Sequence[Any], dict[str, Any]]:
    """An operation, as the kernels know it."""
    mark = "_" if name.endswith("_") else ""
    if name in ("square", "square_"):
        return f"mul{mark}", (args[0], args[0]), kwargs
    if name in ("clamp", "clamp_") and len(args) == 1 and len(kwargs) == 1:
        ((side, bound),) = kwargs.items()
        return f"clamp_{side}{mark}", (args[0], bound), {}
    return name, args, kwargs
