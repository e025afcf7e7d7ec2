"""A guard's step on a GPU as two kernels, one before the optimizer's step and one after it.

Operation by operation, the arithmetic of a step reads and writes each vector several times, in a few dozen kernels
that the host has to launch. Here one kernel does all equations to all parameters, and reads each number once.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rwalk.guard.state.parameter import Piece
from rwalk.guard.step import generated as fusion
from rwalk.guard.step import triton as kernels
from rwalk.guard.step.executor import Pack, Underway
from rwalk.guard.step.generated import Fusion, Kept, Vectors
from rwalk.guard.step.penalty import pulled, step_late
from rwalk.guard.step.tensor_list import apart, together
from rwalk.guard.step.triton import Listed
from rwalk.methods.base import Method, State


class _Flat(NamedTuple):
    """−θ before the step, of all parameters in a row."""

    vector: Tensor


def is_possible(pieces: Sequence[Piece], method: Method) -> bool:
    """Whether kernels can be made for these parameters: on CUDA, with Triton, in the precision they compute in."""
    storage = pieces[0].storage
    return (
        storage.home.type == "cuda"
        and kernels.there_is_triton()
        and storage.worked_in == torch.float32
        and fusion.can_be_written(method, tuple(pieces[0].state))
    )


class FusedPack(Pack):
    """All parameters of a kind. What no kernel fits is done operation by operation, as ever."""

    def score(self, method: Method) -> None:
        def equations(at: Vectors, state: State) -> None:
            method.score(state, at("theta"))

        if not (self._fits() and self._fusion.run(("score", method), equations)):
            super().score(method)

    def _prepared(self, method: Method, own: Any, followed: float | None, holds: bool) -> tuple[Any, Any]:
        remembers = "move" in method.wants
        gradients = apart(own)
        if not (holds or remembers) or not self._fits(gradients):
            return super()._prepared(method, own, followed, holds)
        flats = {}
        if remembers:
            flats["before"] = self._fusion.flat(apart(self._theta)[0].dtype)
        if holds:
            flats["pulled"] = self._fusion.flat(gradients[0].dtype)

        def equations(at: Vectors, state: State) -> None:
            if remembers:
                at("before").copy_(-at("theta"))
            if holds:
                at("pulled").copy_(pulled(method, followed, state, at("theta"), at("grad")))

        key = "prepare", method, followed, holds
        if not self._fusion.run(key, equations, {"grad": gradients}, flats):
            return super()._prepared(method, own, followed, holds)
        return (
            _Flat(flats["before"]) if remembers else None,
            together(self._fusion.shaped(flats["pulled"])) if holds else None,
        )

    def _finish(self, method: Method, step: Underway, lr: float) -> None:
        gradients, negated = apart(step.own), step.negated
        flat = {"before": negated.vector} if isinstance(negated, _Flat) else {}
        if not self._fits(gradients) or bool(flat) != ("move" in method.wants):
            step.negated = self._shaped(negated)
            super()._finish(method, step, lr)
            return
        proximal = method.penalty == "proximal" and bool(method.springs(self._state))
        late = proximal or step.beyond is not None
        beyond = None if proximal else step.beyond

        def pull(at: Vectors, state: State) -> None:
            step_late(method, beyond, state, at("theta"), lr)

        def observe(at: Vectors, state: State) -> None:
            gradient = at("grad")
            move = at("before") + at("theta") if flat else gradient
            method.observe(state, gradient, move, gradient * gradient)

        if late and not self._fusion.run(("late", method, beyond, lr), pull):
            self._take_proximal_step(method, lr, beyond)
        if method.wants and not self._fusion.run(("observe", method), observe, {"grad": gradients}, flat):
            self._observe(method, step.own, self._shaped(negated))

    def _shaped(self, negated: Any) -> Any:
        return together(self._fusion.shaped(negated.vector)) if isinstance(negated, _Flat) else negated

    def _look_again(self) -> None:
        super()._look_again()
        thetas = apart(self._theta)
        vectors = {name: apart(vector) for name, vector in self._state.items()}
        self._alike = fusion.lie_alike(thetas, *vectors.values())
        kept = {
            name: Kept(partial(Listed, "lasting", dtype=tensors[0].dtype), [tensors])
            for name, tensors in vectors.items()
        }
        self._fusion = Fusion(thetas, kept, [0] * len(thetas))

    def _fits(self, *gradients: Sequence[Tensor]) -> bool:
        return self._alike and self._fusion.fits(*gradients)
