"""The optimizers, over the whole fleet's vector at once: Adam as the paper trains, and plain SGD."""

from __future__ import annotations

import math
from typing import Protocol

import torch
from torch import Tensor


class Optimizer(Protocol):
    """An optimizer over vectors; its own vectors are `state`, so that a checkpoint can hold them."""

    lr: float
    state: dict[str, Tensor]

    def step(self, theta: Tensor, grad: Tensor, part: slice = ...) -> None:
        """Move θ[:, part] along −grad[:, part]; `tick` has counted the step."""

    def tick(self) -> None:
        """A step begins."""


class Adam:
    """Kingma & Ba 2015, with the paper's β: one fused kernel over all runs and parameters."""

    def __init__(self, theta: Tensor, lr: float, betas: tuple[float, float] = (0.9, 0.999)) -> None:
        self.lr = lr
        self.betas = betas
        self.state = {
            "mean": torch.zeros_like(theta, requires_grad=False),
            "square": torch.zeros_like(theta, requires_grad=False),
            "steps": torch.zeros((), device=theta.device),
        }

    def tick(self) -> None:
        self.state["steps"] += 1

    def step(self, theta: Tensor, grad: Tensor, part: slice = slice(None)) -> None:
        if theta.is_cuda:
            self._formula(theta, grad)
            return
        # The kernel behind torch.optim.Adam(fused=True), without that class's bookkeeping per call.
        torch._fused_adam_(
            [theta],
            [grad],
            [self.state["mean"][:, part]],
            [self.state["square"][:, part]],
            [],
            [self.state["steps"]],
            lr=self.lr,
            beta1=self.betas[0],
            beta2=self.betas[1],
            weight_decay=0.0,
            eps=1e-8,
            amsgrad=False,
            maximize=False,
        )

    def _formula(self, theta: Tensor, grad: Tensor) -> None:
        """The same, written out: a compiler fuses it with the rest of the walk."""
        mean, square, steps = self.state["mean"], self.state["square"], self.state["steps"].double()
        mean.lerp_(grad, 1 - self.betas[0])
        square.lerp_(grad * grad, 1 - self.betas[1])
        # 1 − βᵗ without cancellation
        debias_mean, debias_square = (-torch.expm1(steps * math.log(beta)) for beta in self.betas)
        theta -= (self.lr / debias_mean) * mean / ((square / debias_square).sqrt() + 1e-8)


class SGD:
    """Plain stochastic gradient descent, as GEM's authors train."""

    def __init__(self, theta: Tensor, lr: float) -> None:
        self.lr = lr
        self.state: dict[str, Tensor] = {}

    def tick(self) -> None:
        pass

    def step(self, theta: Tensor, grad: Tensor, part: slice = slice(None)) -> None:
        theta.add_(grad, alpha=-self.lr)


OPTIMIZERS: dict[str, type[Adam] | type[SGD]] = {"adam": Adam, "sgd": SGD}
