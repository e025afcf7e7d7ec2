"""What the methods' equations may be given in place of a tensor: many tensors, or a word for one.

The equations are elementwise, so it makes no difference to them. Each operation is `done` in the operand's way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

OPERATORS = {
    **{f"__{name}__": name for name in ("add", "sub", "mul", "neg", "abs")},
    **{f"__i{name}__": f"{name}_" for name in ("add", "sub", "mul")},
    **{f"__{name}__": name for name in ("rsub", "rtruediv", "pow", "gt", "ge", "lt", "le")},
    "__radd__": "add",
    "__rmul__": "mul",
    "__truediv__": "div",
    "__itruediv__": "div_",
}


class Operand:
    """Takes part in torch's functions, in tensors' methods and in arithmetic."""

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
