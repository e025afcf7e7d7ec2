"""The optimizers, over the fleet's vectors or parts of them: Adam as the paper trains, and plain SGD."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Protocol

import torch
from torch import Tensor

from rwalk import private_torch


class Optimizer(Protocol):
    """An optimizer over vectors; its own vectors are in `state`, so that checkpoints can save them."""

    lr: float
    state: dict[str, Tensor]

    def step(self, theta: Tensor, grad: Tensor, state: Mapping[str, Tensor]) -> None:
        """Move θ along −grad, or a part of θ: `state` is its part of the state. `tick` has counted the step."""

    def tick(self) -> None:
        """A step begins."""

    def restart(self, keep_count: bool = False) -> None:
        """A task begins: earlier steps are forgotten, but for their number where it is kept."""


class Adam:
    """Kingma & Ba 2015, with the paper's β: torch's fused kernel, or written out for a compiler to fuse."""

    betas = (0.9, 0.999)

    def __init__(self, theta: Tensor, lr: float, written_out: bool = False) -> None:
        self.lr = lr
        self._kernel = None if written_out else private_torch.fused_adam()
        self.written_out = self._kernel is None
        self.state = {
            "mean": torch.zeros_like(theta),
            "square": torch.zeros_like(theta),
            "steps": torch.zeros((), device=theta.device),
        }
        self._log_betas = torch.tensor(self.betas, dtype=torch.float64, device=theta.device).log()
        self._rate, self._root = (torch.ones((), dtype=theta.dtype, device=theta.device) for _ in range(2))

    def restart(self, keep_count: bool = False) -> None:
        for name, vector in self.state.items():
            if not (keep_count and name == "steps"):
                vector.zero_()

    def tick(self) -> None:
        self.state["steps"] += 1
        if not self.written_out:
            return
        # 1 − βᵗ without cancellation; as scalars of θ's own precision, for the fused loop to stay in it
        if self._rate.is_cuda:
            debias_mean, debias_square = -torch.expm1(self.state["steps"].double() * self._log_betas)
            self._rate.copy_(self.lr / debias_mean)
            self._root.copy_(debias_square.rsqrt())
        else:  # the same without a dozen calls into torch
            steps = self.state["steps"].item()
            debias_mean, debias_square = (-math.expm1(steps * math.log(beta)) for beta in self.betas)
            self._rate.fill_(self.lr / debias_mean)
            self._root.fill_(debias_square**-0.5)

    def step(self, theta: Tensor, grad: Tensor, state: Mapping[str, Tensor]) -> None:
        if self._kernel is None:
            self._formula(theta, grad, state["mean"], state["square"])
            return
        self._kernel(
            [theta],
            [grad],
            [state["mean"]],
            [state["square"]],
            [],
            [state["steps"]],
            lr=self.lr,
            beta1=self.betas[0],
            beta2=self.betas[1],
            weight_decay=0.0,
            eps=1e-8,
            amsgrad=False,
            maximize=False,
        )

    def _formula(self, theta: Tensor, grad: Tensor, mean: Tensor, square: Tensor) -> None:
        """The same, written out: a compiler fuses it with the rest of the walk."""
        mean.lerp_(grad, 1 - self.betas[0])
        square.lerp_(grad * grad, 1 - self.betas[1])
        theta -= self._rate * mean / (square.sqrt() * self._root + 1e-8)


class SGD:
    """Plain stochastic gradient descent, as GEM's authors train."""

    def __init__(self, theta: Tensor, lr: float, written_out: bool = False) -> None:
        self.lr = lr
        self.state: dict[str, Tensor] = {}

    def restart(self, keep_count: bool = False) -> None:
        pass

    def tick(self) -> None:
        pass

    def step(self, theta: Tensor, grad: Tensor, state: Mapping[str, Tensor]) -> None:
        theta.add_(grad, alpha=-self.lr)


OPTIMIZERS: dict[str, type[Adam] | type[SGD]] = {"adam": Adam, "sgd": SGD}
