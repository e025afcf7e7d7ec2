"""A step on CUDA as a captured graph; its update as one kernel and its gradient as one program where that pays."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from rwalk import private_torch
from rwalk.compiled_programs import Programs, fused
from rwalk.engine.choose_execution import FAILED, ExecutionPlan
from rwalk.engine.eager_step import Eager, Inputs, pure_gradient
from rwalk.engine.method_groups import score, update
from rwalk.gc_pause import gc_paused

if TYPE_CHECKING:
    from rwalk.engine.fleet import Fleet

Tensors = Tensor | tuple[Tensor, ...] | None


class Captured(Eager):
    """Captures the whole step if nothing in it needs the host; otherwise the gradients alone."""

    name: ClassVar[str] = "captured"

    def __init__(self, fleet: Fleet, plan: ExecutionPlan) -> None:
        super().__init__(fleet)
        self.programs = Programs("the network", plan.warn)
        self.plain_gradients = self.gradients_by_program if plan.gradient else self.gradients_by_autograd
        self.plain_constraint = self.constraint
        self.whole = fleet.learner.projector is None and not fleet.learner.method.observes_examples
        self._step: Callable[..., Any]
        self._windows: list[Callable[[], Any]]  # of each method group
        if plan.compiled:
            # Every method has one variant before its first consolidation and one after it.
            private_torch.allow_variants(64)
            self.update, self.score = fused(update), fused(score)

    def begin_task(self) -> None:
        """Consolidation replaces vectors, so every task is captured again."""
        super().begin_task()
        self.gradients = self.plain_gradients
        self._windows = [partial(super(Captured, self).close_window, n) for n in range(len(self.chunks))]
        if self.whole:
            self._step, self._windows = Graphed(super().step), [Graphed(each) for each in self._windows]
        else:
            self.gradients, self.constraint = Graphed(self.plain_gradients), Graphed(self.plain_constraint)
            self._step = super().step

    def step(self, *batch: Tensor) -> Tensor:
        losses: Tensor = self._step(*batch)
        return losses

    def close_window(self, number: int) -> None:
        self._windows[number]()

    def gradients_by_program(self, *batch: Tensor) -> tuple[Tensor, ...]:
        """Losses and gradients from one compiled program, or by autograd if the network cannot be compiled."""
        inputs = self.inputs.of(*batch)
        self.names = tuple(inputs)
        arguments = (*inputs.values(), *self.fleet.net.own_buffers, self.fleet.theta)
        program = self.programs.of((inputs["x"].shape, self.names), self._gradient, *arguments)
        if self.programs.compiler_failed:
            self.fleet.execution_plan = self.fleet.execution_plan._replace(lacks=FAILED)
        return self.differentiate(inputs) if program is None else tuple(program(*arguments))

    def _gradient(self, *arguments: Tensor) -> tuple[Tensor, ...]:
        """The recorded function."""
        inputs: Inputs = dict(zip(self.names, arguments, strict=False))
        *buffers, theta = arguments[len(self.names) :]
        losses, pieces = pure_gradient(self.fleet, inputs, buffers, self.fleet.net.layout.split(theta))
        return losses, torch.cat(pieces, dim=1)


class Graphed:
    """A function of tensors as captured CUDA graphs, one for every shape of its inputs.

    The first calls with a shape run normally, the rest replay. The warm-up consists of real calls, so that the
    training stays exact; capturing executes nothing.
    """

    warm_up = 3

    def __init__(self, function: Callable[..., Tensors]) -> None:
        self.function = function
        self.calls: dict[Any, int] = {}
        self.captured: dict[Any, _Capture] = {}

    def __call__(self, *inputs: Tensor) -> Any:
        shapes = tuple(each.shape for each in inputs)
        self.calls[shapes] = self.calls.get(shapes, 0) + 1
        if self.calls[shapes] <= self.warm_up:
            side = _side_stream(torch.cuda.current_device())
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                result = self.function(*inputs)
            torch.cuda.current_stream().wait_stream(side)
            return result
        if shapes not in self.captured:
            self.captured[shapes] = _Capture(self.function, inputs)
        return self.captured[shapes](inputs)


@cache
def _side_stream(device: int) -> torch.cuda.Stream:
    """One stream for all captures: cuBLAS keeps a workspace for every stream that it has ever used."""
    return torch.cuda.Stream(device)


class _Capture:
    def __init__(self, function: Callable[..., Tensors], inputs: tuple[Tensor, ...]) -> None:
        self.inputs = [each.clone() for each in inputs]
        self.graph = torch.cuda.CUDAGraph()
        # Freeing a finished fleet's graph would spoil the capture in progress.
        with gc_paused(), torch.cuda.graph(self.graph):
            self.result = function(*self.inputs)

    def __call__(self, inputs: tuple[Tensor, ...]) -> Tensors:
        for static, each in zip(self.inputs, inputs, strict=True):
            static.copy_(each)
        self.graph.replay()
        if isinstance(self.result, tuple):
            return tuple(each.clone() for each in self.result)
        return None if self.result is None else self.result.clone()
