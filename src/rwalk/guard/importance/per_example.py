"""Gradients of single examples from one pass over a batch: each layer works out those of its own parameters.

Where a parameter meets an input in a way that is known here (a linear layer, an embedding, a scale, a shift, a
convolution), the gradient that comes back to it is looked at example by example, squared and added up. Nobody
needs all of an example's gradients at a time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from rwalk.methods import Method

Slope = Callable[
    [Tensor], Tensor
]  # from the gradient of a layer's output to those of a parameter, [examples, ...]
Rule = Callable[..., Any]  # of an operation: what it returns, or NotImplemented where no rule fits


class Unknown(Exception):
    """A parameter is used in a way that is not known here."""


class ByExample(TorchFunctionMode):
    """Within it, layers leave `squares` of single examples' gradients behind once the loss goes backward.

    parameters  whose gradients are wanted
    examples    in the batch: the first dimension of whatever meets a parameter, or what it is a multiple of
    method      says what of a square is added up
    """

    def __init__(self, parameters: Sequence[nn.Parameter], examples: int, method: Method) -> None:
        super().__init__()
        self.examples = examples
        self.squares: dict[nn.Parameter, Tensor] = {}
        self._watched = {id(each): each for each in parameters}
        self._method = method
        self._uses: Counter[nn.Parameter] = Counter()
        self._arrived: Counter[nn.Parameter] = Counter()
        self._sums: dict[nn.Parameter, Tensor] = {}  # of those that are used more than once

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        rule = RULES.get(func)
        if rule is not None and any(self.watches(each) for each in (*args, *(kwargs or {}).values())):
            found = rule(self, *args, **(kwargs or {}))
            if found is not NotImplemented:
                return found
        return func(*args, **(kwargs or {}))

    def watches(self, value: Any) -> bool:
        return id(value) in self._watched

    def apart(self, value: Any) -> Any:
        """A watched parameter without its gradient, which comes another way."""
        return value.detach() if self.watches(value) else value

    def look(self, out: Tensor, **slopes: tuple[Any, Slope]) -> Tensor:
        """Have a look at the gradient of this output, for those parameters that are watched."""
        watched = [(each, slope) for each, slope in slopes.values() if self.watches(each)]
        if not out.requires_grad:
            out.requires_grad_()
        for parameter, _ in watched:
            self._uses[parameter] += 1

        def come_back(gradient: Tensor) -> None:
            for parameter, slope in watched:
                self._add(parameter, slope(gradient))

        out.register_hook(come_back)
        return out

    def rows(self, tensor: Tensor) -> Tensor:
        """[examples, rows, numbers]: what an example has of something whose last dimension is a vector."""
        if tensor.shape[0] % self.examples:
            raise Unknown
        return tensor.reshape(self.examples, -1, tensor.shape[-1])

    def _add(self, parameter: nn.Parameter, slope: Tensor) -> None:
        self._arrived[parameter] += 1
        if self._uses[parameter] > 1:
            slope = slope if parameter not in self._sums else self._sums[parameter].add_(slope)
            self._sums[parameter] = slope
            if self._arrived[parameter] < self._uses[parameter]:
                return
            del self._sums[parameter]
        wide = slope.to(torch.promote_types(slope.dtype, torch.float32))
        self.squares[parameter] = self._method.in_pass(wide.square()).sum(0)

    def check(self) -> None:
        """Whether everything was seen: no parameter was used elsewhere, and all that was used came back."""
        if any(each.grad is not None for each in self._watched.values()) or self._uses != self._arrived:
            raise Unknown


@contextmanager
def all_trained(parameters: Sequence[nn.Parameter]) -> Iterator[None]:
    """Frozen weights beneath adapters have gradients, too."""
    frozen = [each for each in parameters if not each.requires_grad]
    for each in frozen:
        each.requires_grad_()
    try:
        yield
    finally:
        for each in frozen:
            each.requires_grad_(False)


# ── layers ────────────────────────────────────────────────────────────────────────────────────────────────────


def _linear(mode: ByExample, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Any:
    def of_weight(gradient: Tensor) -> Tensor:
        back = mode.rows(gradient)
        return back.mT @ mode.rows(x.detach()).to(back.dtype)

    out = F.linear(x, mode.apart(weight), mode.apart(bias))
    return mode.look(out, weight=(weight, of_weight), bias=(bias, lambda g: mode.rows(g).sum(1)))


def _addmm(mode: ByExample, bias: Tensor, x: Tensor, weight: Tensor) -> Any:
    """A linear layer with its weights the other way round."""
    if x.ndim != 2 or bias.ndim != 1:
        return NotImplemented

    def of_weight(gradient: Tensor) -> Tensor:
        back = mode.rows(gradient)
        return mode.rows(x.detach()).to(back.dtype).mT @ back

    out = torch.addmm(mode.apart(bias), x, mode.apart(weight))
    return mode.look(out, weight=(weight, of_weight), bias=(bias, lambda g: mode.rows(g).sum(1)))


def _embedding(
    mode: ByExample,
    ids: Tensor,
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Any:
    if max_norm is not None or scale_grad_by_freq or sparse:
        return NotImplemented
    if ids.ndim == 1 and torch.equal(ids, torch.arange(len(ids), device=ids.device)):  # positions
        ids = ids[None]
    out = F.embedding(ids, mode.apart(weight), padding_idx)
    if len(ids) == 1 < mode.examples:  # which all examples share
        ids, out = (each.expand(mode.examples, *each.shape[1:]).clone() for each in (ids, out))
    words, size = weight.shape

    def of_weight(gradient: Tensor) -> Tensor:
        back = mode.rows(gradient)
        first = torch.arange(mode.examples, device=ids.device)[:, None] * words
        there = (ids.reshape(mode.examples, -1) + first).flatten()
        slope = back.new_zeros(mode.examples * words, size).index_add_(0, there, back.reshape(-1, size))
        slope = slope.view(mode.examples, words, size)
        if padding_idx is not None:
            slope[:, padding_idx] = 0
        return slope

    return mode.look(out, weight=(weight, of_weight))


def _summed(mode: ByExample, tensor: Tensor, shape: Sequence[int], like: Tensor) -> Tensor:
    """Example by example, over every dimension in which a parameter that is seen in this shape was repeated."""
    if tensor.shape[0] != mode.examples or len(shape) != tensor.ndim or shape[0] != 1:
        raise Unknown
    repeated = [i for i in range(1, tensor.ndim) if shape[i] == 1]
    return (tensor.sum(repeated) if repeated else tensor).reshape(mode.examples, *like.shape)


def _scaled(mode: ByExample, x: Tensor, scale: Tensor, shape: Sequence[int]) -> Tensor:
    out = x * mode.apart(scale).view(shape)
    slope = (scale, lambda g: _summed(mode, g * x.detach(), shape, scale))
    return mode.look(out, scale=slope)


def _shifted(mode: ByExample, x: Tensor, shift: Tensor, shape: Sequence[int]) -> Tensor:
    out = x + mode.apart(shift).view(shape)
    return mode.look(out, shift=(shift, lambda g: _summed(mode, g, shape, shift)))


def _spread(parameter: Tensor, x: Tensor) -> list[int]:
    """The shape in which a parameter of the last dimensions meets an input."""
    return [1] * (x.ndim - parameter.ndim) + list(parameter.shape)


def _either(rule: Callable[..., Tensor]) -> Rule:
    """Of an operation between an input and a parameter, whichever comes first."""

    def either(mode: ByExample, a: Any, b: Any, **more: Any) -> Any:
        x, parameter = (a, b) if mode.watches(b) else (b, a)
        if more or not isinstance(x, Tensor) or mode.watches(x) or x.ndim <= parameter.ndim:
            return NotImplemented
        return rule(mode, x, parameter, _spread(parameter, x))

    return either


def _affine(
    mode: ByExample, x: Tensor, scale: Tensor | None, shift: Tensor | None, shape: Sequence[int]
) -> Tensor:
    for rule, parameter in ((_scaled, scale), (_shifted, shift)):
        if parameter is not None:
            x = rule(mode, x, parameter, shape)
    return x


def _layer_norm(
    mode: ByExample,
    x: Tensor,
    over: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Any:
    shape = [1] * (x.ndim - len(over)) + list(over)
    return _affine(mode, F.layer_norm(x, over, None, None, eps), weight, bias, shape)


def _rms_norm(
    mode: ByExample, x: Tensor, over: Sequence[int], weight: Tensor | None = None, eps: float | None = None
) -> Any:
    return _affine(mode, F.rms_norm(x, over, None, eps), weight, None, [1] * (x.ndim - len(over)) + list(over))


def _batch_norm(
    mode: ByExample,
    x: Tensor,
    mean: Tensor | None,
    var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Any:
    if training:
        return NotImplemented  # then examples depend on each other
    shape = [1, x.shape[1], *(1 for _ in x.shape[2:])]
    return _affine(mode, F.batch_norm(x, mean, var, None, None, False, momentum, eps), weight, bias, shape)


def _conv2d(
    mode: ByExample,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Any:
    if groups != 1 or isinstance(padding, str) or x.ndim != 4 or len(x) != mode.examples:
        return NotImplemented

    def of_weight(gradient: Tensor) -> Tensor:
        seen = F.unfold(x.detach(), weight.shape[2:], dilation, padding, stride).to(gradient.dtype)
        return (gradient.flatten(2) @ seen.mT).view(mode.examples, *weight.shape)

    out = F.conv2d(x, mode.apart(weight), mode.apart(bias), stride, padding, dilation, groups)
    return mode.look(out, weight=(weight, of_weight), bias=(bias, lambda g: g.flatten(2).sum(2)))


RULES: dict[Any, Rule] = {
    F.linear: _linear,
    torch.addmm: _addmm,
    F.embedding: _embedding,
    F.layer_norm: _layer_norm,
    F.rms_norm: _rms_norm,
    F.batch_norm: _batch_norm,
    F.conv2d: _conv2d,
    **dict.fromkeys((torch.mul, Tensor.mul, Tensor.__mul__, Tensor.__rmul__), _either(_scaled)),
    **dict.fromkeys((torch.add, Tensor.add, Tensor.__add__, Tensor.__radd__), _either(_shifted)),
}
