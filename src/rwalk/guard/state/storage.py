"""Where the numbers of one parameter lie and how precise they are: θ itself, and the state kept for it.

The methods work on [R, P], elementwise. Here all vectors are [1, *shape]: the one row of a network, cut at a
parameter's borders. Here and in `shards`, and nowhere else, it is known that a parameter may be the shard of a
larger one (FSDP2), lie on another device than its state, or be narrower than float32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import NamedTuple

import torch
from torch import Tensor, nn

from rwalk.guard.state.lora import Product, Target
from rwalk.guard.state.sharded import local
from rwalk.methods.base import State


class Part(NamedTuple):
    """Some of a parameter's numbers: its state and θ, as the equations want them."""

    state: State
    theta: Tensor
    of: Callable[[Tensor], Tensor]  # the same numbers of another tensor of the parameter's shape, [1, *shape]


class Storage:
    """The state of a parameter; or of the product of two, in the place of the weight that they adapt.

    The equations are worked out where the state lies, in float32 at least; `dtype` is the precision it is kept in.
    """

    def __init__(self, target: Target, dtype: torch.dtype | None = None) -> None:
        self.product = target if isinstance(target, Product) else None
        self.parameter = target.base if isinstance(target, Product) else target
        self.state: State = {}
        self.mark = object()  # another one whenever vectors of the state are replaced
        self._dtype = dtype

    def of(self, target: Target) -> Storage:
        """An empty one, of the same kind, for another parameter."""
        return Storage(target, self._dtype)

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
        return self._dtype or self.worked_in

    rounding = 0.0  # the error of a place in parameter space, by the largest around it

    def wide(self, tensor: Tensor) -> Tensor:
        """The tensor itself where it already is as the equations want it."""
        return tensor.to(self.home, self.worked_in)

    def theta(self) -> Tensor:
        """The parameter's numbers on this rank."""
        if self.product is not None:
            return self.product.value(self.worked_in)[None]
        return local(self.parameter.detach())[None]

    def keep(self, state: State) -> None:
        self.state = {name: vector.to(self.home, self.stored_as) for name, vector in state.items()}
        self.touched()

    def touched(self) -> None:
        """Whoever has remembered vectors of the state has to look again."""
        self.mark = object()

    def follow(self) -> None:
        """The model may have been moved to another device since the last step."""
        home = self.home
        if any(vector.device != home for vector in self.state.values()):
            self.keep(self.state)

    def borrowed(self, write: bool = False) -> AbstractContextManager[State]:
        """The state as the equations want it; with `write`, what they change is kept, once they are done."""
        if self.stored_as == self.worked_in:
            if write:
                self.touched()
            return nullcontext(self.state)
        return _copied_state(self, write)

    def parts(self, write: bool = False) -> Iterator[Part]:
        """All of it, in as many parts as there have to be; with `write`, what is changed in states is kept."""
        self.follow()
        with self.borrowed(write=write) as state:
            yield Part(state, self.wide(self.theta()), lambda tensor: tensor)

    def read(self) -> State:
        """All vectors, whole; those themselves that are kept, if they are kept so."""
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
