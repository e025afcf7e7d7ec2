"""What must hold for a projector by itself: gradients in, a gradient out."""

from __future__ import annotations

import torch
from torch import Tensor

from rwalk.projectors import Projector
from rwalk.testing.claims import claim, claim_close, draws

RUNS, PARAMETERS = 4, 12
MISSED = 0.01  # of the lengths' product: a solver may miss a constraint by so much


def no_constraint_is_violated(projector: Projector) -> None:
    """⟨g̃, G_i⟩ ≥ 0 for gradients of any size, within what a solver's tolerance explains."""
    for seed in range(3):
        for scale in (1e-6, 1.0, 1e6):
            grad, memories = _problem(projector, seed)
            projected = projector.project(scale * grad, scale * memories)
            claim(projected.shape == grad.shape, f"{list(grad.shape)} becomes {list(projected.shape)}")
            claim(projected.isfinite().all(), f"finite gradients of size {scale:g} become NaN or infinite")
            along = torch.einsum("rkp,rp->rk", memories, projected / scale)
            least = float((along / (memories.norm(dim=-1) * grad.norm(dim=-1)[:, None])).min())
            claim(least >= -MISSED, f"a constraint is violated by {-least:.1%} of the gradients' lengths")


def a_run_is_projected_for_itself(projector: Projector) -> None:
    grad, memories = _problem(projector, seed=5)
    given, recalled = grad.clone(), memories.clone()
    together = projector.project(grad, memories)
    claim(grad.equal(given) and memories.equal(recalled), "project changes the gradients that it is given")
    for run in range(RUNS):
        alone = projector.project(given[run : run + 1], recalled[run : run + 1])
        claim_close(together[run], alone[0], 1e-9, f"run {run} of a fleet is projected differently than alone")


def no_old_task_is_no_obstacle(projector: Projector) -> None:
    """Exemplars that are learned perfectly have gradients of zero, and forbid nothing."""
    grad, memories = _problem(projector, seed=6)
    projected = projector.project(grad, torch.zeros_like(memories))
    claim_close(projected, grad, 1e-9, "old gradients of zero change the gradient")


PROJECTOR_CHECKS = (no_constraint_is_violated, a_run_is_projected_for_itself, no_old_task_is_no_obstacle)


def _problem(projector: Projector, seed: int) -> tuple[Tensor, Tensor]:
    """A gradient for each run, and old ones of which the first opposes it."""
    grad = draws(RUNS, PARAMETERS, seed=seed)
    memories = draws(RUNS, 3 if projector.per_task else 1, PARAMETERS, seed=100 + seed)
    against = torch.einsum("rp,rp->r", memories[:, 0], grad).sign()
    memories[:, 0] *= -against[:, None]
    return grad, memories
