"""Several tensors under one name: a model has hundreds of parameters, and one kernel can take many of them.

The methods' equations are elementwise, so it makes no difference to them whether θ is one tensor or many. Where
launching kernels is what takes time, each operation is one of torch's foreach kernels, if there is such a kernel;
elsewhere, and for all other operations, it is done tensor by tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import repeat
from typing import Any

import torch
from torch import Tensor

from rwalk.private_torch import foreach

KERNELS = {
    *("add", "sub", "mul", "div", "addcmul", "addcdiv", "lerp", "neg", "abs", "sqrt", "reciprocal"),
    *("maximum", "minimum", "clamp_min", "clamp_max", "copy", "zero"),
}
OPERATORS = {
    **{f"__{name}__": name for name in ("add", "sub", "mul", "neg", "abs")},
    **{f"__i{name}__": f"{name}_" for name in ("add", "sub", "mul")},
    **{f"__{name}__": name for name in ("rsub", "rtruediv", "pow", "gt", "ge", "lt", "le")},
    "__radd__": "add",
    "__rmul__": "mul",
    "__truediv__": "div",
    "__itruediv__": "div_",
}


def launches(device: torch.device) -> bool:
    """Whether operations are kernels to be launched, which takes longer than most of them."""
    return device.type != "cpu"


class Many:
    """Tensors that every operation goes over.

    together  in one kernel, where there is one; by default where kernels are launched

    >>> pair = Many([torch.ones(1, 2), torch.zeros(1, 3)])
    >>> torch.add(pair, 2 * pair).tensors
    [tensor([[3., 3.]]), tensor([[0., 0., 0.]])]
    """

    def __init__(self, tensors: Sequence[Tensor], together: bool | None = None) -> None:
        self.tensors = list(tensors)
        self.together = launches(self.tensors[0].device) if together is None else together

    @classmethod
    def __torch_function__(
        cls, function: Callable[..., Any], types: object, args: Any = (), kwargs: Any = None
    ) -> Any:
        return _done(function.__name__, function, args, kwargs or {})

    def __getattr__(self, name: str) -> Any:
        function = getattr(Tensor, name)
        if not callable(function):
            return getattr(self.tensors[0], name)  # such as the device, which is the same of all
        return lambda *args, **kwargs: _done(name, function, (self, *args), kwargs)

    def to(self, device: torch.device, dtype: torch.dtype) -> Many:
        """Itself where it already is as asked for."""
        if (self.tensors[0].device, self.tensors[0].dtype) == (device, dtype):
            return self
        room = Many([torch.empty_like(each, device=device, dtype=dtype) for each in self.tensors], self.together)
        copied: Many = room.copy_(self)
        return copied


def together(tensors: Sequence[Tensor]) -> Any:
    """As one; a single tensor is one already."""
    return tensors[0] if len(tensors) == 1 else Many(tensors)


def apart(one: Any) -> list[Tensor]:
    return one.tensors if isinstance(one, Many) else [one]


def _operator(name: str) -> Callable[..., Any]:
    function = getattr(Tensor, name)
    return lambda self, *args: _done(OPERATORS[name], function, (self, *args), {})


for _name in OPERATORS:
    setattr(Many, _name, _operator(_name))


def _done(name: str, function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    first = next(each for each in (*args, *kwargs.values()) if isinstance(each, Many))
    out = kwargs.get("out")
    results = _in_one_kernel(name, args, kwargs) if first.together else None
    if results is None:
        results = _one_by_one(function, args, kwargs, len(first.tensors))
    elif out is not None:
        out.copy_(Many(results, True))
    if out is not None:
        return out
    return args[0] if name.endswith("_") else Many(results, first.together)


def _in_one_kernel(name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> Sequence[Tensor] | None:
    """None where there is no such kernel."""
    name, args, options = _spelled(name, args, {key: value for key, value in kwargs.items() if key != "out"})
    if name.rstrip("_") not in KERNELS or any(isinstance(each, Tensor) for each in (*args, *options.values())):
        return None
    kernel = foreach(name)
    if kernel is None:
        return None
    results: Sequence[Tensor] | None = kernel(
        *(_listed(each) for each in args), **{key: _listed(value) for key, value in options.items()}
    )
    return () if results is None else results


def _spelled(name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[str, Sequence[Any], dict[str, Any]]:
    """An operation, as the kernels know it."""
    plain, mark = name.rstrip("_"), name[len(name.rstrip("_")) :]
    if plain == "square":
        return f"mul{mark}", (args[0], args[0]), kwargs
    if plain == "clamp" and len(args) == 1 and len(kwargs) == 1:
        ((side, bound),) = kwargs.items()
        return f"clamp_{side}{mark}", (args[0], bound), {}
    return name, args, kwargs


def _one_by_one(
    function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any], count: int
) -> list[Tensor]:
    columns = (each.tensors if isinstance(each, Many) else repeat(each, count) for each in args)
    rows = list(zip(*columns, strict=True))
    shared = {key: value for key, value in kwargs.items() if not isinstance(value, Many)}
    if len(shared) == len(kwargs):
        return [function(*row, **shared) for row in rows]
    own = [{key: value.tensors[i] for key, value in kwargs.items() if key not in shared} for i in range(count)]
    return [function(*row, **shared, **named) for row, named in zip(rows, own, strict=True)]


def _listed(each: Any) -> Any:
    return each.tensors if isinstance(each, Many) else each
