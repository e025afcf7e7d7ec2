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
from rwalk.guard import stiffness
from rwalk.guard.many import apart, together
from rwalk.guard.pieces import Piece
from rwalk.guard.shards import is_sharded, local
from rwalk.methods.base import Method, State


def launches(device: torch.device) -> bool:
    """Whether operations are kernels to be launched, which takes longer than most of them do."""
    return device.type != "cpu"


class _Underway:
    """What is remembered of a pack from before the step."""

    def __init__(self, gradients: list[Any], own: Any) -> None:
        self.gradients = gradients  # the user's, of the task's loss alone
        self.own = own  # their numbers on this rank, as one
        self.given: list[Tensor] = []  # what the optimizer reads in their place, where that is not they
        self.versions: list[int] = []  # torch's count of changes to what was given
        self.saved: Any = None  # of sharded gradients, which the pull is added to in place: what they were
        self.negated: Any = None  # −θ before the step
        self.beyond: float | None = None  # the stiffness beyond which springs pull after the step


class Pack:
    """Parameters of a kind, as one."""

    def __init__(self, pieces: Sequence[Piece]) -> None:
        self._pieces = list(pieces)
        self._parameters = [piece.parameter for piece in pieces]
        self._storage = pieces[0].storage  # all are alike in this: where they lie, and how precise they are
        for piece in pieces:
            piece.storage.follow()
        self._home = self._storage.home
        self._marks = [piece.storage.mark for piece in pieces]
        self._sharded = is_sharded(self._parameters[0])
        self._state: State = {name: together([piece.state[name] for piece in pieces]) for name in pieces[0].state}
        self._addresses: list[int] = []
        self._theta: Any = None
        self._rooms: dict[str, Any] = {}
        self._given: list[Tensor] | None = None
        self._underway: _Underway | None = None
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
        gradients = [parameter.grad for parameter in self._parameters]
        own = together([each.unsqueeze(0) for each in self._local(gradients)])
        step = self._underway = _Underway(gradients, own)
        holds = method.penalty == "gradient" and bool(method.springs(self._state))
        if holds:
            step.beyond = followed
        step.negated, pulled = self._prepared(method, own, followed, holds)
        if pulls:
            pulled = (own if pulled is None else pulled) + together([pulls[each] for each in self._parameters])
        elif pulled is None and aside and method.wants:
            pulled = own.clone()
        if pulled is not None:
            self._give(step, pulled)

    def leave(self, method: Method, lr: float) -> None:
        """Give the gradients back as they were, pull after the step where that is due, and observe."""
        step = self._underway
        assert step is not None
        self._give_back(step)
        self._look()
        if method.penalty == "proximal" and method.springs(self._state):
            self._take_proximal_step(method, lr, beyond=None)
        elif step.beyond is not None:
            self._take_proximal_step(method, lr, step.beyond)
        if method.wants:
            self._observe(method, step.own, step.negated)
        self._underway = None

    def abandon(self, at_once: bool) -> None:
        """The step failed: its gradients are given back, and nothing is observed.

        Unless this is done `at_once`, gradients may have been zeroed or added to since: those are left alone.
        """
        if self._underway is not None:
            self._give_back(self._underway, unless_changed=not at_once)
            self._underway = None

    def score(self, method: Method) -> None:
        """A window of steps ended."""
        state = self._lent()
        method.score(state, self._wide(self._theta))
        keep(state, self._state)

    def _prepared(self, method: Method, own: Any, followed: float | None, holds: bool) -> tuple[Any, Any]:
        """−θ, where the method asks for moves, and the gradient with the pull, where anything holds."""
        negated = torch.neg(self._theta, out=self._room("before")) if "move" in method.wants else None
        return negated, self._pulled(method, own, followed) if holds else None

    def _pulled(self, method: Method, own: Any, beyond: float | None) -> Any:
        alone, theta = self._wide(own), self._wide(self._theta)
        out = self._room("pulled") if alone is own else None
        if beyond is None:
            pulled: Any = method.pull(self._lent(), theta, alone, out=out)
        else:
            pulled = stiffness.soft_pull(method.springs(self._lent()), theta, alone, beyond, out=out)
        return pulled if alone is own else pulled.to(own.device, own.dtype)

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
        if beyond is None:
            method.proximal_step(self._lent(), near, lr)
        else:
            stiffness.proximal_step(method.springs(self._lent()), near, lr, beyond)
        if near is not self._theta:
            self._theta.copy_(near)

    # ── gradients, given and taken back ───────────────────────────────────────────────────────────────────────

    def _give(self, step: _Underway, pulled: Any) -> None:
        """To the optimizer; the user's own gradients are put aside untouched, unless they are sharded."""
        if self._sharded:
            step.saved = step.own.clone()
            step.given = apart(step.own.copy_(pulled))
        else:
            step.given = self._without_row(pulled)
            for parameter, each in zip(self._parameters, step.given, strict=True):
                parameter.grad = each
        step.versions = [each._version for each in step.given]

    def _without_row(self, pulled: Any) -> list[Tensor]:
        """Shaped like gradients; made once of room that is kept."""
        kept = self._rooms.get("pulled")
        if kept is None or pulled is not kept:
            return [each[0] for each in apart(pulled)]
        if self._given is None:
            self._given = [each[0] for each in apart(kept)]
        return self._given

    def _give_back(self, step: _Underway, unless_changed: bool = False) -> None:
        for i, (parameter, given) in enumerate(zip(self._parameters, step.given, strict=bool(step.given))):
            is_there = self._sharded or parameter.grad is given
            if unless_changed and not (is_there and given._version == step.versions[i]):
                self._pieces[i].leave_rooms()  # what was given is the user's now
            elif self._sharded:
                given.copy_(apart(step.saved)[i])
            else:
                parameter.grad = step.gradients[i]
        step.given = []

    # ── numbers, as the equations want them ───────────────────────────────────────────────────────────────────

    def _look(self) -> None:
        """The parameters' numbers, which may lie elsewhere than before: moved, or replaced by the optimizer."""
        addresses = [parameter.data_ptr() for parameter in self._local(self._parameters)]
        if addresses != self._addresses:
            self._addresses = addresses
            self._look_again()

    def _look_again(self) -> None:
        self._theta = together([piece.storage.theta() for piece in self._pieces])
        self._rooms, self._given = {}, None
        self._is_wide = self._wide_enough(self._theta)
        self._keeps_wide = all(map(self._wide_enough, self._state.values()))

    def _room(self, name: str) -> Any:
        """Room for as many numbers as the parameter has; None where it costs nothing to come by."""
        if launches(self._storage.home):
            return None
        if name not in self._rooms:
            self._rooms[name] = together([piece.room(name) for piece in self._pieces])
        return self._rooms[name]

    def _wide(self, tensors: Any) -> Any:
        """Themselves where they already are as the equations want them."""
        return tensors if self._is_wide else self._storage.wide(tensors)

    def _wide_enough(self, tensors: Any) -> bool:
        return bool(self._storage.wide(tensors) is tensors)

    def _local(self, tensors: list[Any]) -> list[Tensor]:
        """The parts on this rank."""
        return [local(each) for each in tensors] if self._sharded else tensors

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
