"""A step on a CPU as one compiled program: each gradient is used while it is in the cache."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from rwalk.compiled_programs import Function, Programs
from rwalk.engine.choose_execution import FAILED, ExecutionPlan
from rwalk.engine.eager_step import Eager, Inputs, StepInputs, pure_gradient
from rwalk.engine.method_groups import chunks, tensors, update, with_tensors
from rwalk.engine.optimizers import OPTIMIZERS
from rwalk.parts import stack

if TYPE_CHECKING:
    from rwalk.engine.fleet import Fleet


class Compiled:
    """Records the whole step once (forward, backward, optimizer, penalty, observation) and compiles it.

    There is one chunk per parameter, as the gradients arrive. If a network cannot be recorded, the fleet continues
    eagerly.
    """

    name: ClassVar[str] = "compiled"

    def __init__(self, fleet: Fleet, plan: ExecutionPlan) -> None:
        self.fleet = fleet
        self.programs = Programs("the network", plan.warn)

    def begin_task(self) -> None:
        fleet = self.fleet
        (self.group,) = fleet.method_groups
        self.group.state = dict(sorted(self.group.state.items()))
        self.inputs = StepInputs(fleet)
        self.chunks = chunks(self.group, fleet.theta, fleet.optimizer, fleet.net.layout.sizes, scratch=False)
        self.held = (*fleet.net.own_buffers, *tensors(self.chunks))

    def end_task(self) -> None:
        self.chunks, self.held = [], ()  # views of vectors that consolidation replaces

    def step(self, *batch: Tensor) -> Tensor:
        inputs = self.inputs.of(*batch)
        self.names = tuple(inputs)
        arguments = (*inputs.values(), *self.held)
        program = self._program((inputs["x"].shape, self.names, *self.group.state), self._step, arguments)
        if program is None:
            return self._continue_eagerly().step(*batch)
        self.fleet.optimizer.tick()
        (losses,) = program(*arguments)
        return losses

    def close_window(self, number: int) -> None:
        theta, state = self.fleet.theta, self.group.state
        vectors = (theta, *state.values())
        program = self._program(("window", *state), self._window, vectors)
        if program is None:
            self.group.method.score(state, theta)
        else:
            program(*vectors)

    def _program(self, key: tuple[object, ...], function: Function, given: tuple[Tensor, ...]) -> Function | None:
        program = self.programs.of(key, function, *given)
        if self.programs.compiler_failed:
            self.fleet.execution_plan = self.fleet.execution_plan._replace(lacks=FAILED)
        return program

    def _step(self, *arguments: Tensor) -> tuple[Tensor, ...]:
        """The recorded function of a step."""
        fleet, layout, given = self.fleet, self.fleet.net.layout, len(self.names)
        inputs: Inputs = dict(zip(self.names, arguments[:given], strict=True))
        held = arguments[given:]
        buffers, vectors = held[: len(fleet.net.buffers)], held[len(fleet.net.buffers) :]
        chunks = with_tensors(self.chunks, vectors)
        parameters = {
            name: chunk.theta.view(fleet.runs, *shape)
            for name, shape, chunk in zip(layout.names, layout.shapes, chunks, strict=True)
        }
        losses, pieces = pure_gradient(fleet, inputs, list(buffers), parameters)
        with torch.no_grad():
            for chunk, piece in zip(chunks, pieces, strict=True):
                update(self.group.method, fleet.optimizer, chunk, piece, None)
        return (losses,)

    def _window(self, theta: Tensor, *vectors: Tensor) -> tuple[Tensor, ...]:
        """The recorded function of a window's end."""
        self.group.method.score(dict(zip(self.group.state, vectors, strict=True)), theta)
        return ()

    def _continue_eagerly(self) -> Eager:
        """Exactly as if it had been eager from the start: plain hyper-parameters, and torch's own optimizer."""
        fleet = self.fleet
        self.group.method = stack([each.method for each in fleet.learners], fleet.theta)
        moments = fleet.optimizer.state
        fleet.optimizer = OPTIMIZERS[fleet.training.optimizer](fleet.theta, fleet.training.lr)
        fleet.optimizer.state = moments
        fleet.execution = eager = Eager(fleet)
        eager.begin_task()
        return eager
