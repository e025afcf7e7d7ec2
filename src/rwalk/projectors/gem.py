"""GEM (Lopez-Paz & Ranzato 2017) and A-GEM (Chaudhry et al. 2019): gradients that do not hurt old tasks.

Both take the gradient g[R, P] and gradients of old exemplars G[R, k, P], and return the nearest g̃ to g with
⟨g̃, G_i⟩ ≥ 0: for every old task (GEM), or for a batch drawn from all of them (A-GEM).
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from typing import ClassVar

import torch
from torch import Tensor

from rwalk.errors import InputError
from rwalk.methods.method import require
from rwalk.projectors.projector import Projector


@dataclass(frozen=True)
class GEM(Projector):
    """Projection by the dual quadratic program, one constraint per task.

    Args:
        margin: γ ≥ 0 pushes beyond the constraint, favouring backward transfer (0.5 in the authors' experiments).
        ridge: ε is added to the diagonal of the constraints' cosines, so that dependent constraints have a
            solution. A constraint may be missed by about this share of the gradient's length.
    """

    name: ClassVar[str] = "gem"
    summary: ClassVar[str] = "gradient episodic memory: gradients projected so that no old task's loss rises"

    margin: float = 0.5
    ridge: float = 1e-3

    def __post_init__(self) -> None:
        require(self.margin, "margin", minimum=0.0)
        require(self.ridge, "ridge", minimum=0.0, open_=True)
        if find_spec("qpsolvers") is None or find_spec("daqp") is None:
            raise InputError("GEM solves a quadratic program: pip install 'rwalk[gem]'")

    def project(self, grad: Tensor, memories: Tensor) -> Tensor:
        along = torch.einsum("rkp,rp->rk", memories, grad)
        # A run whose gradient is NaN cannot be helped, and must not stop the others.
        violated = (along < 0).any(-1) & along.isfinite().all(-1)
        out = grad.clone()
        for run in violated.nonzero().flatten().tolist():
            out[run] += self._correction(grad[run].double(), memories[run].double()).to(grad.dtype)
        return out

    def _correction(self, grad: Tensor, constraints: Tensor) -> Tensor:
        """Gᵀv, where v minimises ½‖g + Gᵀv‖² subject to v ≥ γ: the dual, with one variable per task.

        Solved for unit vectors, u_i = v_i ‖G_i‖ / ‖g‖, so that the program does not depend on the size of the
        gradients.
        """
        from qpsolvers import solve_qp

        length: Tensor = grad.norm()
        lengths: Tensor = constraints.norm(dim=-1)
        directions = constraints / lengths.clamp(min=torch.finfo(grad.dtype).tiny)[:, None]
        gram = directions @ directions.T + self.ridge * torch.eye(len(lengths)).to(grad)
        linear = directions @ (grad / length)
        least = self.margin * lengths / length
        dual = solve_qp(gram.cpu().numpy(), linear.cpu().numpy(), lb=least.cpu().numpy(), solver="daqp")
        if dual is None:
            raise InputError(f"GEM's quadratic program has no solution at ridge = {self.ridge:g}: raise it")
        return torch.mv(directions.T, torch.as_tensor(dual).to(grad)) * length


@dataclass(frozen=True)
class AGEM(Projector):
    """Projection onto the half-space of the mean constraint, in closed form."""

    name: ClassVar[str] = "a-gem"
    summary: ClassVar[str] = "averaged GEM: one constraint in closed form"
    per_task: ClassVar[bool] = False

    def project(self, grad: Tensor, memories: Tensor) -> Tensor:
        reference = memories.mean(1)
        along = (grad * reference).sum(-1, keepdim=True)
        length = reference.square().sum(-1, keepdim=True).clamp(min=torch.finfo(grad.dtype).tiny)
        return grad - along.clamp(max=0) / length * reference
