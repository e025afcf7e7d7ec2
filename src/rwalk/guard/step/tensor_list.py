"""Tensor lists: several tensors under one name, because one kernel can take many of a model's parameters.

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

from rwalk.private_torch import foreach

OPERATORS = {
    **{f"__{name}__": name for name in ("add", "sub", "mul", "neg", "abs")},
    **{f"__i{name}__": f"{name}_" for name in ("add", "sub", "mul")},
    **{f"__{name}__": name for name in ("rsub", "rtruediv", "pow", "gt", "ge", "lt", "le")},
    "__radd__": "add",
    "__rmul__": "mul",
    "__truediv__": "div",
    "__itruediv__": "div_",
}
KERNELS = {
    *("add", "sub", "mul", "div", "addcmul", "addcdiv", "lerp", "neg", "abs", "sqrt", "reciprocal"),
    *("maximum", "minimum", "clamp_min", "clamp_max", "copy", "zero"),
}


class Operand:
    """A stand-in for a tensor in the equations: a tensor list, or a symbolic tensor (`trace`).

    It takes part in torch's functions, in tensors' methods and in arithmetic; each operation is `done` in its way.
    """

    @staticmethod
    def done(name: str, function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """The result of an operation that at least one operand takes part in; with `name_`, in the first one."""
        raise NotImplementedError

    @classmethod
    def __torch_function__(
        cls, function: Callable[..., Any], types: object, args: Any = (), kwargs: Any = None
    ) -> Any:
        return cls.done(function.__name__, function, args, {} if kwargs is None else kwargs)

    def __getattr__(self, name: str) -> Any:
        function = getattr(Tensor, name)
        if not callable(function):
            return self.attribute(name)
        return lambda *args, **kwargs: self.done(name, function, (self, *args), kwargs)

    def attribute(self, name: str) -> Any:
        """Such as the device."""
        raise AttributeError(name)


def _operator(name: str) -> Callable[..., Any]:
    function = getattr(Tensor, name)
    return lambda self, *args: self.done(OPERATORS[name], function, (self, *args), {})


for _name in OPERATORS:
    setattr(Operand, _name, _operator(_name))


class TensorList(Operand):
    """Tensors that every operation goes over.

    >>> pair = TensorList([torch.ones(1, 2), torch.zeros(1, 3)])
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
            columns = [each.tensors if type(each) is TensorList else repeat(each) for each in args]
            results = [function(*row, **kwargs) for row in zip(*columns, strict=False)]
        if out is not None:
            return out.copy_(TensorList(results))
        return args[0] if name[-1] == "_" else TensorList(results)

    def attribute(self, name: str) -> Any:
        return getattr(self.tensors[0], name)  # the same of all

    def to(self, device: torch.device, dtype: torch.dtype) -> TensorList:
        """On a device, in a dtype: itself if it is already."""
        if (self.tensors[0].device, self.tensors[0].dtype) == (device, dtype):
            return self
        room = [torch.empty_like(each, device=device, dtype=dtype) for each in self.tensors]
        copied: TensorList = TensorList(room).copy_(self)
        return copied


def together(tensors: Sequence[Tensor]) -> Any:
    """As one; a single tensor is one already."""
    return tensors[0] if len(tensors) == 1 else TensorList(tensors)


def apart(one: Any) -> list[Tensor]:
    return one.tensors if isinstance(one, TensorList) else [one]


def _in_one_call(name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> Sequence[Tensor] | None:
    """None where there is no such kernel."""
    if name[:6] in ("square", "clamp", "clamp_"):
        name, args, kwargs = _spelled(name, args, kwargs)
    kernel = _kernel(name)
    if kernel is None:
        return None
    lists = [each.tensors if type(each) is TensorList else each for each in args]
    if any(isinstance(each, Tensor) for each in lists):
        return None
    return kernel(*lists, **kwargs) or ()


@cache
def _kernel(name: str) -> Callable[..., Any] | None:
    return foreach(name) if name.removesuffix("_") in KERNELS else None


def _spelled(name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[str, Sequence[Any], dict[str, Any]]:
    """An operation, as torch's foreach kernels name it."""
    mark = "_" if name.endswith("_") else ""
    if name in ("square", "square_"):
        return f"mul{mark}", (args[0], args[0]), kwargs
    if name in ("clamp", "clamp_") and len(args) == 1 and len(kwargs) == 1:
        ((side, bound),) = kwargs.items()
        return f"clamp_{side}{mark}", (args[0], bound), {}
    return name, args, kwargs
