"""How a step is executed: operation by operation, as one compiled program, or as a captured CUDA graph.

All give the same training up to rounding; `plan.choose` says which one pays.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, ClassVar, Protocol

from torch import Tensor

from rwalk.engine import networks, walkers
from rwalk.engine.execution.plan import Facts, Plan, choose
from rwalk.programs import compiler_works

if TYPE_CHECKING:
    from rwalk.engine.fleet import Fleet

__all__ = ["Execution", "Plan", "choose", "executed", "made", "plan_of"]

logger = logging.getLogger(__name__)


class Execution(Protocol):
    """Executes the steps of a fleet."""

    name: ClassVar[str]

    def begin_task(self) -> None:
        """A task begins or is resumed: its vectors may be new tensors."""

    def step(self, *batch: Tensor) -> Tensor:
        """Gradient, projection, walk and observation: losses [R]."""

    def close_window(self, walker: int) -> None:
        """A walker's method scores a window of steps."""

    def end_task(self) -> None:
        """A task has ended: vectors are about to be replaced."""


def plan_of(fleet: Fleet, asked: bool | None) -> Plan:
    """What to compile for a fleet that is being built."""
    methods, kind = [each.method for each in fleet.learners], fleet.theta.device.type
    facts = Facts(
        cuda=fleet.theta.is_cuda,
        runs=fleet.theta.shape[0],
        parameters=fleet.theta.shape[1],
        steps=sum(fleet.learner.steps(fleet.training, fleet.stream, k) for k in range(len(fleet.stream))),
        observes=any(method.wants for method in methods),
        grows=any(method.grows for method in methods),
        one_gradient=fleet.learner.projector is None
        and fleet.learner.solver is None
        and not any(method.observes_examples for method in methods),
        gains_from_recording=networks.gains_from_recording(fleet.net.module),
        alike=len({walkers.kind(method) for method in methods}) == 1,
    )
    plan = choose(facts, asked, lambda: compiler_works("cuda" if kind == "cuda" else "cpu"))
    if asked and not plan.compiled:
        logger.warning("a step of several methods, or that takes more than one gradient, is not compiled on a CPU")
    return plan


def executed(fleet: Fleet) -> str:
    """How a fleet's steps are executed, and why not otherwise: rows record it, because rounding depends on it."""
    plan, parts = fleet.plan, [fleet.execution.name]
    if fleet.theta.is_cuda:
        parts += ["compiled walk"] * plan.compiled + ["compiled gradient"] * plan.gradient
    return ", ".join(parts) + (f" ({plan.lacks})" if plan.lacks else "")


def made(fleet: Fleet, plan: Plan) -> Execution:
    """The execution that a plan names; each kind is imported only where it is used."""
    if fleet.learner.solver is not None:
        from rwalk.engine.execution.solved import Solved

        return Solved(fleet)
    if fleet.theta.is_cuda:
        from rwalk.engine.execution.captured import Captured

        return Captured(fleet, plan)
    if plan.compiled:
        from rwalk.engine.execution.compiled import Compiled

        return Compiled(fleet, plan)
    from rwalk.engine.execution.eager import Eager

    return Eager(fleet)
