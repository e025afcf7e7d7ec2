"""One parameter of a model, and the vectors that a method keeps for it.

The methods work on [R, P], elementwise. Here all vectors are [1, *shape]: the one row of a network, cut at a
parameter's borders. A parameter may be the shard of a larger one (FSDP2, `sharded`), lie on another device than
its state, or be narrower than float32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor, nn

from rwalk.errors import InputError
from rwalk.guard.state import codec
from rwalk.guard.state.sharded import fitted, gathered, is_sharded, local
from rwalk.guard.step import penalty
from rwalk.methods.method import Method, Ranges, State


class Form(NamedTuple):
    """How state is kept.

    quantized  whether in 8 and 16 bits (`codec`)
    offload    the device it is kept on; None: the parameter's
    moment     another number in every step, the same again in a run that was resumed
    """

    quantized: bool
    offload: torch.device | None
    moment: Callable[[], int]


class Part(NamedTuple):
    """Some of a parameter's numbers: its state and θ, as the equations need them."""

    state: State
    theta: Tensor
    of: Callable[[Tensor], Tensor]  # the same numbers of another tensor of the parameter's shape


class Piece:
    """The unit of a step: all numbers of a parameter, or a chunk of them (`quantized`)."""

    def __init__(self, state: ParameterState) -> None:
        self.state = state

    def of(self, tensor: Tensor) -> Tensor:
        """Its numbers of a tensor of the parameter's shape."""
        return tensor

    def put(self, numbers: Tensor, tensor: Tensor) -> None:
        """Write its numbers into such a tensor."""
        tensor.copy_(numbers)

    def draws(self, name: str) -> Tensor:
        """The draws of this step for a vector of this name."""
        return codec.drawn_for(local(self.state.parameter), self.state.name, name, self.state.form.moment())

    def opened(self) -> State:
        """The vectors in the dtype of the equations."""
        return {name: vector[0] for name, vector in self.state.vectors.items()}

    def close(self, state: State) -> None:
        """Keep what was changed in `opened` vectors."""
        for name, vector in state.items():
            if vector.data_ptr() != self.state.vectors[name].data_ptr():
                self.state.vectors[name][0].copy_(vector)

    def narrowed(self, theta: Tensor, dtype: torch.dtype) -> Tensor:
        """New numbers of the parameter, as it can hold them: draws decide how narrow ones are rounded."""
        return theta if theta.dtype == dtype else codec.rounded(theta, dtype, self.draws("theta"))


