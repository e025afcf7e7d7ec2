"""A guard's step on a CPU as compiled programs: one pass over memory before the optimizer's step, one after it.

Operation by operation, the arithmetic of a step reads and writes each vector several times, and around a small
model that takes as long as a good part of the step itself. Compiled, every number is read once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rwalk.guard.state.parameter import Piece
from rwalk.guard.state.sharded import is_sharded
from rwalk.guard.step.executor import Pack, keep
from rwalk.guard.step.tensor_list import apart
from rwalk.methods.base import Method, State
from rwalk.programs import Programs

# Steps × numbers from which compiling is worth the seconds it takes, of a model whose step a guard is a good part
# of; more numbers than LARGE gain no more of a step's time, for more of it is the model's own.
WORTH_COMPILING = 4_000_000_000
LARGE = 260_000
MOST_TENSORS = 64  # each has a loop of its own in the program


class Facts(NamedTuple):
    """What the choice depends on."""

    asked: bool | None
    ours: bool  # a method of this package: in one of the user's own anything may change from step to step
    tensors: int
    numbers: int
    steps: int  # observed so far


def is_worth_it(facts: Facts, compiler_works: Callable[[], bool]) -> bool:
    """Whether steps are compiled from now on: where that was asked for and can be, or where it repays its time."""
    if facts.asked is False or not facts.ours or facts.tensors > MOST_TENSORS:
        return False
    worth = facts.steps * min(facts.numbers, LARGE) >= WORTH_COMPILING
    return (worth or facts.asked is True) and compiler_works()


def is_possible(piece: Piece) -> bool:
    """Whether the numbers of a parameter lie where the equations are worked out, and as they want them."""
    parameter, storage = piece.parameter, piece.storage
    return not is_sharded(parameter) and parameter.dtype == storage.worked_in == storage.stored_as


class CompiledPack(Pack):
    """All parameters of a kind. What no program is made for is done operation by operation, as ever."""

    def __init__(self, pieces: Sequence[Piece], programs: Programs) -> None:
        self._lasting: list[Tensor] | None = None
        self._ready: dict[tuple[str, Method], Callable[..., object] | None] = {}
        super().__init__(pieces)
        self._programs = programs
        self._names = tuple(self._state)
        self._kinds = tuple((each.shape, each.stride(), each.dtype) for each in apart(self._theta))
        self._strides = [parameter.stride() for parameter in self._parameters]

    def score(self, method: Method) -> None:
        def score(theta: Tensor, grad: Tensor, negated: Tensor, pulled: Tensor, state: State) -> None:
            method.score(state, theta)

        if not self._run("score", method, score, self._theta):
            super().score(method)

    def _prepared(self, method: Method, own: Any, followed: float | None, holds: bool) -> tuple[Any, Any]:
        def prepare(theta: Tensor, grad: Tensor, negated: Tensor, pulled: Tensor, state: State) -> None:
            if "move" in method.wants:
                torch.neg(theta, out=negated)
            if holds:
                method.pull(state, theta, grad, out=pulled)

        needed = followed is None and (holds or "move" in method.wants)
        if not (needed and self._run("prepare", method, prepare, own)):
            return super()._prepared(method, own, followed, holds)
        return self._room("before"), self._room("pulled") if holds else None

    def _observe(self, method: Method, own: Any, negated: Any) -> None:
        def observe(theta: Tensor, grad: Tensor, negated: Tensor, pulled: Tensor, state: State) -> None:
            move = negated + theta if "move" in method.wants else grad
            method.observe(state, grad, move, grad * grad)

        if not self._run("observe", method, observe, own):
            super()._observe(method, own, negated)

    def _run(self, moment: str, method: Method, function: Callable[..., None], own: Any) -> bool:
        """Do this to every parameter, if a program can."""
        gradients = apart(own)
        if any(each.stride() != stride for each, stride in zip(gradients, self._strides, strict=True)):
            return False
        if (moment, method) not in self._ready:
            self._ready[moment, method] = self._program(moment, method, function, gradients)
        program = self._ready[moment, method]
        if program is not None:
            program(*self._arguments(gradients))
        return program is not None

    def _program(
        self, moment: str, method: Method, function: Callable[..., None], gradients: Sequence[Tensor]
    ) -> Callable[..., object] | None:
        count, names = len(gradients), self._names

        def everything(*tensors: Tensor) -> tuple[()]:
            for i in range(count):
                grad, theta, negated, pulled, *vectors = tensors[i::count]
                kept = dict(zip(names, vectors, strict=True))
                state = dict(kept)
                function(theta, grad, negated, pulled, state)
                keep(state, kept)
            return ()

        return self._programs.of((moment, method, names, self._kinds), everything, *self._arguments(gradients))

    def _arguments(self, gradients: Sequence[Tensor]) -> list[Tensor]:
        """Of a program: those that change from step to step come first."""
        if self._lasting is None:
            columns = (self._theta, self._room("before"), self._room("pulled"), *self._state.values())
            self._lasting = [tensor for column in columns for tensor in apart(column)]
        return [*gradients, *self._lasting]

    def _look_again(self) -> None:
        super()._look_again()
        self._lasting = None
