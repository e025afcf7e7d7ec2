"""Checks of a method or a projector alone: on vectors, without a network."""

from __future__ import annotations

import torch
from torch import Tensor

from rwalk.methods.method import Method, Ranges, State
from rwalk.projectors import Projector
from rwalk.testing.check_tools import claim, claim_close, draws

RUNS, SHAPES = 2, ((3, 4), (5,), (2, 1, 3))  # a network of three parameters
SIZES = [torch.Size(shape).numel() for shape in SHAPES]
STEPS, LR = 11, 0.05
NEAR = 1e-9  # of size-one quantities in float64, some dozen operations after they parted


def nothing_is_held_before_the_first_task_has_ended(method: Method) -> None:
    theta, grad = draws(RUNS, sum(SIZES), seed=0), draws(RUNS, sum(SIZES), seed=1)
    state = method.start(theta)
    began = {name: vector.shape for name, vector in state.items()}
    method.observe(state, grad, 0.1 * grad, grad.square())
    for name, vector in state.items():
        claim(vector.shape == theta.shape, f"its vector {name!r} is {list(vector.shape)}, not like θ [R, P]")
        claim(name in began, f"observe makes the vector {name!r}: make it in start, or it is lost")
    elsewhere = theta + 1
    cost = method.cost(state, elsewhere)
    claim(cost.shape == (RUNS,), f"cost gives {list(cost.shape)}, not one number per run [{RUNS}]")
    claim(cost.eq(0).all(), "the penalty is not zero before the first consolidate")
    claim(method.pull(state, elsewhere, grad).equal(grad), "it pulls before the first consolidate")
    moved = elsewhere.clone()
    method.proximal_step(state, moved, LR)
    claim(moved.equal(elsewhere), "the proximal step moves θ before the first consolidate")


def the_pull_is_the_slope_of_the_cost(method: Method) -> None:
    theta, state = _after_two_tasks(method)
    here = (theta + draws(*theta.shape, seed=50)).requires_grad_(True)
    cost = method.cost(state, here)
    slope = torch.zeros_like(theta)
    if cost.requires_grad:  # else nothing holds θ
        slope = torch.autograd.grad(cost.sum(), here)[0]
    grad, near = draws(*theta.shape, seed=51), NEAR * (1 + float(slope.abs().max()))
    for out in (None, torch.empty_like(grad)):
        given = grad.clone()
        pulled = method.pull(state, here.detach(), given, out=out)
        claim_close(pulled, grad + slope, near, "pull is not the gradient plus the gradient of cost")
        claim(given.equal(grad), "pull changes the gradient that it is given")


def the_proximal_step_is_the_best_compromise(method: Method) -> None:
    """u minimises cost(u) + ‖u − θ‖²/(2η): no step along the gradient from there, short or long, decreases it."""
    theta, state = _after_two_tasks(method)
    start = theta + draws(*theta.shape, seed=9)
    stepped = start.clone()
    method.proximal_step(state, stepped, LR)

    def objective(u: Tensor) -> Tensor:
        return method.cost(state, u) + (u - start).square().sum(-1) / (2 * LR)

    here = stepped.clone().requires_grad_(True)
    least = objective(here)
    slope = torch.autograd.grad(least.sum(), here)[0]
    # Rounding of u alone costs ε per stiffness and length; the objective's own terms set that scale.
    near = NEAR * (1 + objective(start))
    for reach in torch.logspace(-12, 0, 25, dtype=torch.float64).tolist():
        there = objective(stepped - reach * slope)
        claim((there >= least - near).all(), "the proximal step does not minimise cost(u) + ‖u − θ‖²/(2η)")


def a_network_in_pieces_is_the_whole(method: Method) -> None:
    """As in a Guard: one state per parameter, and `ranges` for normalising over the network."""
    whole = draws(1, sum(SIZES), seed=0)
    pieces = [part.reshape(1, *shape).clone() for part, shape in zip(whole.split(SIZES, 1), SHAPES, strict=True)]
    state, states = method.start(whole), [method.start(piece) for piece in pieces]
    for task in range(2):
        _walk(method, whole, state, task)
        for number, (piece, own) in enumerate(zip(pieces, states, strict=True)):
            _walk(method, piece, own, task, number)
        if method.window:  # the rest of the last window is scored before the ranges
            for piece, own in zip(pieces, states, strict=True):
                method.score(own, piece)
        ranges = {name: _range([own[name] for own in states]) for name in method.scales}
        _consolidate(method, whole, state, task)
        for number, (piece, own) in enumerate(zip(pieces, states, strict=True)):
            _consolidate(method, piece, own, task, number, ranges)
    grad = draws(*whole.shape, seed=77)
    near = NEAR * (1 + float(method.cost(state, whole + 1).abs().max()))
    cost = sum((method.cost(own, piece + 1) for piece, own in zip(pieces, states, strict=True)), torch.zeros(1))
    claim_close(
        cost, method.cost(state, whole + 1), near, "the penalty of pieces does not add up to the network's"
    )
    pulled = method.pull(state, whole + 1, grad).split(SIZES, 1)
    for piece, own, part, given in zip(pieces, states, pulled, grad.split(SIZES, 1), strict=True):
        alone = method.pull(own, piece + 1, given.reshape(piece.shape))
        claim_close(alone.flatten(1), part, near, "a piece of a network is pulled differently than in the whole")


