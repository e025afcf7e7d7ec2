"""The optimizers, over a fleet's vectors or chunks of them: Adam, as the paper trains, and plain SGD."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from rwalk import private_torch


class Optimizer:
    """An optimizer over vectors [R, P]. Its own vectors are in `state`, so that checkpoints can save them."""

    def __init__(self, theta: Tensor, lr: float, written_out: bool = False) -> None:
        self.lr = lr
        self.state: dict[str, Tensor] = {}

    def restart(self, keep_count: bool = False) -> None:
        """Forget earlier steps at a task's start; with `keep_count` their number is kept."""

    def tick(self) -> None:
        """Count a step, before the first chunk of θ is stepped."""

    def step(self, theta: Tensor, grad: Tensor, state: Mapping[str, Tensor]) -> None:
        """Move a chunk of θ along −grad; `state` is the same chunk of the optimizer's vectors."""
        raise NotImplementedError


class SGD(Optimizer):
    """Plain stochastic gradient descent, as GEM's authors train."""

    def step(self, theta: Tensor, grad: Tensor, state: Mapping[str, Tensor]) -> None:
        theta.add_(grad, alpha=-self.lr)


class Adam(Optimizer):
    """Kingma & Ba 2015, with the paper's β: torch's fused kernel, or `written_out` for a compiler to fuse."""

    betas = (0.9, 0.999)

    def __init__(self, theta: Tensor, lr: float, written_out: bool = False) -> None:
        super().__init__(theta, lr)
        self._kernel = None if written_out else private_torch.fused_adam()
        zero = torch.zeros((), device=theta.device)
        self.state = {"mean": torch.zeros_like(theta), "square": torch.zeros_like(theta), "steps": zero}
        self._log_betas = torch.tensor(self.betas, dtype=torch.float64, device=theta.device).log()
        self._rate, self._root = (torch.ones((), dtype=theta.dtype, device=theta.device) for _ in range(2))

    def restart(self, keep_count: bool = False) -> None:
        for name, vector in self.state.items():
            if not (keep_count and name == "steps"):
                vector.zero_()

    def tick(self) -> None:
        self.state["steps"] += 1
        if self._kernel is not None:
            return
        # 1 − βᵗ without cancellation, stored as scalars of θ's precision so that the fused loop stays in it.
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
        mean, square = state["mean"], state["square"]
        if self._kernel is None:
            mean.lerp_(grad, 1 - self.betas[0])
            square.lerp_(grad * grad, 1 - self.betas[1])
            theta -= self._rate * mean / (square.sqrt() * self._root + 1e-8)
            return
        beta1, beta2 = self.betas
        options = {"lr": self.lr, "beta1": beta1, "beta2": beta2, "weight_decay": 0.0, "eps": 1e-8}
        lists = ([theta], [grad], [mean], [square])
        self._kernel(*lists, [], [state["steps"]], **options, amsgrad=False, maximize=False)


OPTIMIZERS: dict[str, type[Optimizer]] = {"adam": Adam, "sgd": SGD}
