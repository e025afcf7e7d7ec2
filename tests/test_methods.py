"""What every method inherits: one contract, one row a method. Fast code against slow, obvious code."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any, Literal

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from reproduction.variants import RWalk2018, RWalkEuclidean, RWalkUndivided
from rwalk.errors import InputError
from rwalk.methods import EWC, METHODS, PI, EWCpp, Method, RWalk, Vanilla, normalized, require
from rwalk.methods.ewc_online import EWCOnline
from rwalk.methods.l2 import L2SP
from rwalk.methods.mas import MAS
from rwalk.parts import stack

R, P, STEPS = 3, 17, 23
ALL = [
    Vanilla(),
    EWC(lam=3.0),
    EWCpp(lam=3.0, alpha=0.3),
    EWCpp(lam=3.0, normalize=False),
    PI(lam=2.0),
    RWalk(lam=2.0, dt=4),
    RWalk(lam=2.0, dt=4, penalty="proximal"),
    RWalk(lam=2.0, dt=4, fisher_at="start"),
    RWalkEuclidean(lam=2.0, dt=4),
    RWalkUndivided(lam=2.0, dt=4),
    RWalk2018(lam=2.0, dt=4),
    MAS(lam=2.0),
    L2SP(lam=2.0),
    EWCOnline(lam=2.0, gamma=0.7),
]
HOLDING = [method for method in ALL if not isinstance(method, Vanilla)]
names = [f"{method.name}-{i}" for i, method in enumerate(ALL)]
holding_names = [f"{method.name}-{i}" for i, method in enumerate(HOLDING)]


def draws(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def walk(method: Method, theta: Tensor, state: dict[str, Tensor], seed: int, steps: int = STEPS) -> None:
    """A task on a random quadratic: the order of calls is the training loop's."""
    target, curve = draws(*theta.shape, seed=seed), draws(*theta.shape, seed=seed + 1).abs()
    for step in range(1, steps + 1):
        grad = curve * (theta - target) + 0.1 * draws(*theta.shape, seed=100 * seed + step)
        pulled = method.pull(state, theta, grad, out=torch.empty_like(theta))
        move = -0.05 * (pulled if method.penalty == "gradient" else grad)
        before = theta.clone()
        theta += move
        if method.penalty == "proximal":
            method.proximal_step(state, theta, lr=0.05)
        method.observe(state, grad, theta - before, grad.square())
        if method.window and step % method.window == 0:
            method.score(state, theta)
    method.consolidate(state, theta, fisher=draws(*theta.shape, seed=seed + 7).square())


@pytest.mark.parametrize("method", ALL, ids=names)
def test_memory_does_not_grow_with_tasks_but_for_ewc(method: Method) -> None:
    theta = draws(1, P)
    state = method.start(theta)
    sizes = []
    for task in range(4):
        walk(method, theta, state, seed=task)
        assert all(vector.shape == theta.shape for vector in state.values())
        sizes.append(len(state))
    assert sizes == ([2, 4, 6, 8] if isinstance(method, EWC) else [sizes[0]] * 4)
    assert sizes[0] <= 7


# ── slow, obvious versions of the equations ───────────────────────────────────────────────────────────────────


@dataclass
class Seen:
    grads: list[Tensor]
    thetas: list[Tensor]  # one more than grads


def scripted(tasks: int, steps: int) -> list[Seen]:
    thetas = [draws(P, seed=5)]
    script = []
    for task in range(tasks):
        seen = Seen([], [thetas[-1]])
        for step in range(steps):
            seen.grads.append(draws(P, seed=1000 + 100 * task + step))
            seen.thetas.append(seen.thetas[-1] + 0.1 * draws(P, seed=2000 + 100 * task + step))
        thetas.append(seen.thetas[-1])
        script.append(seen)
    return script


