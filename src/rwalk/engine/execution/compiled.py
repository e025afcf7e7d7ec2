"""A step on a CPU as one compiled program: the walk finds each gradient still in the cache."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from rwalk.engine import walk
from rwalk.engine.execution import recorded
from rwalk.engine.execution.eager import Eager
from rwalk.engine.execution.inputs import Inputs, StepInputs
from rwalk.engine.execution.plan import FAILED, Plan
from rwalk.engine.optimizer import OPTIMIZERS
from rwalk.parts import stack
from rwalk.programs import Programs

if TYPE_CHECKING:
    from rwalk.engine.fleet import Fleet


class Compiled:
    """Forward, backward, optimizer, pull and observation, recorded once and compiled.

    One part per parameter, as the gradients arrive. If a network cannot be recorded, the fleet continues eagerly.
    """

    name: ClassVar[str] = "compiled"

    def __init__(self, fleet: Fleet, plan: Plan) -> None:
        self.fleet = fleet
        self.programs = Programs("the network", plan.warn)

    def begin_task(self) -> None:
        fleet = self.fleet
        (self.walker,) = fleet.walkers
        self.walker.state = dict(sorted(self.walker.state.items()))
        self.inputs = StepInputs(fleet)
        sizes = fleet.net.layout.sizes
        self.parts = walk.cut(fleet.theta, fleet.optimizer.state, self.walker, sizes, scratch=False)
        self.held = (*fleet.net.own_buffers, *walk.tensors(self.parts))

    def end_task(self) -> None:
        self.parts, self.held = [], ()  # views of vectors that consolidation replaces

    def step(self, *batch: Tensor) -> Tensor:
        inputs = self.inputs.of(*batch)
        self.names = tuple(inputs)
        arguments = (*inputs.values(), *self.held)
        program = self.programs.of((inputs["x"].shape, self.names, *self.walker.state), self._step, *arguments)
        self._note_failure()
        if program is None:
            return self._go_on_eagerly().step(*batch)
        self.fleet.optimizer.tick()
        (losses,) = program(*arguments)
        return losses

    def close_window(self, walker: int) -> None:
        theta, state = self.fleet.theta, self.walker.state
        vectors = (theta, *state.values())
        program = self.programs.of(("window", *state), self._window, *vectors)
        self._note_failure()
        if program is None:
            self.walker.method.score(state, theta)
        else:
            program(*vectors)

    def _step(self, *arguments: Tensor) -> tuple[Tensor, ...]:
        """What is recorded."""
        fleet, layout = self.fleet, self.fleet.net.layout
        given, held = arguments[: len(self.names)], arguments[len(self.names) :]
        inputs: Inputs = dict(zip(self.names, given, strict=True))
        buffers, vectors = held[: len(fleet.net.buffers)], held[len(fleet.net.buffers) :]
        parts = walk.filled(self.parts, vectors)
        parameters = {
            name: part.theta.view(fleet.runs, *shape)
            for name, shape, part in zip(layout.names, layout.shapes, parts, strict=True)
        }
        losses, pieces = recorded.gradient(fleet, inputs, buffers, parameters)
        with torch.no_grad():
            for part, piece in zip(parts, pieces, strict=True):
                walk.step(self.walker.method, fleet.optimizer, part, piece, None)
        return (losses,)

    def _window(self, theta: Tensor, *vectors: Tensor) -> tuple[Tensor, ...]:
        self.walker.method.score(dict(zip(self.walker.state, vectors, strict=True)), theta)
        return ()

    def _note_failure(self) -> None:
        if self.programs.compiler_failed:
            self.fleet.plan = self.fleet.plan._replace(lacks=FAILED)

    def _go_on_eagerly(self) -> Eager:
        """Exactly as if it had been eager from the start: plain hyper-parameters, and torch's own optimizer."""
        fleet = self.fleet
        self.walker.method = stack([each.method for each in fleet.learners], fleet.theta)
        moments = fleet.optimizer.state
        fleet.optimizer = OPTIMIZERS[fleet.training.optimizer](fleet.theta, fleet.training.lr)
        fleet.optimizer.state = moments
        eager = Eager(fleet)
        fleet.execution = eager
        eager.begin_task()
        return eager
