"""An adapter on its way through a step: its factors are pulled before it, and observed after it, as one weight."""

from __future__ import annotations

import torch
from torch import Tensor

from rwalk.guard.state.lora import Product
from rwalk.guard.state.parameter import Piece
from rwalk.guard.step import penalty as stiffness
from rwalk.methods.base import Method


class Factors:
    """An adapter, from before a step to after it."""

    def __init__(self, piece: Piece, product: Product) -> None:
        self._piece, self._product = piece, product
        self._gradients = [factor.grad for factor in product.factors]  # the user's, of the task's loss alone
        self._given: list[Tensor | None] = [None, None]  # what the optimizer reads in their place
        self._versions = [0, 0]  # torch's count of changes to what was given
        self._before: Tensor | None = None  # W before the step
        self._beyond: Tensor | None = None  # the stiffness beyond which springs pull after the step

    def enter(self, method: Method, step: float | None) -> None:
        """Remember what `observe` will want, and add the pull to the gradients the optimizer is about to use."""
        pulls_now = method.penalty == "gradient" and method.springs(self._piece.state)
        if not pulls_now and "move" not in method.wants:
            return
        with self._piece.whole() as (state, theta):
            self._before = theta
            if not pulls_now:
                return
            nothing = torch.zeros_like(theta)
            if type(method).pull is Method.pull:
                self._beyond = self._product.followed(step, theta.dtype)
            if self._beyond is None:
                force = method.pull(state, theta, nothing)
            else:
                most = self._beyond.to(theta.device)
                force = stiffness.soft_pull(method.springs(state), theta, nothing, most)
        pulls = self._product.chained(force[0].to(self._product.base.device))
        for i, (factor, gradient) in enumerate(zip(self._product.factors, self._gradients, strict=True)):
            if gradient is not None:  # without one, the optimizer leaves a factor alone
                self._given[i] = factor.grad = gradient + pulls[i].to(gradient)
                self._versions[i] = factor.grad._version

    def leave(self, method: Method, lr: float) -> None:
        """Give the gradients back as they were, pull after the step where that is due, and observe."""
        self.abandon(at_once=True)
        late = method.penalty == "proximal" or self._beyond is not None
        if late and method.springs(self._piece.state):
            with self._piece.whole() as (state, theta):
                self._product.proximal_step(method.springs(state), theta, lr, self._beyond)
        if method.wants:
            with self._piece.whole(write=True) as (state, theta):
                gradient = self._piece.storage.wide(self._product.gradient(self._gradients, theta.dtype)[None])
                move = gradient if self._before is None else theta - self._before
                method.observe(state, gradient, move, gradient.square())

    def abandon(self, at_once: bool) -> None:
        """Give the gradients back; left alone, unless `at_once`, if they were zeroed or added to since."""
        for i, (factor, given) in enumerate(zip(self._product.factors, self._given, strict=True)):
            untouched = given is not None and factor.grad is given and given._version == self._versions[i]
            if given is not None and (at_once or untouched):
                factor.grad = self._gradients[i]
        self._given = [None, None]
