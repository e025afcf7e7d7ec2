"""One parameter of a user's model, and the state that a method keeps for it.

The methods work on [R, P], elementwise. Here all vectors are [1, *shape]: the one row of a network, cut at a
parameter's borders. A parameter may be the shard of a larger one (FSDP2, `sharded`), lie on another device than
its state, or be narrower than float32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from rwalk.errors import InputError
from rwalk.guard.state import sharded as shards
from rwalk.guard.state.codec import drawn_for, rounded
from rwalk.guard.state.lora import Product, Target
from rwalk.guard.state.sharded import is_sharded, local
from rwalk.guard.step import penalty as stiffness
from rwalk.methods.base import Method, Ranges, State

Precision = torch.dtype | Literal["8bit"]


class Part(NamedTuple):
    """Some of a parameter's numbers: its state and θ, as the equations want them."""

    state: State
    theta: Tensor
    of: Callable[[Tensor], Tensor]  # the same numbers of another tensor of the parameter's shape, [1, *shape]


class Form(NamedTuple):
    """How state is kept, and where.

    dtype    "8bit" (`codec`), or the dtype that numbers are rounded to; that of the equations, if None
    offload  the device it is kept on; with the parameter, if None
    moment   another number in every step, the same again in a run that was resumed
    """

    dtype: Precision | None
    offload: torch.device | None
    moment: Callable[[], int]


class Storage:
    """The state of a parameter; or of the product of two, in the place of the weight that they adapt.

    The equations are worked out where the state lies, in float32 at least.
    """

    def __init__(self, target: Target, name: str, form: Form) -> None:
        self.product = target if isinstance(target, Product) else None
        self.parameter = target.base if isinstance(target, Product) else target
        self.name = name
        self.form = form
        self.state: State = {}
        self.mark = object()  # replaced whenever vectors of the state are

    def of(self, target: Target) -> Storage:
        """An empty one, of the same kind, for another parameter."""
        return type(self)(target, self.name, self.form)

    @property
    def trained(self) -> tuple[nn.Parameter, ...]:
        """What an optimizer may move."""
        return (self.parameter,) if self.product is None else self.product.factors

    @property
    def home(self) -> torch.device:
        return self.parameter.device

    @property
    def worked_in(self) -> torch.dtype:
        return torch.float64 if self.parameter.dtype == torch.float64 else torch.float32

    @property
    def stored_as(self) -> torch.dtype:
        return self.form.dtype if isinstance(self.form.dtype, torch.dtype) else self.worked_in

    rounding = 0.0  # the error of a place in parameter space, by the largest around it

    def wide(self, tensor: Tensor) -> Tensor:
        """In the dtype and on the device of the equations; the tensor itself, if it is already."""
        return tensor.to(self.home, self.worked_in)

    def theta(self) -> Tensor:
        """The parameter's numbers on this rank."""
        if self.product is not None:
            return self.product.value(self.worked_in)[None]
        return local(self.parameter.detach())[None]

    def narrowed(self, theta: Tensor, like: Tensor) -> Tensor:
        """New numbers of the parameter, as it can hold them: draws decide how narrow ones are rounded."""
        if theta.dtype == like.dtype or like.dtype == torch.float64:
            return theta
        return rounded(theta, like.dtype, drawn_for(theta, self.name, self.form.moment()))

    def keep(self, state: State) -> None:
        self.state = {name: vector.to(self.home, self.stored_as) for name, vector in state.items()}
        self.touched()

    def touched(self) -> None:
        """Vectors of the state were replaced: batches that refer to them are stale."""
        self.mark = object()

    def follow(self) -> None:
        """The model may have been moved to another device since the last step."""
        home = self.home
        if any(vector.device != home for vector in self.state.values()):
            self.keep(self.state)

    def borrowed(self, write: bool = False) -> AbstractContextManager[State]:
        """The state in the dtype of the equations; with `write`, changes are kept."""
        if self.stored_as == self.worked_in:
            if write:
                self.touched()
            return nullcontext(self.state)
        return _copied_state(self, write)

    def parts(self, write: bool = False) -> Iterator[Part]:
        """The whole state in one or more parts; with `write`, changes are kept."""
        self.follow()
        with self.borrowed(write=write) as state:
            yield Part(state, self.wide(self.theta()), lambda tensor: tensor)

    def read(self) -> State:
        """All vectors, whole; not copied, if they are kept so."""
        return self.state

    @property
    def nbytes(self) -> int:
        return sum(vector.nbytes for vector in self.state.values())


@contextmanager
def _copied_state(storage: Storage, write: bool) -> Iterator[State]:
    state = {name: vector.to(storage.worked_in) for name, vector in storage.state.items()}
    yield state
    if write:
        storage.keep(state)


