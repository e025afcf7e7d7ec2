"""Parameters on their way through a step of the optimizer: pulled before it, observed after it.

On an accelerator many small parameters go together, so that a step costs a few dozen kernels and not thousands;
nothing in it waits for the device. On a CPU each parameter goes alone, in room that is kept from step to step,
until a step is worth compiling (`compiled`): a list of tensors is no faster there, and fresh memory is slow.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from rwalk.errors import InputError
from rwalk.guard.state.parameter import Piece
from rwalk.guard.state.sharded import is_sharded, local
from rwalk.guard.step import penalty as stiffness
from rwalk.guard.step.tensor_list import apart, together
from rwalk.methods.base import Method, State


def launches(device: torch.device) -> bool:
    """Whether operations are kernels to be launched, which takes longer than most of them do."""
    return device.type != "cpu"


def on_this_rank(tensors: Sequence[Any], sharded: bool) -> Sequence[Any]:
    return [local(each) for each in tensors] if sharded else tensors


def exchange(parameters: Sequence[nn.Parameter], gradients: Sequence[Tensor]) -> None:
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient


class Underway:
    """What is remembered of a pack from before the step, and what the optimizer reads for its gradients."""

    def __init__(self, parameters: list[nn.Parameter], sharded: bool) -> None:
        self.parameters, self.sharded = parameters, sharded
        self.gradients: list[Any] = [parameter.grad for parameter in parameters]  # the user's, of the task alone
        self.own = together(on_this_rank(self.gradients, sharded))
        self.given: list[Tensor] = []  # what the optimizer reads, where that is not they
        self.versions: list[int] = []  # torch's count of changes to what was given
        self.saved: Any = None  # of sharded gradients, which the pull is added to in place: what they were
        self.negated: Any = None  # −θ before the step
        self.beyond: float | None = None  # the stiffness beyond which springs pull after the step

    def give(self, pulled: Any) -> None:
        """To the optimizer; the user's own gradients are put aside untouched, unless they are sharded."""
        if self.sharded:
            self.saved = self.own.clone()
            self.given = apart(self.own.copy_(pulled))
        else:
            self.given = apart(pulled)
            exchange(self.parameters, self.given)
        self.versions = [each._version for each in self.given]

    def give_back(self) -> None:
        """The gradients as they were."""
        if self.given and self.sharded:
            self.own.copy_(self.saved)
        elif self.given:
            exchange(self.parameters, self.gradients)
        self.given = []

    def give_back_unless_changed(self) -> list[int]:
        """The gradients as they were; which ones are not, because what was given is the user's now."""
        lost = []
        for i, (parameter, given) in enumerate(zip(self.parameters, self.given, strict=bool(self.given))):
            is_there = self.sharded or parameter.grad is given
            if not (is_there and given._version == self.versions[i]):
                lost.append(i)
            elif self.sharded:
                given.copy_(apart(self.saved)[i])
            else:
                parameter.grad = self.gradients[i]
        self.given = []
        return lost


