"""The step of an adapter (`state.lora`): its factors are stepped as the one weight W that they make.

The equations are the same as for any parameter: θ is W, and the pull on W reaches the factors by the chain rule.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rwalk.guard.state.parameter import ParameterState
from rwalk.guard.step.equations import Plan, after_step, before_step, planned
from rwalk.guard.step.executor import GradientSwap, Pulls
from rwalk.methods.base import Method


class ProductBatch:
    """One adapter, with the interface of a `Batch`."""

    def __init__(self, piece: ParameterState) -> None:
        assert piece.storage.product is not None
        self._piece, self._product = piece, piece.storage.product
        self._step: tuple[Plan, GradientSwap, Tensor | None] | None = None  # with W before the step

    def is_current(self) -> bool:
        return True

    @property
    def steps_late(self) -> bool:
        """As `Batch.steps_late`."""
        return self._step is not None and self._step[0].late

    def before_step(self, method: Method, lr: float, size: float | None, pulls: Pulls, aside: bool) -> None:
        """As `Batch.before_step`."""
        plan = planned(method, bool(method.springs(self._piece.state)), lr, None, 0.0)
        moving = [factor for factor in self._product.factors if factor.grad is not None]
        swap = GradientSwap(moving)  # without a gradient, the optimizer leaves a factor alone
        self._step = plan, swap, None
        if not plan.pulls and "move" not in method.wants:
            return
        with self._piece.whole() as (state, theta):
            if plan.pulls and type(method).pull is Method.pull and size:
                at_most = self._product.followed(size, theta.dtype).to(theta.device)
                plan = plan._replace(at_most=at_most, late=True, lr=size)
            at: dict[str, Any] = {"theta": theta, "grad": torch.zeros_like(theta)}
            at |= {name: torch.empty_like(theta) for name in ("before", "given")}
            before_step(plan, at, state)
        self._step = plan, swap, at["before"]
        if plan.pulls:
            found = self._product.chained(at["given"][0].to(self._product.base.device))
            pairs = zip(self._product.factors, found, strict=True)
            with_gradients = [pull for factor, pull in pairs if factor.grad is not None]
            swap.give([task + pull.to(task) for task, pull in zip(swap.task, with_gradients, strict=True)])

    def after_step(self) -> None:
        """As `Batch.after_step`."""
        assert self._step is not None
        plan, swap, before = self._step
        self._step = None
        swap.give_back()
        method, storage = plan.method, self._piece.storage
        if plan.late:
            with self._piece.whole() as (state, theta):
                beyond = plan.at_most if isinstance(plan.at_most, Tensor) else None
                self._product.proximal_step(method.springs(state), theta, plan.lr, beyond, storage.form.moment())
        if method.wants:
            with self._piece.whole(write=True) as (state, theta):
                slopes = [factor.grad for factor in self._product.factors]
                gradient = storage.wide(self._product.gradient(slopes, theta.dtype)[None])
                at = {"theta": theta, "grad": gradient, "before": before}
                after_step(plan._replace(late=False), at, state)
        self._piece.used = True

    def abandon(self, at_once: bool) -> None:
        """As `Batch.abandon`."""
        step, self._step = self._step, None
        if step is not None and at_once:
            step[1].give_back()
        elif step is not None:
            step[1].give_back_unless_lost()

    def score(self, method: Method) -> None:
        self._piece.score(method)