def play(method: Method, script: list[Seen]) -> dict[str, Tensor]:
    state = method.start(script[0].thetas[0][None].clone())
    for seen in script:
        for t, grad in enumerate(seen.grads):
            after = seen.thetas[t + 1]
            method.observe(state, grad[None], (after - seen.thetas[t])[None], grad.square()[None])
            if method.window and (t + 1) % method.window == 0:
                method.score(state, after[None])
        method.consolidate(state, seen.thetas[-1][None].clone())
    return state


def minmax(v: Tensor) -> Tensor:
    return (v - v.min()) / (v.max() - v.min())


@pytest.mark.parametrize("steps", [8, 11])  # whole windows, and some left over
def test_rwalk_is_the_papers_equations(steps: int) -> None:
    alpha, dt, eps = 0.7, 4, 1e-3
    script = scripted(3, steps)
    fisher, score = torch.zeros(P, dtype=torch.float64), None
    for seen in script:
        s_task, path, origin = torch.zeros(P, dtype=torch.float64), 0, seen.thetas[0]
        for t, grad in enumerate(seen.grads):
            fisher = alpha * grad**2 + (1 - alpha) * fisher
            path = path - grad * (seen.thetas[t + 1] - seen.thetas[t])
            if (t + 1) % dt == 0 or t + 1 == len(seen.grads):
                moved = seen.thetas[t + 1] - origin
                s_task = s_task + torch.clamp(path / (0.5 * fisher * moved**2 + eps), min=0)
                path, origin = 0, seen.thetas[t + 1]
        score = s_task if score is None else 0.5 * (score + s_task)
    importance = minmax(fisher) + minmax(score)
    method = RWalk(lam=2.0, alpha=alpha, dt=dt, eps=eps)
    state = play(method, script)
    torch.testing.assert_close(state["importance"][0], importance, rtol=1e-10, atol=1e-12)
    there = draws(P, seed=77)
    cost = 2.0 * (importance * (there - script[-1].thetas[-1]) ** 2).sum()
    torch.testing.assert_close(method.cost(state, there[None])[0], cost, rtol=1e-10, atol=0)