def every_type_of_numbers_stays_what_it_is(method: Method) -> None:
    """As in a Guard around a model in bfloat16."""
    for dtype in (torch.float32, torch.bfloat16):
        theta = draws(RUNS, sum(SIZES), seed=0).to(dtype)
        state = method.start(theta)
        for task in range(2):
            for step in range(3):
                grad = draws(RUNS, sum(SIZES), seed=10 * task + step).to(dtype)
                method.observe(state, grad, -LR * grad, grad.square())
            if method.window:
                method.score(state, theta)
            method.consolidate(state, theta, grad.square() if method.data_pass else None)
        pulled = method.pull(state, theta + 1, grad)
        claim(pulled.dtype == dtype, f"the pull on {dtype} is {pulled.dtype}")
        for name, vector in state.items():
            claim(vector.dtype == dtype, f"its vector {name!r} of a network in {dtype} is {vector.dtype}")


METHOD_CHECKS = (
    nothing_is_held_before_the_first_task_has_ended,
    the_pull_is_the_slope_of_the_cost,
    the_proximal_step_is_the_best_compromise,
    a_network_in_pieces_is_the_whole,
    every_type_of_numbers_stays_what_it_is,
)


def _after_two_tasks(method: Method) -> tuple[Tensor, State]:
    theta = draws(RUNS, sum(SIZES), seed=0)
    state = method.start(theta)
    for task in range(2):
        _walk(method, theta, state, task)
        _consolidate(method, theta, state, task)
    return theta, state


def _walk(method: Method, theta: Tensor, state: State, task: int, piece: int | None = None) -> None:
    """The steps of a task, with gradients that are unrelated to the penalty."""
    for step in range(1, STEPS + 1):
        grad = _part(draws(len(theta), sum(SIZES), seed=1000 * task + step), piece, theta)
        move = -LR * grad
        theta += move
        method.observe(state, grad, move, grad.square())
        if method.window and step % method.window == 0:
            method.score(state, theta)


def _consolidate(
    method: Method,
    theta: Tensor,
    state: State,
    task: int,
    piece: int | None = None,
    ranges: Ranges | None = None,
) -> None:
    fisher = (
        _part(draws(len(theta), sum(SIZES), seed=7 + task).square(), piece, theta) if method.data_pass else None
    )
    method.consolidate(state, theta, fisher, ranges)


def _part(vector: Tensor, piece: int | None, like: Tensor) -> Tensor:
    return vector if piece is None else vector.split(SIZES, 1)[piece].reshape(like.shape)


def _range(vectors: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Smallest and largest over all pieces: a Guard has one run, so they are scalars."""
    every = torch.cat([vector.flatten() for vector in vectors])
    return every.min(), every.max()


# ── projectors: gradients in, a gradient out ──────────────────────────────────────────────────────────────────

PROJECTED, PARAMETERS = 4, 12  # runs
MISSED = 0.01  # the largest violation of a constraint, as a share of the product of the lengths


def no_constraint_is_violated(projector: Projector) -> None:
    """⟨g̃, G_i⟩ ≥ 0 for gradients of any size, within the tolerance of a solver."""
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
    for run in range(PROJECTED):
        alone = projector.project(given[run : run + 1], recalled[run : run + 1])
        claim_close(together[run], alone[0], 1e-9, f"run {run} of a fleet is projected differently than alone")


def no_old_task_is_no_obstacle(projector: Projector) -> None:
    """Exemplars that are learned perfectly have gradients of zero, which constrain nothing."""
    grad, memories = _problem(projector, seed=6)
    projected = projector.project(grad, torch.zeros_like(memories))
    claim_close(projected, grad, 1e-9, "old gradients of zero change the gradient")


PROJECTOR_CHECKS = (no_constraint_is_violated, a_run_is_projected_for_itself, no_old_task_is_no_obstacle)


def _problem(projector: Projector, seed: int) -> tuple[Tensor, Tensor]:
    """A gradient for each run, and old ones of which the first opposes it."""
    grad = draws(PROJECTED, PARAMETERS, seed=seed)
    memories = draws(PROJECTED, 3 if projector.per_task else 1, PARAMETERS, seed=100 + seed)
    against = torch.einsum("rp,rp->r", memories[:, 0], grad).sign()
    memories[:, 0] *= -against[:, None]
    return grad, memories
