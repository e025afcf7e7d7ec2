"""Base of the methods: a few hyper-parameters, and pure equations on the parameter vector.

All vectors are [R, P], all hyper-parameters floats or [R, 1]; state is a plain dict of named vectors, so that
checkpoints need no method-specific code. Nothing here reduces over runs, and only two things reduce over
parameters: the penalty's value, and the normalisation at a task's end. Everything else is elementwise. A network
may therefore come in pieces of any shape [R, ...], with the extrema over the whole network in `ranges`. A Guard
uses this: its pieces have the shapes of the model's parameters.

Every penalty in the paper is a set of springs, Σ_i w_i (θ_i − θ*_i)². A method defines their stiffness; their
cost, their pull and their proximal step are written once, below.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from rwalk.errors import InputError

Number = float | Tensor
State = dict[str, Tensor]
Ranges = Mapping[str, tuple[Tensor, Tensor]]  # a state vector's smallest and largest value over the network
Spring = tuple[Number, Tensor, Tensor]  # (strength, importance, anchor): strength · Σ importance (θ − anchor)²


class Default(float):
    """A default λ: that of the gradient form, with another for the proximal one, whose unit is another.

    An optimizer that rescales gradients rescales the pull in them too, but not a step taken after its own.
    """

    proximal: float

    def __new__(cls, gradient: float, proximal: float) -> Default:
        default = super().__new__(cls, gradient)
        default.proximal = proximal
        return default

    def __reduce__(self) -> tuple[type[Default], tuple[float, float]]:  # to be pickled and copied with both
        return Default, (float(self), self.proximal)


@dataclass(frozen=True)
class Method:
    """Base of all methods. The base observes nothing and holds nothing.

    Args:
        lam: λ, the strength of the penalty; each form has a default of its own.
        penalty: "gradient": the pull is added to the gradient (the paper). "proximal": an exact step after the
            optimizer's, stable for any λ.
        fisher: "batch": squares of the batch-mean gradient. "example": mean of squared per-example gradients.
            "exact": the same, expected over the labels that the network predicts, in a pass over the data.

    Attributes:
        wants: Inputs of `observe` that it uses: "move", "square", both or none.
        data_pass: Whether its importance is measured in a pass over the task's data at its end.
        of_outputs: Whether that pass measures the outputs' squared length instead of the loss.
        grows: Whether every task adds springs.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    wants: ClassVar[frozenset[str]] = frozenset()
    data_pass: ClassVar[bool] = False
    of_outputs: ClassVar[bool] = False
    grows: ClassVar[bool] = False

    lam: Number = 0.0
    penalty: Literal["gradient", "proximal"] = "gradient"
    fisher: Literal["batch", "example", "exact"] = "batch"

    def __post_init__(self) -> None:
        require(self.lam, "lam", minimum=0.0)
        of_losses = self.data_pass and not self.of_outputs
        fishers = ("batch", "example", "exact") if of_losses else ("batch", "example")
        for field, allowed in (("penalty", ("gradient", "proximal")), ("fisher", fishers)):
            if getattr(self, field) not in allowed:
                raise InputError(f"{field} must be one of {', '.join(allowed)}, not {getattr(self, field)!r}")
        if isinstance(self.lam, Default) and self.penalty == "proximal":
            object.__setattr__(self, "lam", self.lam.proximal)

    @property
    def observes_examples(self) -> bool:
        """Whether every step's squares are per example."""
        return self.fisher == "example" and "square" in self.wants

    @property
    def window(self) -> int | None:
        """Steps between two calls of `score`; None for a method without it."""
        return None

    @property
    def scales(self) -> tuple[str, ...]:
        """The vectors that `consolidate` normalises over the whole network."""
        return ()

    def start(self, theta: Tensor) -> State:
        """Allocate the state at the first θ [R, P]."""
        return {}

    def begin(self, state: State, fisher: Tensor) -> None:
        """Begin with a θ that was trained elsewhere, and its Fisher; `consolidate` follows."""
        if "fisher" in state:
            state["fisher"].copy_(fisher)

    def observe(self, state: State, grad: Tensor, move: Tensor, square: Tensor) -> None:
        """One step: the gradient g of the task loss ALONE, move = θ(t+1) − θ(t), square = the batch's Fisher.

        Only a method that `wants` them may use `move` and `square`: others are passed arbitrary vectors.
        """

    def moved(self, state: State, move: Tensor) -> None:
        """Take a move of θ outside of the steps, such as back towards old weights, out of the path."""
        if "origin" in state:
            state["origin"] += move

    def score(self, state: State, theta: Tensor) -> None:
        """End a window of steps."""

    def consolidate(
        self, state: State, theta: Tensor, fisher: Tensor | None = None, ranges: Ranges | None = None
    ) -> None:
        """End a task.

        Args:
            state: The method's vectors.
            theta: θ at the task's end.
            fisher: The importance from a pass over the data, for methods with `data_pass`.
            ranges: Extrema of the vectors in `scales`, if θ is a piece of a network whose last window was scored.
        """

    def in_pass(self, square: Tensor) -> Tensor:
        """A function of squared gradients (of batches or examples), whose mean `consolidate` takes as `fisher`."""
        return square

    def springs(self, state: State) -> list[Spring]:
        """The springs that hold θ; none until the first `consolidate`."""
        if "anchor" not in state:
            return []
        return [(self.lam, state["importance"], state["anchor"])]

    def cost(self, state: State, theta: Tensor) -> Tensor:
        """The penalty's value, per run [R]: for logging and tests."""
        total = theta.new_zeros(theta.shape[0])
        for strength, importance, anchor in self.springs(state):
            each = strength * importance * (theta - anchor).square()
            total = total + each.reshape(len(each), -1).sum(-1)
        return total

    def pull(self, state: State, theta: Tensor, grad: Tensor, out: Tensor | None = None) -> Tensor:
        """grad + ∂penalty/∂θ, into `out` where it is given."""
        for strength, importance, anchor in self.springs(state):
            scratch = torch.sub(theta, anchor, out=out if grad is not out else None)
            if isinstance(strength, Tensor):
                scratch *= strength
                strength = 1.0
            grad = torch.addcmul(grad, importance, scratch, value=2.0 * strength, out=out)
        return grad

    def proximal_step(self, state: State, theta: Tensor, lr: float) -> None:
        """θ ← argmin_u  penalty(u) + ‖u − θ‖²/(2η), in closed form: an average of θ and the anchors."""
        weight = None
        for strength, importance, anchor in self.springs(state):
            stiffness = (2.0 * lr * strength) * importance
            theta.addcmul_(stiffness, anchor)
            weight = stiffness.add_(1.0) if weight is None else weight.add_(stiffness)
        if weight is not None:
            theta /= weight