class ParameterState:
    """A parameter under its name, and its state."""

    def __init__(self, name: str, storage: Storage) -> None:
        self.name = name
        self.storage = storage
        self.started = False
        self.used = False  # whether it had a gradient in the current task
        self._scratch: dict[str, Tensor] = {}
        self._stiffest: float | None = None  # of all its springs at λ = 1; None until it is asked for

    @property
    def parameter(self) -> nn.Parameter:
        return self.storage.parameter

    @property
    def state(self) -> State:
        return self.storage.state

    @property
    def nbytes(self) -> int:
        return self.storage.nbytes + sum(each.nbytes for each in self._scratch.values())

    def scratch(self, name: str) -> Tensor:
        """Memory for as many numbers as the parameter has, kept from step to step."""
        theta, found = local(self.parameter.detach()), self._scratch.get(name)
        if found is None or (found.shape, found.dtype, found.device) != (theta.shape, theta.dtype, theta.device):
            found = self._scratch[name] = torch.empty_like(theta)
        return found

    def free_scratch(self) -> None:
        """It is not needed until the next step, or the user has it now."""
        self._scratch = {}
        self.storage.touched()

    @contextmanager
    def whole(self, write: bool = False) -> Iterator[tuple[State, Tensor]]:
        """The state and θ in the dtype of the equations; with `write`, changes of the state are kept."""
        self.storage.follow()
        with self.storage.borrowed(write=write) as state:
            yield state, self.storage.wide(self.storage.theta())

    # ── the method's equations ────────────────────────────────────────────────────────────────────────────

    def start(self, method: Method) -> None:
        for part in self.storage.parts(write=True):
            part.state.update(method.start(part.theta))
        self.started = True

    def begin(self, method: Method, fisher: Tensor) -> None:
        for part in self.storage.parts(write=True):
            method.begin(part.state, part.of(fisher))

    def consolidate(self, method: Method, fisher: Tensor | None, ranges: Ranges) -> None:
        for part in self.storage.parts(write=True):
            method.consolidate(part.state, part.theta, None if fisher is None else part.of(fisher), ranges)
        self._stiffest = None
        self.used = False

    def score(self, method: Method) -> None:
        """A window of steps ended."""
        for part in self.storage.parts(write=True):
            method.score(part.state, part.theta)

    def moved(self, method: Method, before: Tensor) -> None:
        """θ was moved from there outside of the optimizer's steps."""
        for part in self.storage.parts(write=True):
            method.moved(part.state, part.theta - self.storage.wide(part.of(before)))

    def stiffest(self, method: Method) -> float:
        """The largest second derivative of the penalty, which is linear in λ; looked for once per task.

        0 for a method with a `pull` of its own, whose stiffness is unknown.
        """
        if type(method).pull is not Method.pull:
            return 0.0
        if self._stiffest is None:
            at_one = replace(method, lam=1.0)
            parts = self.storage.parts()
            self._stiffest = max(stiffness.stiffest(at_one.springs(part.state), part.theta) for part in parts)
        return self._stiffest * float(method.lam)


def is_trained(piece: ParameterState) -> bool:
    return any(parameter.requires_grad for parameter in piece.storage.trained)


# ── growing, loading ────────────────────────────────────────────────────────────────────────────────────────


def whole_state(piece: ParameterState) -> dict[str, Tensor]:
    """The state vectors in the parameter's full shape; from all ranks where it is sharded."""
    kept = piece.storage.read()
    return {name: shards.gathered(vector[0], piece.parameter) for name, vector in kept.items()}


def successor(piece: ParameterState, target: Target, method: Method) -> ParameterState:
    """The piece for what the model has under this name now; what was learned goes with it."""
    product = piece.storage.product
    if target is piece.parameter if product is None else product.is_that_of(target):
        return piece  # nothing was replaced
    storage = piece.storage.of(target)
    if not piece.started:
        return ParameterState(piece.name, storage)
    if is_sharded(storage.parameter) != is_sharded(piece.parameter):
        raise InputError(f"{piece.name} was sharded after its Guard was made: make the Guard after fully_shard")
    vectors = whole_state(piece)
    check_fits(piece, vectors, storage.parameter)
    return restored(piece, vectors, target, method)


def restored(
    piece: ParameterState, vectors: Mapping[str, Tensor], target: Target, method: Method
) -> ParameterState:
    """A piece for a parameter, with state vectors of its shape, or of a smaller one if it has grown since.

    New numbers start free: as `start` begins them, and with zeros (no importance) in all other vectors. The piece
    that it follows stays as it is.
    """
    new = ParameterState(piece.name, piece.storage.of(target))
    parameter = new.parameter
    theta = new.storage.wide(new.storage.theta())
    fresh = method.start(theta)
    state = {}
    for name, vector in vectors.items():
        vector = vector.to(theta.dtype, copy=True)
        state[name] = shards.fitted(vector, parameter).to(theta.device)[None]
        if vector.shape != parameter.shape:
            known = shards.fitted(torch.ones(vector.shape, dtype=torch.bool), parameter).to(theta.device)[None]
            state[name] = torch.where(known, state[name], fresh.get(name, torch.zeros_like(theta)))
    new.storage.keep(state)
    new.started = True
    return new


def check_fits(piece: ParameterState, vectors: Mapping[str, Tensor], parameter: nn.Parameter) -> None:
    for vector in vectors.values():
        smaller = all(a <= b for a, b in zip(vector.shape, parameter.shape, strict=False))
        if vector.ndim != parameter.ndim or not smaller:
            raise InputError(
                f"{piece.name} has shape {tuple(parameter.shape)} but its importance {tuple(vector.shape)}: "
                "a parameter may grow, not shrink or change: give it its old shape, or exclude it by params="
            )