class ParameterState:
    """A parameter under its name in the model, and its vectors, which lie where the parameter does.

    Equations use float32 at least.
    """

    rounding = 0.0  # the error of a place in parameter space, by the largest around it

    def __init__(self, name: str, parameter: nn.Parameter, form: Form) -> None:
        self.name, self.parameter, self.form = name, parameter, form
        self.vectors: State = {}
        self.started = False
        self.used = False  # whether it had a gradient in the current task
        self.mark = object()  # replaced whenever vectors are
        self._scratch: dict[str, Tensor] = {}
        self._stiffest: float | None = None  # of the penalty at λ = 1; None until it is needed

    @property
    def home(self) -> torch.device:
        return self.parameter.device

    @property
    def work_dtype(self) -> torch.dtype:
        return torch.float64 if self.parameter.dtype == torch.float64 else torch.float32

    @property
    def nbytes(self) -> int:
        return sum(each.nbytes for each in (*self.vectors.values(), *self._scratch.values()))

    def wide(self, tensor: Tensor) -> Tensor:
        """In the dtype and on the device of the equations; the tensor itself, if it is already."""
        return tensor.to(self.home, self.work_dtype)

    def theta(self) -> Tensor:
        """The parameter's numbers on this rank."""
        return local(self.parameter.detach())[None]

    # ── how vectors are kept: other forms replace these ───────────────────────────────────────────────────────

    def store(self, vectors: State) -> None:
        """Replace all vectors."""
        self.vectors = {name: self.wide(vector) for name, vector in vectors.items()}
        self.touch()

    def whole(self) -> State:
        """All vectors, decoded; not copied if they are kept so."""
        return self.vectors

    def relocate(self) -> None:
        """Follow the parameter if the model was moved to another device."""
        home = self.home
        if any(vector.device != home for vector in self.vectors.values()):
            self.store(self.vectors)

    def pieces(self, total: int | None = None) -> Sequence[Piece]:
        """All numbers in one or more pieces; of a batch with so many numbers in total, for a step."""
        return [Piece(self)]

    def parts(self, write: bool = False) -> Iterator[Part]:
        """All numbers in one or more parts, in the dtype of the equations; with `write`, changes are kept."""
        self.relocate()
        yield Part(self.vectors, self.wide(self.theta()), lambda tensor: tensor)
        if write:
            self.touch()

    # ── the method's equations ────────────────────────────────────────────────────────────────────────────────

    def start(self, method: Method) -> None:
        for part in self.parts(write=True):
            part.state.update(method.start(part.theta))
        self.started = True

    def begin(self, method: Method, fisher: Tensor) -> None:
        for part in self.parts(write=True):
            method.begin(part.state, part.of(fisher))

    def consolidate(self, method: Method, fisher: Tensor | None, ranges: Ranges) -> None:
        for part in self.parts(write=True):
            method.consolidate(part.state, part.theta, None if fisher is None else part.of(fisher), ranges)
        self._stiffest = None
        self.used = False

    def moved(self, method: Method, before: Tensor) -> None:
        """Weights were moved from `before` outside of the optimizer's steps."""
        for part in self.parts(write=True):
            method.moved(part.state, part.theta - self.wide(part.of(before)))

    def stiffest(self, method: Method) -> float:
        """The largest second derivative of the penalty, which is linear in λ; computed once per task.

        0 for a method with a `pull` of its own, whose stiffness is unknown.
        """
        if type(method).pull is not Method.pull:
            return 0.0
        if self._stiffest is None:
            at_one = replace(method, lam=1.0)
            self._stiffest = max(penalty.stiffest(at_one.springs(part.state), part.theta) for part in self.parts())
        return self._stiffest * float(method.lam)

    # ── memory ────────────────────────────────────────────────────────────────────────────────────────────────

    def touch(self) -> None:
        """Vectors were replaced: batches that refer to them are stale."""
        self.mark = object()

    def scratch(self, name: str) -> Tensor:
        """Memory for as many numbers as the parameter has, kept from step to step."""
        theta, found = local(self.parameter.detach()), self._scratch.get(name)
        if found is None or (found.shape, found.dtype, found.device) != (theta.shape, theta.dtype, theta.device):
            found = self._scratch[name] = torch.empty_like(theta)
        return found

    def free_scratch(self) -> None:
        """It is not needed until the next step, or belongs to the user now."""
        self._scratch = {}
        self.touch()


# ── growing, loading ──────────────────────────────────────────────────────────────────────────────────────────


def full_vectors(state: ParameterState) -> dict[str, Tensor]:
    """The vectors in the parameter's full shape; from all ranks where it is sharded."""
    return {name: gathered(vector[0], state.parameter) for name, vector in state.whole().items()}


def successor(state: ParameterState, parameter: nn.Parameter, method: Method) -> ParameterState:
    """The state of the parameter that the model has under this name now, which may have grown."""
    if parameter is state.parameter:
        return state
    if not state.started:
        return type(state)(state.name, parameter, state.form)
    if is_sharded(parameter) != is_sharded(state.parameter):
        raise InputError(f"{state.name} was sharded after its Guard was made: make the Guard after fully_shard")
    vectors = full_vectors(state)
    check_fits(state.name, vectors, parameter)
    return restored(state, vectors, parameter, method)


def restored(
    state: ParameterState, vectors: Mapping[str, Tensor], parameter: nn.Parameter, method: Method
) -> ParameterState:
    """A new state with vectors of the parameter's shape, or of a smaller one if it has grown since.

    New numbers start free: as `method.start` begins them, and with zeros (no importance) in all other vectors.
    """
    new = type(state)(state.name, parameter, state.form)
    theta = new.wide(new.theta())
    fresh = method.start(theta)
    found = {}
    for name, vector in vectors.items():
        vector = vector.to(theta.dtype, copy=True)
        found[name] = fitted(vector, parameter).to(theta.device)[None]
        if vector.shape != parameter.shape:
            known = fitted(torch.ones(vector.shape, dtype=torch.bool), parameter).to(theta.device)[None]
            found[name] = torch.where(known, found[name], fresh.get(name, torch.zeros_like(theta)))
    new.store(found)
    new.started = True
    return new


def check_fits(name: str, vectors: Mapping[str, Tensor], parameter: nn.Parameter) -> None:
    for vector in vectors.values():
        smaller = all(a <= b for a, b in zip(vector.shape, parameter.shape, strict=False))
        if vector.ndim != parameter.ndim or not smaller:
            raise InputError(
                f"{name} has shape {tuple(parameter.shape)} but its importance {tuple(vector.shape)}: "
                "a parameter may grow, not shrink or change: give it its old shape, or exclude it by params="
            )