def normalized(vector: Tensor, extrema: tuple[Tensor, Tensor] | None = None) -> Tensor:
    """Min–max to [0, 1] over the parameters of each run; a constant vector becomes zero.

    For a piece of a network `extrema` are the smallest and largest value over all of it.

    >>> normalized(torch.tensor([[1.0, 2.0, 3.0], [4.0, 4.0, 4.0]]))
    tensor([[0.0000, 0.5000, 1.0000],
            [0.0000, 0.0000, 0.0000]])
    """
    low, high = vector.aminmax(dim=-1, keepdim=True) if extrema is None else extrema
    tiny = torch.finfo(vector.dtype).tiny
    return (vector - low) / (high - low).clamp(min=tiny)


def unit(state: State, name: str, ranges: Ranges | None) -> Tensor:
    """A vector of the state, min–max normalised over the network: over all of θ, or by the `ranges` of a piece."""
    return normalized(state[name], None if ranges is None else ranges[name])


def require(
    value: Number,
    name: str,
    minimum: float = float("-inf"),
    maximum: float = float("inf"),
    open_: bool = False,
) -> None:
    """Refuse a number outside its range; stacked numbers were checked one by one earlier."""
    if isinstance(value, Tensor):
        return
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise InputError(f"{name} must be a number, not {value!r}")
    inside = minimum < value <= maximum if open_ else minimum <= value <= maximum
    if not inside or value != value or value in (float("inf"), float("-inf")):
        low = f"{'greater than' if open_ else 'at least'} {minimum:g}"
        raise InputError(f"{name} must be {low}{f' and at most {maximum:g}' * (maximum < 1e300)}, not {value!r}")
