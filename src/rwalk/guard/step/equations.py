"""One guarded step, as equations: what happens before the optimizer's own step, and after it.

The equations are written once, over named columns with a number per parameter value:

    theta   θ, the parameters
    grad    the gradient of the task's loss alone
    given   the gradient that the optimizer reads in its place
    before  θ before the step

and over the state of a method (`rwalk.methods`). The executor supplies columns and state: as tensors, as tensor
lists, chunk by chunk, or as symbolic tensors, from which a kernel is generated.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch

from rwalk.guard.step.penalty import followed, proximal_step, soft_pull
from rwalk.methods.method import Method, State

Columns = Mapping[str, Any]


class Plan(NamedTuple):
    """What one step does to parameters of a kind.

    lr        η of the late step
    at_most   the stiffness that the optimizer can follow; None if nothing is stiffer.
    pulls     whether the penalty's gradient is added before the step.
    late      whether there is a late step: for all of a proximal penalty, or the part stiffer than `at_most`.
    in_place  whether the task's own gradients are changed, and changed back after the step.
    """

    method: Method
    lr: float = 0.0
    at_most: float | None = None
    pulls: bool = False
    late: bool = False
    in_place: bool = False


class Phase(NamedTuple):
    """Equations, and the columns that hold their results; other columns they write to are scratch."""

    name: str
    equations: Callable[[Plan, Columns, State], None]
    results: frozenset[str]


def planned(method: Method, holds: bool, lr: float, size: float | None, stiffest: float) -> Plan:
    """The plan for a penalty of this stiffness.

    holds  whether there is a penalty
    lr     the learning rate
    size   see `penalty.step_size`
    """
    if not holds:
        return Plan(method)
    if method.penalty == "proximal":
        return Plan(method, lr, late=True)
    at_most = followed(size, stiffest)
    if at_most is None:
        return Plan(method, pulls=True)
    assert size is not None
    return Plan(method, size, at_most, pulls=True, late=True)


def before_step(plan: Plan, at: Columns, state: State) -> None:
    """Remember θ, and add the pull to the gradient that the optimizer is about to read."""
    if "move" in plan.method.wants:
        at["before"].copy_(at["theta"])
    if plan.pulls:
        given = at["grad" if plan.in_place else "given"]
        out = None if plan.in_place else given
        if plan.at_most is None:
            found = plan.method.pull(state, at["theta"], at["grad"], out=out)
        else:
            found = soft_pull(plan.method.springs(state), at["theta"], at["grad"], plan.at_most, out=out)
        if found is not given:
            given.copy_(found)


def take_out(plan: Plan, at: Columns, state: State) -> None:
    """Subtract the pull from the gradients that it was added to in place: it is worked out once more."""
    grad, zero = at["grad"], torch.zeros_like(at["grad"])
    if plan.at_most is None:
        grad.sub_(plan.method.pull(state, at["before"], zero))
    else:
        grad.sub_(soft_pull(plan.method.springs(state), at["before"], zero, plan.at_most))


def after_step(plan: Plan, at: Columns, state: State) -> None:
    """Take the late step, and let the method observe the gradient, the move and the squares that it `wants`.

    `before` and `given` are free by now.
    """
    method, theta = plan.method, at["theta"]
    if plan.late:
        if plan.at_most is None:
            method.proximal_step(state, theta, plan.lr)
        else:
            proximal_step(method.springs(state), theta, plan.lr, plan.at_most)
    if method.wants:
        grad = move = square = at["grad"]
        if "move" in method.wants:
            move = torch.sub(theta, at["before"], out=at["before"])
        if "square" in method.wants:
            square = torch.mul(grad, grad, out=at.get("given"))
        method.observe(state, grad, move, square)


def score(plan: Plan, at: Columns, state: State) -> None:
    """A window of steps ended."""
    plan.method.score(state, at["theta"])


BEFORE = Phase("before", before_step, frozenset({"before", "given", "grad"}))
TAKE_OUT = Phase("take out", take_out, frozenset({"grad"}))
AFTER = Phase("after", after_step, frozenset({"theta"}))
SCORE = Phase("score", score, frozenset())
