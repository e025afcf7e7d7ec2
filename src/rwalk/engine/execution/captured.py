"""A step on CUDA as a captured graph; the walk as one kernel and the gradient as one program where that pays."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from rwalk import private_torch
from rwalk.engine import walk
from rwalk.engine.execution import recorded
from rwalk.engine.execution.eager import Eager
from rwalk.engine.execution.inputs import Inputs
from rwalk.engine.execution.plan import FAILED, Plan
from rwalk.engine.graphs import Graphed
from rwalk.programs import Programs, fused

if TYPE_CHECKING:
    from rwalk.engine.fleet import Fleet


class Captured(Eager):
    """The whole step where nothing in it needs the host; otherwise the gradients alone."""

    name: ClassVar[str] = "captured"

    def __init__(self, fleet: Fleet, plan: Plan) -> None:
        super().__init__(fleet)
        self.programs = Programs("the network", plan.warn)
        self.plain_gradients = self.by_program if plan.gradient else self.by_autograd
        self.plain_constraint = self.constraint
        self.whole = fleet.learner.projector is None and not fleet.learner.method.observes_examples
        self.score = walk.score
        self._step: Callable[..., Any]
        self._windows: list[Callable[[], Any]]  # of each walker
        if plan.compiled:
            self.walk, self.score = _kernel(walk.step), _kernel(walk.score)

    def begin_task(self) -> None:
        """Consolidation replaces vectors, so every task is captured again."""
        super().begin_task()
        self.gradients = self.plain_gradients
        self._windows = [partial(self.score_window, each, self.score) for each in self.fleet.walkers]
        if self.whole:
            self._step, self._windows = Graphed(super().step), [Graphed(each) for each in self._windows]
        else:
            self.gradients, self.constraint = Graphed(self.plain_gradients), Graphed(self.plain_constraint)
            self._step = super().step

    def step(self, *batch: Tensor) -> Tensor:
        losses: Tensor = self._step(*batch)
        return losses

    def close_window(self, walker: int) -> None:
        self._windows[walker]()

    def by_program(self, *batch: Tensor) -> tuple[Tensor, ...]:
        """Losses and gradients from one compiled program, or by autograd where the network cannot be compiled."""
        inputs = self.inputs.of(*batch)
        self.names = tuple(inputs)
        arguments = (*inputs.values(), *self.fleet.net.own_buffers, self.fleet.theta)
        program = self.programs.of((inputs["x"].shape, self.names), self._gradient, *arguments)
        if self.programs.compiler_failed:
            self.fleet.plan = self.fleet.plan._replace(lacks=FAILED)
        return self.differentiated(inputs) if program is None else tuple(program(*arguments))

    def _gradient(self, *arguments: Tensor) -> tuple[Tensor, ...]:
        """What is recorded."""
        net = self.fleet.net
        inputs: Inputs = dict(zip(self.names, arguments, strict=False))
        *buffers, theta = arguments[len(self.names) :]
        losses, pieces = recorded.gradient(self.fleet, inputs, buffers, net.layout.split(theta))
        return losses, torch.cat(pieces, dim=1)


def _kernel(function: walk.Function) -> walk.Function:
    """An update compiled for fleets of any width."""
    # Every method is one variant before its first consolidation and another after it. The limit is per process.
    private_torch.allow_variants(64)
    return fused(function)
