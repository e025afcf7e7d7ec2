"""A step of parameters whose state is kept in codes, on a GPU: two kernels, which decode and code on the way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import cast

import torch
from torch import Tensor

from rwalk.guard.state import codec as codes
from rwalk.guard.state.codec import Floats, Places
from rwalk.guard.state.parameter import Piece
from rwalk.guard.state.quantized import LentStorage
from rwalk.guard.step import generated as fusion
from rwalk.guard.step import triton as kernels
from rwalk.guard.step.chunked import LentPack, Underway
from rwalk.guard.step.generated import Equations, Fusion, Kept, Vectors
from rwalk.guard.step.penalty import pulled, step_late
from rwalk.guard.step.triton import Coded, Listed
from rwalk.methods.base import Method, State


def is_possible(pieces: Sequence[Piece], method: Method) -> bool:
    """Whether kernels can be made for these: what is kept on the host comes and goes in portions instead."""
    storages = [cast(LentStorage, piece.storage) for piece in pieces]
    return (
        storages[0].home.type == "cuda"
        and kernels.there_is_triton()
        and all(each.place == each.home and each.is_in_a_row for each in storages)
        and storages[0].parameter.dtype == torch.float32
        and fusion.can_be_written(method, tuple(pieces[0].state))
    )


class FusedLentPack(LentPack):
    """All parameters of a kind. What no kernel fits is done portion by portion, as ever."""

    def __init__(self, pieces: Sequence[Piece]) -> None:
        super().__init__(pieces)
        self._marks = [storage.mark for storage in self._storages]
        self._thetas = [parameter.detach() for parameter in self._parameters]
        names = [codes.number(storage.name) for storage in self._storages]
        kept = {name: self._kept(name) for name in self._storages[0].kept}
        self._fusion = Fusion(self._thetas, kept, [codes.wrapped(number) for number in names])

    def _kept(self, name: str) -> Kept:
        columns = list(zip(*(storage.kept[name] for storage in self._storages), strict=True))
        kinds = [column[0].dtype for column in columns]
        code = self._storages[0].code(name)
        if isinstance(code, Floats | Places):
            return Kept(partial(Coded, code=code, kept_in=tuple(kinds)), columns)
        return Kept(partial(Listed, "lasting", dtype=kinds[0]), columns)

    def is_current(self) -> bool:
        marks = [storage.mark for storage in self._storages]
        pairs = zip(self._parameters, self._thetas, strict=True)
        lie_there = all(parameter.data_ptr() == theta.data_ptr() for parameter, theta in pairs)
        return lie_there and marks == self._marks and super().is_current()

    def score(self, method: Method) -> None:
        def equations(at: Vectors, state: State) -> None:
            method.score(state, at("theta"))

        if not self._run(("score", method), equations, {}):
            super().score(method)

    def _pull_all(self, method: Method, step: Underway, holds: bool) -> None:
        remembers = "move" in method.wants
        flats = {"before": self._fusion.flat(torch.float32)} if remembers else {}
        passing = {"grad": step.own} if holds else {}
        if holds and step.given is not step.own:
            passing["given"] = step.given

        def equations(at: Vectors, state: State) -> None:
            if remembers:
                at("before").copy_(at("theta"))
            if holds:
                given = at("given" if "given" in passing else "grad")
                given.copy_(pulled(method, step.beyond, state, at("theta"), at("grad")))

        needed = holds or (remembers and not step.given)
        if not (needed and self._run(("enter", method, step.beyond, *passing), equations, passing, flats)):
            super()._pull_all(method, step, holds)
        elif remembers:
            step.before = [flats["before"]]

    def _finish_all(self, method: Method, step: Underway, lr: float, late: bool, beyond: float | None) -> None:
        flats = {"before": step.before[0]} if self._is_flat(step) else {}
        taken_out = step.again is not None

        def equations(at: Vectors, state: State) -> None:
            gradient = at("grad")
            if taken_out:
                gradient.sub_(pulled(method, step.beyond, state, at("before"), torch.zeros_like(gradient)))
            if late:
                step_late(method, beyond, state, at("theta"), lr)
            if method.wants:
                move = at("theta") - at("before") if flats else gradient
                method.observe(state, gradient, move, gradient * gradient)

        key = "leave", method, step.beyond, taken_out, late, beyond, lr
        by_kernel = bool(flats) == ("move" in method.wants)
        if not (by_kernel and self._run(key, equations, {"grad": step.own}, flats)):
            self._in_portions(step)
            super()._finish_all(method, step, lr, late, beyond)

    def _take_all_out(self, step: Underway) -> None:
        self._in_portions(step)
        super()._take_all_out(step)

    def _run(
        self,
        key: object,
        equations: Equations,
        passing: Mapping[str, Sequence[Tensor]],
        flats: Mapping[str, Tensor] | None = None,
    ) -> bool:
        moment = self._storages[0].lending.moment()
        return self._fusion.fits(*passing.values()) and self._fusion.run(
            key, equations, passing, flats, lambda name: codes.moved(name, moment)
        )

    def _is_flat(self, step: Underway) -> bool:
        return len(step.before) == 1 and step.before[0].dim() == 1

    def _in_portions(self, step: Underway) -> None:
        """θ before the step, as portions have it."""
        if self._is_flat(step):
            whole = self._fusion.shaped(step.before[0])
            step.before = [each.gathered(self._of(each, whole), copy=True) for each in self._portions]
