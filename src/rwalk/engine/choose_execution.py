"""How a fleet's steps are executed: operation by operation, as one compiled program, or as a captured CUDA graph.

All give the same training up to rounding; `choose` takes the one that repays its compilation. On a CPU the choice
depends on the run alone, so that its result does not depend, to the bit, on other runs.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar, NamedTuple, Protocol

from torch import Tensor

from rwalk.compiled_programs import compiler_works
from rwalk.engine import architectures
from rwalk.engine.method_groups import kind

if TYPE_CHECKING:
    from rwalk.engine.fleet import Fleet

logger = logging.getLogger(__name__)

# Steps from which a CPU's steps are compiled, for a method that observes them (True) and one that does not, with a
# network as large as the paper's MLP. They then gain twice the time that compiling takes once it is cached.
WORTH_COMPILING = {True: 5_000, False: 10_000}
LARGE = 260_000  # parameters; smaller networks gain less, and more layers take longer to compile
WORTH_FUSING = 3e11  # steps × parameters of all runs on CUDA from which the update is compiled
WORTH_RECORDING = 50_000  # steps × runs on CUDA from which the gradient is compiled

NO_COMPILER, FAILED = "no working compiler", "the compiler failed"


class Execution(Protocol):
    """Executes the steps of a fleet."""

    name: ClassVar[str]

    def begin_task(self) -> None:
        """Begin or resume a task: its vectors may be new tensors."""

    def step(self, *batch: Tensor) -> Tensor:
        """Compute the gradient, project it, and update θ; losses [R]."""

    def close_window(self, number: int) -> None:
        """Let the method of a group score a window of steps."""

    def end_task(self) -> None:
        """End a task: vectors are about to be replaced."""


class Facts(NamedTuple):
    """The facts that the choice depends on."""

    cuda: bool
    runs: int
    parameters: int
    steps: int  # over all tasks
    observes: bool  # the method observes every step
    grows: bool  # the penalty gets new terms with every task, so every task would be compiled again
    one_gradient: bool  # a step needs only the gradient of one loss
    gains_from_recording: bool  # the network's gradient is faster as one program, on CUDA
    alike: bool = True  # all runs have the same kind of method


class ExecutionPlan(NamedTuple):
    """The parts of a step that are compiled.

    compiled  on a CPU the whole step, as one program; on CUDA the update, as one kernel
    gradient  on CUDA the gradient
    warn      whether to warn if compiling fails, because the user required it
    lacks     the reason why a step that should be compiled is not: results then differ by rounding
    """

    compiled: bool = False
    gradient: bool = False
    warn: bool = False
    lacks: str = ""


def choose(facts: Facts, fuse: bool | None, compiler_works: Callable[[], bool]) -> ExecutionPlan:
    """What to compile: as `fuse` requires, where possible; by default what repays the time it takes."""
    possible = facts.cuda or (facts.one_gradient and facts.alike)
    if fuse is not None:
        return ExecutionPlan(fuse and possible, gradient=fuse and facts.gains_from_recording, warn=fuse)
    if facts.cuda:
        steps = facts.steps * facts.runs
        gradient = facts.gains_from_recording and steps >= WORTH_RECORDING
        compiled = not facts.grows and steps * facts.parameters >= WORTH_FUSING
    else:
        weight = min(1.0, facts.parameters / LARGE)
        worth = facts.runs == 1 and facts.steps * weight >= WORTH_COMPILING[facts.observes]
        gradient, compiled = False, possible and not facts.grows and worth
    if (gradient or compiled) and not compiler_works():
        return ExecutionPlan(lacks=NO_COMPILER)
    return ExecutionPlan(compiled, gradient)


def execution_plan(fleet: Fleet, fuse: bool | None) -> ExecutionPlan:
    """The plan of a fleet that is being built."""
    methods, learner = [each.method for each in fleet.learners], fleet.learner
    examples = any(method.observes_examples for method in methods)
    facts = Facts(
        cuda=fleet.theta.is_cuda,
        runs=fleet.theta.shape[0],
        parameters=fleet.theta.shape[1],
        steps=sum(learner.steps(fleet.training, fleet.stream, k) for k in range(len(fleet.stream))),
        observes=any(method.wants for method in methods),
        grows=any(method.grows for method in methods),
        one_gradient=learner.projector is None and learner.solver is None and not examples,
        gains_from_recording=architectures.gains_from_recording(fleet.net.module),
        alike=len({kind(method) for method in methods}) == 1,
    )
    plan = choose(facts, fuse, lambda: compiler_works("cuda" if fleet.theta.is_cuda else "cpu"))
    if fuse and not plan.compiled:
        logger.warning("a step of several methods, or that takes more than one gradient, is not compiled on a CPU")
    return plan


def execution_of(fleet: Fleet, plan: ExecutionPlan) -> Execution:
    """The execution that a plan names; each kind is imported only where it is used."""
    if fleet.learner.solver is not None:
        from rwalk.engine.solver_step import Solved

        return Solved(fleet)
    if fleet.theta.is_cuda:
        from rwalk.engine.cuda_graph_step import Captured

        return Captured(fleet, plan)
    if plan.compiled:
        from rwalk.engine.compiled_step import Compiled

        return Compiled(fleet, plan)
    from rwalk.engine.eager_step import Eager

    return Eager(fleet)


def executed(fleet: Fleet) -> str:
    """How a fleet's steps are executed, for its rows: rounding depends on it."""
    plan, parts = fleet.execution_plan, [fleet.execution.name]
    if fleet.theta.is_cuda:
        parts += ["compiled walk"] * plan.compiled + ["compiled gradient"] * plan.gradient
    return ", ".join(parts) + (f" ({plan.lacks})" if plan.lacks else "")


def lacked(execution: str) -> str:
    """The reason in a row's `executed` why its steps were not compiled as planned; "" if there is none.

    >>> lacked("eager (no working compiler)"), lacked("compiled")
    ('no working compiler', '')
    """
    return next((each for each in (NO_COMPILER, FAILED) if each in execution), "")