class Pack:
    """Parameters of a kind, as one.

    Tensors have the parameters' own shapes here, without the row of a network: a step goes over hundreds of them,
    and a view of each costs more than any kernel does.
    """

    def __init__(self, pieces: Sequence[Piece]) -> None:
        self._pieces = list(pieces)
        self._parameters = [piece.parameter for piece in pieces]
        self._storage = pieces[0].storage  # all are alike in this: where they lie, and how precise they are
        for piece in pieces:
            piece.storage.follow()
        self._home = self._storage.home
        self._marks = [piece.storage.mark for piece in pieces]
        self._sharded = is_sharded(self._parameters[0])
        self._state: State = {
            name: together([piece.state[name][0] for piece in pieces]) for name in pieces[0].state
        }
        self._addresses: list[int] = []
        self._theta: Any = None
        self._rooms: dict[str, Any] = {}
        self._underway: Underway | None = None
        self._look()

    def is_current(self) -> bool:
        """Whether the state is still that of its parameters, where they are now."""
        self._look()
        if self._storage.home != self._home:
            for piece in self._pieces:
                piece.storage.follow()
        return all(piece.storage.mark is mark for piece, mark in zip(self._pieces, self._marks, strict=True))

    # ── a step ────────────────────────────────────────────────────────────────────────────────────────────────

    def enter(
        self,
        method: Method,
        followed: float | None,
        pulls: Mapping[nn.Parameter, Tensor],
        aside: bool = False,
    ) -> None:
        """Remember what `observe` will want, and add the pull to the gradient the optimizer is about to use.

        followed  the stiffness that the optimizer can follow; None where no spring is stiffer
        pulls     from elsewhere, shaped like the gradients: of all parameters of the pack, or of none
        aside     the optimizer may change gradients: it gets a copy
        """
        step = self._underway = Underway(self._parameters, self._sharded)
        own = step.own
        holds = method.penalty == "gradient" and bool(method.springs(self._state))
        if holds:
            step.beyond = followed
        step.negated, pulled = self._prepared(method, own, followed, holds)
        if pulls:
            pulled = (own if pulled is None else pulled) + together([pulls[each][0] for each in self._parameters])
        elif pulled is None and aside and method.wants:
            pulled = own.clone()
        if pulled is not None:
            step.give(pulled)

    def leave(self, method: Method, lr: float) -> None:
        """Give the gradients back as they were, pull after the step where that is due, and observe."""
        step = self._underway
        assert step is not None
        step.give_back()
        self._look()
        self._finish(method, step, lr)
        self._underway = None

    def abandon(self, at_once: bool) -> None:
        """The step failed: its gradients are given back, and nothing is observed.

        Unless this is done `at_once`, gradients may have been zeroed or added to since: those are left alone.
        """
        step, self._underway = self._underway, None
        if step is None:
            return
        if at_once:
            step.give_back()
            return
        for lost in step.give_back_unless_changed():
            self._pieces[lost].leave_rooms()

    def score(self, method: Method) -> None:
        """A window of steps ended."""
        state = self._lent()
        method.score(state, self._wide(self._theta))
        keep(state, self._state)

    def _prepared(self, method: Method, own: Any, followed: float | None, holds: bool) -> tuple[Any, Any]:
        """−θ, where the method asks for moves, and the gradient with the pull, where anything holds."""
        negated = torch.neg(self._theta, out=self._room("before")) if "move" in method.wants else None
        if not holds:
            return negated, None
        alone, theta, state = self._wide(own), self._wide(self._theta), self._lent()
        out = self._room("pulled") if alone is own else None
        pulled: Any = stiffness.pulled(method, followed, state, theta, alone, out=out)
        return negated, pulled if alone is own else pulled.to(own.device, own.dtype)

    def _finish(self, method: Method, step: Underway, lr: float) -> None:
        """After the optimizer's step."""
        if method.penalty == "proximal" and method.springs(self._state):
            self._take_proximal_step(method, lr, beyond=None)
        elif step.beyond is not None:
            self._take_proximal_step(method, lr, step.beyond)
        if method.wants:
            self._observe(method, step.own, step.negated)

    def _observe(self, method: Method, own: Any, negated: Any) -> None:
        gradient = move = square = self._wide(own)
        if "move" in method.wants:
            move = self._wide(negated).add_(self._wide(self._theta))
        if "square" in method.wants:
            square = torch.mul(gradient, gradient, out=self._rooms.get("pulled") if gradient is own else None)
        state = self._lent()
        method.observe(state, gradient, move, square)
        keep(state, self._state)

    def _take_proximal_step(self, method: Method, lr: float, beyond: float | None) -> None:
        near = self._wide(self._theta)
        stiffness.step_late(method, beyond, self._lent(), near, lr)
        if near is not self._theta:
            self._theta.copy_(near)

    # ── numbers, as the equations want them ───────────────────────────────────────────────────────────────────

    def _look(self) -> None:
        """The parameters' numbers, which may lie elsewhere than before: moved, or replaced by the optimizer."""
        addresses = [parameter.data_ptr() for parameter in on_this_rank(self._parameters, self._sharded)]
        if addresses != self._addresses:
            self._addresses = addresses
            self._look_again()

    def _look_again(self) -> None:
        self._theta = together([piece.storage.theta()[0] for piece in self._pieces])
        self._rooms = {}
        self._is_wide, *kept = (self._storage.wide(each) is each for each in (self._theta, *self._state.values()))
        self._keeps_wide = all(kept)

    def _room(self, name: str) -> Any:
        """Room for as many numbers as the parameter has; None where it costs nothing to come by."""
        if launches(self._storage.home):
            return None
        if name not in self._rooms:
            self._rooms[name] = together([piece.room(name)[0] for piece in self._pieces])
        return self._rooms[name]

    def _wide(self, tensors: Any) -> Any:
        """Themselves where they already are as the equations want them."""
        return tensors if self._is_wide else self._storage.wide(tensors)

    def _lent(self) -> State:
        """The state as the equations want it."""
        if self._keeps_wide:
            return dict(self._state)
        return {name: self._storage.wide(vector) for name, vector in self._state.items()}


def keep(state: State, kept: State) -> None:
    """What the equations have changed in a state, unless that was done in place."""
    for name, vector in state.items():
        if name not in kept:
            raise InputError(f"a method may make vectors in start and consolidate, not {name!r} in a step")
        if vector is not kept[name]:
            kept[name].copy_(vector)
