"""One parameter of somebody else's model, and what a method has learned of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import Tensor, nn

from rwalk.guard.state.sharded import local
from rwalk.guard.state.storage import Storage
from rwalk.guard.step import penalty as stiffness
from rwalk.methods.base import Method, Ranges, State


class Piece:
    """A parameter under its name, and its state."""

    def __init__(self, name: str, storage: Storage) -> None:
        self.name = name
        self.storage = storage
        self.started = False
        self._rooms: dict[str, Tensor] = {}
        self._stiffest: float | None = None  # of all its springs at λ = 1; None until it is asked for

    @property
    def parameter(self) -> nn.Parameter:
        return self.storage.parameter

    @property
    def state(self) -> State:
        return self.storage.state

    @property
    def nbytes(self) -> int:
        return self.storage.nbytes + sum(room.nbytes for room in self._rooms.values())

    def room(self, name: str) -> Tensor:
        """Room for as many numbers as it has, at home, from step to step."""
        theta, room = self.storage.theta(), self._rooms.get(name)
        if room is None or (room.shape, room.dtype, room.device) != (theta.shape, theta.dtype, self.storage.home):
            room = self._rooms[name] = torch.empty_like(theta, device=self.storage.home)
        return room

    def leave_rooms(self) -> None:
        """They are free to be used by others, or others have them already."""
        self._rooms = {}
        self.storage.touched()

    @property
    def gradient(self) -> Tensor | None:
        """Of the last step, until the user drops it; None of a sparse one."""
        product = self.storage.product
        if product is not None:
            slopes = [factor.grad for factor in product.factors]
            known = any(slope is not None for slope in slopes)
            return product.gradient(slopes, self.storage.worked_in)[None] if known else None
        gradient = self.parameter.grad
        return None if gradient is None or gradient.is_sparse else local(gradient)[None]

    @contextmanager
    def whole(self, write: bool = False) -> Iterator[tuple[State, Tensor]]:
        """The state and θ as the equations want them; with `write`, what they change in the state is kept."""
        self.storage.follow()
        with self.storage.borrowed(write=write) as state:
            yield state, self.storage.wide(self.storage.theta())

    # ── what a method does with it ────────────────────────────────────────────────────────────────────────────

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

    def score(self, method: Method) -> None:
        """A window of steps ended."""
        for part in self.storage.parts(write=True):
            method.score(part.state, part.theta)

    def hold(self, method: Method, importance: float) -> None:
        """Make every number of it that much more important."""
        for part in self.storage.parts(write=True):
            for _, last, _ in method.springs(part.state)[-1:]:
                last += importance
        self._stiffest = None

    def pull_back(self, method: Method) -> None:
        """A proximal step of length 1, outside of any step of the optimizer's."""
        if self.storage.product is not None:
            with self.whole() as (state, theta):
                self.storage.product.proximal_step(method.springs(state), theta, 1.0)
            return
        for part in self.storage.parts():
            method.proximal_step(part.state, part.theta, 1.0)
            here = part.of(self.storage.theta())
            if part.theta.data_ptr() != here.data_ptr():
                here.copy_(part.theta)

    def stiffest(self, method: Method) -> float:
        """The largest second derivative of the penalty, which is linear in λ; looked for once per task.

        0 of a method that pulls in a way of its own: nobody knows how stiff that is.
        """
        if type(method).pull is not Method.pull:
            return 0.0
        if self._stiffest is None:
            at_one = replace(method, lam=1.0)
            parts = self.storage.parts()
            self._stiffest = max(stiffness.stiffest(at_one.springs(part.state), part.theta) for part in parts)
        return self._stiffest * float(method.lam)


def is_trained(piece: Piece) -> bool:
    return any(parameter.requires_grad for parameter in piece.storage.trained)
