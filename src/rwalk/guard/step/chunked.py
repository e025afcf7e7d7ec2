"""Parameters whose state is lent, on their way through a step: portion by portion, before it and after it.

State that is kept on the host comes and goes on streams of its own: while one portion is worked on, the next is on
its way to the device, and what was changed in the last one on its way back. The host waits for nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import cast

import torch
from torch import Tensor, nn

from rwalk.errors import InputError
from rwalk.guard.state.lazy import Borrowed
from rwalk.guard.state.offload import Carrier, Coming, carrier_of
from rwalk.guard.state.parameter import Piece
from rwalk.guard.state.quantized import LentStorage, Portion, portions
from rwalk.guard.state.sharded import is_sharded, local
from rwalk.guard.step.penalty import pulled, step_late
from rwalk.methods.base import Method, State

Lent = Iterator[tuple[Portion, State]]


class Underway:
    """What is remembered of a step from before it.

    own    the user's gradients on this rank, of the task's loss alone
    given  what the optimizer reads in their place: other tensors, or the same, with the pull in them
    saved  copies of those that `given` are the same as
    before θ before the step, portion by portion
    again  works out the gradient that was given anew: of a portion's state, θ before, and gradients
    marks  of the states at that time
    out    how many portions the pull was taken out of again
    """

    def __init__(self, gradients: list[Tensor]) -> None:
        self.gradients = gradients
        self.own = [local(each) for each in gradients]
        self.given: list[Tensor] = []
        self.versions: list[int] = []
        self.saved: list[Tensor] = []
        self.before: list[Tensor] = []
        self.beyond: float | None = None
        self.again: Callable[[State, Tensor, Tensor], Tensor] | None = None
        self.marks: list[object] = []
        self.out = 0

    def give(self, parameters: Sequence[nn.Parameter]) -> None:
        if self.given and self.given is not self.own:
            for parameter, given in zip(parameters, self.given, strict=True):
                parameter.grad = given
        self.versions = [each._version for each in self.given]

    def is_untouched(self) -> bool:
        return [each._version for each in self.given] == self.versions

    def put_back(self, parameters: Sequence[nn.Parameter], unless_changed: bool = False) -> None:
        """The user's gradients; unless they were changed, for then what was given is the user's."""
        in_place = self.given is self.own
        for i, given in enumerate(self.given):
            is_there = in_place or parameters[i].grad is given
            if unless_changed and not (is_there and given._version == self.versions[i]):
                continue
            if in_place:
                given.copy_(self.saved[i])
            else:
                parameters[i].grad = self.gradients[i]
        self.given = []


class LentPack:
    """All parameters of a kind.

    Where θ before the step is remembered anyway, the pull is added to the user's own gradients, and taken out of
    them after it, worked out once more: that needs no more room, and changes gradients by no more than rounding.
    """

    def __init__(self, pieces: Sequence[Piece]) -> None:
        self._pieces = list(pieces)
        self._parameters = [piece.parameter for piece in pieces]
        self._storages = [cast(LentStorage, piece.storage) for piece in pieces]
        for storage in self._storages:
            storage.follow()
        self._wide = self._storages[0].wide
        self._at = {id(storage): i for i, storage in enumerate(self._storages)}
        self._sharded = is_sharded(self._parameters[0])
        self._form = self._look()
        self._portions = list(portions(self._storages))
        self._carrier: Carrier = carrier_of(self._storages[0])
        self._asked: dict[str, tuple[str, ...]] = {}  # at what moment which vectors were wanted the last time
        self._underway: Underway | None = None

    def is_current(self) -> bool:
        """Whether portions are still those of its parameters, where they are now."""
        return self._form == self._look()

    def _look(self) -> list[object]:
        return [(each.home, each.shape, each.is_in_a_row, tuple(each.kept)) for each in self._storages]

    # ── a step ────────────────────────────────────────────────────────────────────────────────────────────────

    def enter(
        self,
        method: Method,
        followed: float | None,
        pulls: Mapping[nn.Parameter, Tensor],
        aside: bool = False,
    ) -> None:
        """As `Pack.enter`."""
        step = self._underway = Underway([cast(Tensor, parameter.grad) for parameter in self._parameters])
        holds = method.penalty == "gradient" and bool(method.springs(self._pieces[0].state))
        step.beyond = followed if holds else None
        step.marks = [storage.mark for storage in self._storages]
        remembers = "move" in method.wants
        if holds or pulls or (aside and method.wants):
            self._make_room(step, in_place=remembers and holds and not aside and not pulls)
        if holds:
            again = partial(pulled, method, step.beyond)
            step.again = again if not step.saved and step.given[0] is step.own[0] else None
        self._pull_all(method, step, holds)
        for given, parameter in zip(step.given if pulls else (), self._parameters, strict=bool(pulls)):
            given += pulls[parameter][0]
        step.give(self._parameters)

    def leave(self, method: Method, lr: float) -> None:
        """As `Pack.leave`."""
        step = self._underway
        assert step is not None
        taken_out = step.again is not None
        if not taken_out:
            step.put_back(self._parameters)
        proximal = method.penalty == "proximal" and bool(method.springs(self._pieces[0].state))
        late = proximal or step.beyond is not None
        if taken_out or late or method.wants:
            self._finish_all(method, step, lr, late, None if proximal else step.beyond)
        self._underway = None

    def abandon(self, at_once: bool) -> None:
        """As `Pack.abandon`."""
        step, self._underway = self._underway, None
        if step is None or not step.given:
            return
        if step.again is None:
            step.put_back(self._parameters, unless_changed=not at_once)
        elif (at_once or step.is_untouched()) and step.marks == [storage.mark for storage in self._storages]:
            self._take_all_out(step)

    def score(self, method: Method) -> None:
        """A window of steps ended."""
        for portion, state in self._walk("score"):
            method.score(state, self._wide(portion.gathered(portion.thetas())))

    def _pull_all(self, method: Method, step: Underway, holds: bool) -> None:
        """Remember where θ is, if a method asks for moves, and make the gradients that the optimizer reads."""
        remembers = "move" in method.wants
        if holds:
            for portion, state in self._walk("enter"):
                theta = portion.gathered(portion.thetas(), copy=remembers)
                own = self._wide(portion.gathered(self._of(portion, step.own)))
                with_it = pulled(method, step.beyond, state, self._wide(theta), own)
                portion.written(with_it, self._of(portion, step.given))
                if remembers:
                    step.before.append(theta)
            return
        for own, given in zip(step.own, step.given, strict=bool(step.given)):
            given.copy_(own)
        if remembers:
            step.before = [each.gathered(each.thetas(), copy=True) for each in self._portions]

    def _finish_all(self, method: Method, step: Underway, lr: float, late: bool, beyond: float | None) -> None:
        """After the optimizer's step."""
        for k, (portion, state) in enumerate(self._walk("leave")):
            if step.again is not None:
                self._take_out(step, k, portion, state)
            if late:
                near = self._wide(portion.gathered(portion.thetas()))
                step_late(method, beyond, state, near, lr)
                portion.written(near, portion.thetas())
            if method.wants:
                self._observe(method, step, k, portion, state)

    def _observe(self, method: Method, step: Underway, k: int, portion: Portion, state: State) -> None:
        gradient = move = square = self._wide(portion.gathered(self._of(portion, step.own)))
        if "move" in method.wants:
            move = self._wide(portion.gathered(portion.thetas())) - self._wide(step.before[k])
            step.before[k] = move[:, :0]  # its room is free
        if "square" in method.wants:
            square = gradient * gradient
        method.observe(state, gradient, move, square)

    # ── gradients, given and taken back ───────────────────────────────────────────────────────────────────────

    def _make_room(self, step: Underway, in_place: bool) -> None:
        """For what the optimizer reads; sharded gradients cannot be exchanged for others."""
        thetas = [local(parameter.detach()) for parameter in self._parameters]
        pairs = zip(step.own, thetas, strict=True)
        alike = all(own.stride() == theta.stride() and own.dtype.itemsize >= 4 for own, theta in pairs)
        if self._sharded and not (in_place and alike):
            step.saved = [each.clone() for each in step.own]
        step.given = step.own if self._sharded or (in_place and alike) else list(map(torch.empty_like, thetas))

    def _take_all_out(self, step: Underway) -> None:
        """The pull, of all gradients that it is still in."""
        for k, (portion, state) in enumerate(self._walk("enter")):
            if step.out <= k < len(step.before):
                self._take_out(step, k, portion, state)

    def _take_out(self, step: Underway, k: int, portion: Portion, state: State) -> None:
        """The pull, of gradients that it was added to."""
        assert step.again is not None
        given = self._of(portion, step.own)
        pulled = self._wide(portion.gathered(given))
        pull = step.again(state, self._wide(step.before[k]), torch.zeros_like(pulled))
        portion.written(pulled - pull, given)
        step.out = k + 1

    # ── portions ──────────────────────────────────────────────────────────────────────────────────────────────

    def _walk(self, moment: str) -> Lent:
        """Each portion with its state; what was changed in that is kept before the next one's turn."""
        names, asked = self._asked.get(moment, ()), set[str]()
        self._carrier.begin()
        coming: Coming | None = self._carrier.ahead(self._portions[0], names)
        for portion, following in zip(self._portions, [*self._portions[1:], None], strict=True):
            came = coming
            coming = None if following is None else self._carrier.ahead(following, names)
            fetched = self._carrier.arrived(came)
            kept = frozenset(portion.storage.kept)
            state = Borrowed(kept, lambda name: portion.taken(name, fetched.get(name)))  # noqa: B023 - used at once
            yield portion, cast(State, state)
            asked |= state.asked
            for name, vector in state.changed().items():
                if name not in kept:
                    raise InputError(f"a method may make vectors in start and consolidate, not {name!r} in a step")
                self._carrier.back(portion, name, portion.coded(name, vector))
        self._carrier.end()
        self._asked[moment] = tuple(sorted(asked))

    def _of(self, portion: Portion, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Those of a portion's spans, of tensors in the order of the parameters."""
        return [tensors[self._at[id(storage)]] for storage, _ in portion.spans]
