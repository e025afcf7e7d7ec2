"""GEM and A-GEM: the nearest gradient that hurts no old task, against one that tries every set of constraints."""

from __future__ import annotations

import itertools
import sys

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import little
from rwalk import Fleet, InputError, MemorySpec, Stream, Training, learner
from rwalk.data import datasets, splits
from rwalk.engine.task_plan import batches_of
from rwalk.losses import heads
from rwalk.projectors.gem import AGEM, GEM

P = 12
EXACT = GEM(margin=0.0, ridge=1e-8)
SGD = Training(steps=5, batch=16, lr=0.1, optimizer="sgd")


def draws(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def nearest(grad: Tensor, constraints: Tensor) -> Tensor:
    """The oracle: the nearest x to g with Gx ≥ 0. Some constraints hold with equality: every choice is tried."""
    best = torch.full_like(grad, torch.inf)
    for chosen in itertools.product([False, True], repeat=len(constraints)):
        equal = constraints[torch.tensor(chosen)]
        x = grad - torch.linalg.pinv(equal) @ (equal @ grad)
        if (constraints @ x).min() >= -1e-9 and (x - grad).norm() < (best - grad).norm():
            best = x
    return best


def cosines(projected: Tensor, constraints: Tensor, grad: Tensor) -> Tensor:
    """⟨g̃, G_i⟩ as a share of ‖g‖ ‖G_i‖: negative where a constraint is missed."""
    scale = grad.norm(dim=-1)[..., None] * constraints.norm(dim=-1)
    return torch.einsum("...kp,...p->...k", constraints, projected) / scale.where(scale > 0, 1)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("tasks", [1, 2, 5, 10])
def test_gem_is_the_nearest_gradient_that_keeps_every_constraint(tasks: int, seed: int) -> None:
    grad, constraints = draws(1, P, seed=seed), draws(1, tasks, P, seed=100 + seed)
    constraints[0, 0] *= -torch.sign(constraints[0, 0] @ grad[0])  # one at least is violated
    expected = nearest(grad[0], constraints[0])
    torch.testing.assert_close(EXACT.project(grad, constraints)[0], expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("seed", range(5))
def test_a_gem_is_the_nearest_gradient_that_keeps_its_one_constraint(seed: int) -> None:
    grad, reference = draws(1, P, seed=seed), draws(1, 1, P, seed=50 + seed)
    for sign in (1, -1):
        projected = AGEM().project(grad, sign * reference)[0]
        torch.testing.assert_close(projected, nearest(grad[0], sign * reference[0]), rtol=0, atol=1e-6)
        torch.testing.assert_close(EXACT.project(grad, sign * reference)[0], projected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("scale", [1e-12, 1.0, 1e12])
@pytest.mark.parametrize("margin", [0.0, 0.5])
@pytest.mark.parametrize("tasks", [1, 4, 10])
def test_no_constraint_is_missed_by_more_than_the_ridge_allows(tasks: int, margin: float, scale: float) -> None:
    """Whatever the size of the gradients, of all or of some tasks."""
    grad, constraints = scale * draws(6, P, seed=1), scale * draws(6, tasks, P, seed=2)
    constraints[:, ::3] *= 1e-5
    projected = GEM(margin=margin).project(grad, constraints)
    assert (cosines(grad, constraints, grad) < -0.1).any(-1).sum() >= 2, "there was something to do"
    assert cosines(projected, constraints, grad).min() > -5e-3


def test_the_margin_pushes_beyond_the_constraints() -> None:
    """v ≥ γ: what is added to the gradient is at least γ of every old gradient, and more only where needed."""
    grad, constraints = draws(1, P, seed=3), draws(1, 3, P, seed=4)
    constraints[0, 0] = -grad[0] + 0.5 * draws(P, seed=5)
    projected = GEM(margin=0.5, ridge=1e-10).project(grad, constraints)
    v = torch.linalg.lstsq(constraints[0].T, (projected - grad)[0][:, None]).solution[:, 0]
    torch.testing.assert_close(constraints[0].T @ v, (projected - grad)[0], rtol=0, atol=1e-8)
    assert (v > 0.5 - 1e-6).all()
    slack = constraints[0] @ projected[0]
    assert (slack > -1e-6).all()
    torch.testing.assert_close((v - 0.5) * slack, torch.zeros(3, dtype=torch.float64), rtol=0, atol=1e-5)


small_integers = st.integers(-2, 2).map(float)


@given(
    st.integers(1, 4).flatmap(
        lambda p: st.tuples(
            st.lists(small_integers, min_size=p, max_size=p),
            st.lists(st.lists(small_integers, min_size=p, max_size=p), min_size=1, max_size=6),
        )
    ),
    st.sampled_from([0.0, 0.5]),
)
def test_dependent_repeated_and_zero_constraints_have_a_solution(
    problem: tuple[list[float], list[list[float]]], margin: float
) -> None:
    grad, constraints = (torch.tensor(part, dtype=torch.float64)[None] for part in problem)
    projected = GEM(margin=margin).project(grad, constraints)
    if (constraints[0] @ grad[0] >= 0).all():
        assert projected.equal(grad)
    else:
        assert cosines(projected, constraints, grad).min() > -2e-2
    if margin == 0:
        assert projected.norm() <= grad.norm() * (1 + 1e-9), "a projection onto a cone lengthens nothing"


@pytest.mark.parametrize("projector", [GEM(margin=0.0), GEM(), AGEM()], ids=["gem", "gem-margin", "a-gem"])
def test_a_gradient_that_hurts_nobody_is_left_as_it_is(projector: GEM | AGEM) -> None:
    grad = draws(2, P, seed=0)
    helped = grad[:, None] + 0.1 * draws(2, 3, P, seed=1)
    assert projector.project(grad, helped).equal(grad)
    assert projector.project(grad, torch.zeros(2, 3, P, dtype=torch.float64)).equal(grad)


@pytest.mark.parametrize("projector", [GEM(margin=0.0), GEM(), AGEM()], ids=["gem", "gem-margin", "a-gem"])
def test_runs_are_projected_each_for_itself(projector: GEM | AGEM) -> None:
    grad, constraints = draws(4, P, seed=7), draws(4, 3, P, seed=8)
    grad[2], constraints[3, 0] = torch.inf, -torch.inf  # lost, and nobody else's loss
    together = projector.project(grad, constraints)
    assert grad[2].isinf().all(), "what is given is not changed"
    for run in range(2):
        alone = projector.project(grad[run : run + 1], constraints[run : run + 1])
        torch.testing.assert_close(together[run], alone[0], rtol=1e-12, atol=1e-12)
    assert together[:2].isfinite().all()


@pytest.mark.parametrize("missing", ["qpsolvers", "daqp"])
def test_a_missing_solver_is_told_before_anything_is_trained(
    missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(InputError, match=r"quadratic program: pip install 'rwalk\[gem\]'"):
        learner("gem", MemorySpec(per_class=1))
    assert learner("a-gem", MemorySpec(per_class=1)).projector == AGEM()


@pytest.mark.parametrize("settings", [{"margin": -0.1}, {"ridge": 0.0}, {"margin": float("nan")}])
def test_bad_numbers_are_refused(settings: dict[str, float]) -> None:
    with pytest.raises(InputError, match=next(iter(settings))):
        learner("gem", MemorySpec(per_class=1), **settings)


def test_neither_learns_without_exemplars_nor_trains_on_them() -> None:
    for name in ("gem", "a-gem"):
        with pytest.raises(InputError, match="needs exemplars"):
            learner(name)
        one = learner(name, MemorySpec(per_class=3, replay="balanced"))
        assert one.memory is not None and one.memory.replay == "none"


# ── in the fleet ──────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def stream() -> Stream:
    return little.stream()


def at_the_last_task(stream: Stream, name: str) -> Fleet:
    """Two runs before their first step in the third task, in float64."""
    one = learner(name, MemorySpec(per_class=4, sampler="uniform"))
    fleet = Fleet(stream, "mlp", [one] * 2, [0, 1], SGD, dtype=torch.float64)
    for _ in range(2):
        fleet.begin_task()
        fleet.train_task()
        fleet.end_task()
        fleet.task, fleet.step = fleet.task + 1, 0
    fleet.begin_task()
    return fleet


def slow_gradient(fleet: Fleet, run: int, index: Tensor, masks: Tensor) -> Tensor:
    """Of the mean loss of some examples, each under its own head; the run alone, parameter by parameter."""
    theta = fleet.theta[run].clone().requires_grad_(True)
    x, y = fleet.stream.batch(index)
    logits = torch.func.functional_call(fleet.net.module, fleet.net.layout.split(theta), (x,))
    return torch.autograd.grad(F.cross_entropy(logits + masks, y), theta)[0]


def test_gems_constraints_are_the_old_tasks_gradients_each_under_its_own_head(stream: Stream) -> None:
    fleet = at_the_last_task(stream, "gem")
    assert fleet.memory is not None
    gradients = fleet.execution.old_gradients()
    assert gradients.shape == (2, 2, fleet.theta.shape[1])
    for run in range(2):
        for task in range(2):
            index = torch.cat([group.examples[run] for group in fleet.memory.of_task(task)])
            masks = torch.full((6,), -torch.inf, dtype=torch.float64)
            masks[list(stream.tasks[task].classes)] = 0
            expected = slow_gradient(fleet, run, index, masks)
            torch.testing.assert_close(gradients[run, task], expected, rtol=0, atol=1e-12)


def test_a_gems_constraint_is_the_gradient_of_all_exemplars(stream: Stream) -> None:
    """Sixteen exemplars fit into one batch: the draw is all of them."""
    fleet = at_the_last_task(stream, "a-gem")
    assert fleet.memory is not None
    gradients = fleet.execution.old_gradients()
    assert gradients.shape == (2, 1, fleet.theta.shape[1])
    masks = torch.full((16, 6), -torch.inf, dtype=torch.float64)
    for row, group in enumerate(group for group in fleet.memory.groups for _ in range(4)):
        masks[row, list(stream.tasks[group.task].classes)] = 0
    for run in range(2):
        expected = slow_gradient(fleet, run, torch.cat(fleet.memory.of_run(run)), masks)
        torch.testing.assert_close(gradients[run, 0], expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", ["gem", "a-gem"])
def test_a_step_goes_along_the_projected_gradient_and_raises_no_old_loss(stream: Stream, name: str) -> None:
    """To first order; without the projection, an old task's loss would rise."""
    fleet = at_the_last_task(stream, name)
    assert fleet.learner.projector is not None
    before, old, index = fleet.theta.clone(), fleet.execution.old_gradients(), next(iter(batches_of(fleet)))[0]
    x, y = fleet.stream.batch(index)
    grad = fleet.net.gradient(heads.cross_entropy(fleet.net.forward(x) + fleet.task_plan.head, y))
    projected = fleet.learner.projector.project(grad, old)
    fleet.execution.step(index)
    torch.testing.assert_close(fleet.theta, before - SGD.lr * projected, rtol=0, atol=1e-14)
    unprotected = -torch.einsum("rkp,rp->rk", old, grad)
    protected = -torch.einsum("rkp,rp->rk", old, projected)
    assert unprotected.max() > 1e-3
    assert protected.max() < 1e-3 * unprotected.max()


def test_both_forget_less_than_vanilla() -> None:
    shuffled = splits.permuted(datasets.load("digits"), tasks=3)
    kept = {}
    for name in ("vanilla", "gem", "a-gem"):
        memory = None if name == "vanilla" else MemorySpec(per_class=5)
        fleet = Fleet(shuffled, "mlp", [learner(name, memory)], [0], Training(epochs=5))
        fleet.train()
        kept[name] = fleet.accuracy["single"][0, -1, 0]
    assert kept["gem"] > kept["vanilla"] + 0.2 and kept["a-gem"] > kept["vanilla"] + 0.2, kept