@pytest.mark.parametrize("steps", [8, 11])
def test_rwalk_with_the_fisher_at_a_windows_start_is_the_papers_score(steps: int) -> None:
    """s = Σ max(0, ΔL / (½ F^t Δθ(t)² + ε)) with Δθ(t) = θ(t + Δt) − θ(t), and F^t with the batch at θ(t)."""
    alpha, dt, eps = 0.7, 4, 1e-3
    script = scripted(3, steps)
    fisher, score = torch.zeros(P, dtype=torch.float64), None
    for seen in script:
        fishers = []  # F^t of every step
        for grad in seen.grads:
            fisher = alpha * grad**2 + (1 - alpha) * fisher
            fishers.append(fisher)
        s_task = torch.zeros(P, dtype=torch.float64)
        for t in range(0, steps, dt):
            end = min(t + dt, steps)
            gain = -sum(seen.grads[i] * (seen.thetas[i + 1] - seen.thetas[i]) for i in range(t, end))
            moved = seen.thetas[end] - seen.thetas[t]
            s_task = s_task + torch.clamp(gain / (0.5 * fishers[t] * moved**2 + eps), min=0)
        score = s_task if score is None else 0.5 * (score + s_task)
    method = RWalk(lam=2.0, alpha=alpha, dt=dt, eps=eps, fisher_at="start")
    state = play(method, script)
    torch.testing.assert_close(state["fisher"][0], fisher, rtol=1e-10, atol=0)
    torch.testing.assert_close(state["importance"][0], minmax(fisher) + minmax(score), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("kind", [RWalk2018, RWalkEuclidean, RWalkUndivided])
def test_methods_with_another_distance_refuse_a_place_of_the_fisher(kind: type[RWalk]) -> None:
    with pytest.raises(InputError, match="leave fisher_at out"):
        kind(fisher_at="start")


@pytest.mark.parametrize("kind", [RWalkEuclidean, RWalkUndivided])
def test_the_ablations_of_rwalk_differ_in_the_scores_denominator_alone(kind: type[RWalk]) -> None:
    alpha, dt, eps = 0.3, 4, 1e-2
    script = scripted(2, 11)
    score, euclidean = None, kind is RWalkEuclidean
    for seen in script:
        s_task, starts = torch.zeros(P, dtype=torch.float64), range(0, 11, dt)
        for start in starts:
            end = min(start + dt, 11)
            moved = seen.thetas[end] - seen.thetas[start]
            gain = -sum(seen.grads[t] * (seen.thetas[t + 1] - seen.thetas[t]) for t in range(start, end))
            s_task = s_task + torch.clamp(gain / (moved**2 + eps if euclidean else 1.0), min=0)
        score = s_task if score is None else 0.5 * (score + s_task)
    method = kind(lam=2.0, alpha=alpha, dt=dt, eps=eps)
    fisher = play(RWalk(lam=2.0, alpha=alpha, dt=dt, eps=eps), script)["fisher"][0]
    importance = play(method, script)["importance"][0]
    torch.testing.assert_close(importance, minmax(fisher) + minmax(score), rtol=1e-10, atol=1e-12)


def test_rwalk_2018_is_the_public_codes_equations() -> None:
    """Whole windows: the code leaves out what remains of the last one, and closes each a step earlier."""
    alpha, dt, eps = 0.7, 4, 1e-3
    script = scripted(3, 8)
    fisher, score = torch.zeros(P, dtype=torch.float64), torch.zeros(P, dtype=torch.float64)
    for task, seen in enumerate(script):
        squares, omega, path, origin = 0, torch.zeros(P, dtype=torch.float64), 0, seen.thetas[0]
        for t, grad in enumerate(seen.grads):
            squares = squares + grad**2  # emptied at a task's end only
            path = path - grad * (seen.thetas[t + 1] - seen.thetas[t])
            if (t + 1) % dt == 0:
                moved = seen.thetas[t + 1] - origin
                omega = omega + torch.clamp(path / (eps + fisher * moved**2), min=0)  # by the Fisher before
                fisher = (1 - alpha) * fisher + alpha * squares / dt
                path, origin = 0, seen.thetas[t + 1]
        score = score + (score + (2 * omega if task == 0 else omega)) / 2
    state = play(RWalk2018(lam=2.0, alpha=alpha, dt=dt, eps=eps), script)
    torch.testing.assert_close(state["fisher"][0], fisher, rtol=1e-10, atol=0)
    torch.testing.assert_close(state["importance"][0], minmax(fisher) + minmax(score), rtol=1e-10, atol=1e-12)


def test_rwalk_2018_keeps_the_fisher_of_a_parameter_without_a_gradient_in_a_window() -> None:
    """The public code has no such rule: there F becomes 0.5 · 0.5 + 0.5 · 1 = 0.75 in the second window."""
    method, theta = RWalk2018(alpha=0.5, dt=1), torch.zeros(1, 2, dtype=torch.float64)
    state = method.start(theta)
    for grad in (torch.ones(1, 2), torch.tensor([[1.0, 0.0]])):
        move = -0.1 * grad.double()
        theta += move
        method.observe(state, grad.double(), move, grad.double().square())
        method.score(state, theta)
    assert state["fisher"].tolist() == [[1.25, 0.5]]


def test_pi_is_zenkes_equations() -> None:
    xi, script = 1e-3, scripted(3, 9)
    omega = torch.zeros(P, dtype=torch.float64)
    for seen in script:
        moves = zip(seen.thetas[1:], seen.thetas[:-1], seen.grads, strict=True)
        small = sum(-grad * (b - a) for b, a, grad in moves)
        omega += torch.clamp(small / ((seen.thetas[-1] - seen.thetas[0]) ** 2 + xi), min=0)
    state = play(PI(lam=1.0, xi=xi), script)
    torch.testing.assert_close(state["importance"][0], omega, rtol=1e-10, atol=1e-12)


def test_ewcpp_is_a_moving_average_over_all_steps() -> None:
    alpha, script = 0.2, scripted(2, 6)
    fisher = torch.zeros(P, dtype=torch.float64)
    for seen in script:
        for grad in seen.grads:
            fisher = alpha * grad**2 + (1 - alpha) * fisher
    raw = play(EWCpp(lam=1.0, alpha=alpha, normalize=False), script)
    torch.testing.assert_close(raw["importance"][0], fisher, rtol=1e-12, atol=0)
    scaled = play(EWCpp(lam=1.0, alpha=alpha), script)
    torch.testing.assert_close(scaled["importance"][0], minmax(fisher), rtol=1e-12, atol=1e-14)


def test_ewc_sums_the_penalties_of_all_tasks() -> None:
    method, state = EWC(lam=5.0), EWC().start(draws(R, P))
    fishers, anchors = (
        [draws(R, P, seed=i).square() for i in range(3)],
        [draws(R, P, seed=10 + i) for i in range(3)],
    )
    for fisher, anchor in zip(fishers, anchors, strict=True):
        method.consolidate(state, anchor.clone(), fisher)
    theta = draws(R, P, seed=30)
    expected = sum(2.5 * (f * (theta - a) ** 2).sum(-1) for f, a in zip(fishers, anchors, strict=True))
    torch.testing.assert_close(method.cost(state, theta), expected)


@pytest.mark.parametrize(("anchor", "task"), [("last", 2), ("first", 0)])
def test_l2_is_the_squared_distance_to_where_a_task_ended(anchor: Literal["last", "first"], task: int) -> None:
    method = L2SP(lam=3.0, anchor=anchor)
    state, ends = method.start(draws(R, P)), [draws(R, P, seed=40 + i) for i in range(3)]
    theta = draws(R, P, seed=50)
    for end in ends:
        method.consolidate(state, end.clone())
    expected = [
        3.0 * sum((here - there) ** 2 for here, there in zip(run, held, strict=True))
        for run, held in zip(theta.tolist(), ends[task].tolist(), strict=True)
    ]
    torch.testing.assert_close(method.cost(state, theta), torch.tensor(expected, dtype=torch.float64))


def test_rwalk_without_score_is_normalised_ewcpp_up_to_its_half() -> None:
    class Scoreless(RWalk):
        def score(self, state: dict[str, Tensor], theta: Tensor) -> None:
            pass

    script = scripted(2, 9)
    scoreless = play(Scoreless(lam=1.0, alpha=0.4), script)
    ewcpp = play(EWCpp(lam=2.0, alpha=0.4), script)
    theta = draws(1, P, seed=3)
    torch.testing.assert_close(
        RWalk(lam=1.0).cost(scoreless, theta), EWCpp(lam=2.0).cost(ewcpp, theta), rtol=1e-12, atol=0
    )


def test_one_tasks_score_by_euclidean_distance_is_pis_importance() -> None:
    """A window over the whole task, and a Fisher that makes ½FΔθ² equal Δθ²."""
    script = scripted(1, 9)
    method = RWalk(lam=1.0, alpha=0.0, dt=1000, eps=1e-3)
    state = method.start(script[0].thetas[0][None].clone())
    state["fisher"].fill_(2.0)
    seen = script[0]
    for t, grad in enumerate(seen.grads):
        method.observe(state, grad[None], (seen.thetas[t + 1] - seen.thetas[t])[None], grad.square()[None])
    method.score(state, seen.thetas[-1][None])
    omega = play(PI(lam=1.0, xi=1e-3), script)["importance"]
    torch.testing.assert_close(state["score"], omega, rtol=1e-12, atol=1e-14)


def test_the_fisher_is_the_kl_divergence_of_small_steps() -> None:
    """½ Δθᵀ F Δθ → KL(p_θ ‖ p_{θ+Δθ}) as Δθ → 0, with the true Fisher of a small softmax network."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3)).double()
    x = draws(20, 3)
    theta = torch.cat([p.detach().reshape(-1) for p in net.parameters()])

    def log_p(vector: Tensor) -> Tensor:
        parts, start = {}, 0
        for name, p in net.named_parameters():
            parts[name] = vector[start : start + p.numel()].view_as(p)
            start += p.numel()
        return torch.func.functional_call(net, parts, (x,)).log_softmax(-1)

    jacobian = torch.func.jacrev(log_p)(theta)  # [n, classes, P]
    p = log_p(theta).exp()
    fisher = torch.einsum("nc,nci,ncj->ij", p, jacobian, jacobian) / len(x)
    direction = draws(len(theta), seed=4)
    ratios = []
    for size in (1e-1, 1e-2, 1e-3):
        step = size * direction
        kl = (p * (log_p(theta) - log_p(theta + step))).sum(-1).mean()
        ratios.append(abs(float(0.5 * step @ fisher @ step / kl) - 1))
    assert ratios[2] < ratios[1] < ratios[0] and ratios[2] < 5e-3


# ── numbers ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_stacked_numbers_are_columns_and_the_rest_must_agree() -> None:
    like = torch.zeros(1, dtype=torch.float64)
    stacked = stack([RWalk(lam=1), RWalk(lam=10.0)], like)
    assert isinstance(stacked.lam, Tensor) and stacked.lam.tolist() == [[1.0], [10.0]]
    assert stacked.alpha == 0.9 and stacked.dt == 10
    with pytest.raises(InputError, match="agree on dt"):
        stack([RWalk(dt=5), RWalk(dt=6)], like)
    with pytest.raises(InputError, match="share their method"):
        stack([RWalk(), PI()], like)


@pytest.mark.parametrize(
    ("name", "numbers", "message"),
    [
        ("rwalk", {"lam": -1.0}, "lam must be at least 0"),
        ("rwalk", {"lam": float("nan")}, "lam must be"),
        ("pi", {"lam": float("inf")}, "lam must be"),
        ("ewc++", {"alpha": 1.5}, "alpha must be at least 0 and at most 1"),
        ("rwalk", {"alpha": -0.1}, "alpha"),
        ("rwalk", {"dt": 0}, "dt must be a whole number"),
        ("rwalk", {"dt": 2.5}, "dt must be a whole number"),
        ("rwalk", {"eps": 0.0}, "eps must be greater than 0"),
        ("rwalk", {"fisher_at": "middle"}, "fisher_at must be one of start, end"),
        ("pi", {"xi": -1e-3}, "xi must be greater than 0"),
        ("ewc", {"penalty": "prox"}, "penalty must be one of"),
        ("ewc", {"fisher": "diagonal"}, "fisher must be one of"),
        ("ewc", {"lam": "big"}, "lam must be a number"),
    ],
)
def test_bad_numbers_are_refused(name: str, numbers: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message) as refused:
        METHODS[name](**numbers)
    assert "\n" not in str(refused.value)


@given(st.floats(allow_nan=True, allow_infinity=True))
def test_any_alpha_is_taken_or_refused(alpha: float) -> None:
    if 0 <= alpha <= 1:
        assert EWCpp(alpha=alpha).alpha == alpha
    else:
        with pytest.raises(InputError, match="alpha"):
            EWCpp(alpha=alpha)


def test_normalisation_is_per_run() -> None:
    vector = draws(R, P) * torch.tensor([[1.0], [1e6], [1e-6]], dtype=torch.float64)
    for run in range(R):
        torch.testing.assert_close(normalized(vector)[run], minmax(vector[run]))


def test_methods_written_for_0_2_find_what_they_import() -> None:
    base = importlib.import_module("rwalk.methods.base")
    assert base.require is require and base.Method is Method
