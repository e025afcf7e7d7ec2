"""GEM (Lopez-Paz & Ranzato 2017) and A-GEM (Chaudhry et al. 2019): gradients that do not hurt old tasks.

Both take the gradient g[R, P] and gradients of old exemplars G[R, k, P], and return the nearest g̃ to g with
⟨g̃, G_i⟩ ≥ 0: for every old task (GEM), or for a batch drawn from all of them (A-GEM).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from rwalk.errors import InputError
from rwalk.methods.base import require


@dataclass(frozen=True)
class GEM:
    """Projection by the dual quadratic program, one constraint a task.

    margin  γ ≥ 0 pushes beyond the constraint, favouring backward transfer (0.5 in the authors' experiments)
    ridge   ε I added to the Gram matrix, so that the program is solvable when constraints are dependent
    """

    name: ClassVar[str] = "gem"
    per_task: ClassVar[bool] = True  # one constraint a task, from all its exemplars

    margin: float = 0.5
    ridge: float = 1e-3

    def __post_init__(self) -> None:
        require(self.margin, "margin", minimum=0.0)
        require(self.ridge, "ridge", minimum=0.0, open_=True)

    def project(self, grad: Tensor, memories: Tensor) -> Tensor:
        violated = (torch.einsum("rkp,rp->rk", memories, grad) < 0).any(-1)
        out = grad.clone()
        for run in violated.nonzero().flatten().tolist():
            dual = self._dual(memories[run], grad[run])
            out[run] += dual @ memories[run]
        return out

    def _dual(self, constraints: Tensor, grad: Tensor) -> Tensor:
        """argmin_v ½ vᵀ(GGᵀ + εI)v + (Gg)ᵀv subject to v ≥ γ, on the CPU: it has one variable a task."""
        try:
            from qpsolvers import solve_qp
        except ImportError as error:
            raise InputError("GEM solves a quadratic program: pip install 'rwalk[gem]'") from error
        wide = constraints.double()
        gram = (wide @ wide.T).cpu().numpy()
        gram = gram + self.ridge * torch.eye(len(gram), dtype=torch.float64).numpy()
        linear = (wide @ grad.double()).cpu().numpy()
        dual = solve_qp(gram, linear, lb=linear * 0 + self.margin, solver="daqp")
        return torch.as_tensor(dual, dtype=grad.dtype, device=grad.device)


@dataclass(frozen=True)
class AGEM:
    """Projection onto the half-space of the mean constraint, in closed form."""

    name: ClassVar[str] = "a-gem"
    per_task: ClassVar[bool] = False  # one constraint, from a batch of all exemplars

    def project(self, grad: Tensor, memories: Tensor) -> Tensor:
        reference = memories.mean(1)
        along = (grad * reference).sum(-1, keepdim=True)
        length = reference.square().sum(-1, keepdim=True).clamp(min=torch.finfo(grad.dtype).tiny)
        return grad - along.clamp(max=0) / length * reference
