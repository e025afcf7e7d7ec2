"""Any λ, any optimizer: a guard may hold too much, but it never breaks a model."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from statistics import mean, stdev
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer

from rwalk.guard import Anchor, Guard
from rwalk.guard.step import penalty as stiffness
from rwalk.methods import EWC, METHODS, PI, EWCpp, Method, RWalk
from rwalk.methods.l2 import L2SP
from rwalk.studies.specs import RunSpec

Make = Callable[[Any], Optimizer]
OPTIMIZERS: dict[str, Make] = {
    "SGD": lambda parameters: SGD(parameters, lr=0.1),
    "momentum": lambda parameters: SGD(parameters, lr=0.05, momentum=0.9),
    "Nesterov": lambda parameters: SGD(parameters, lr=0.05, momentum=0.9, nesterov=True),
    "AdamW": lambda parameters: AdamW(parameters, lr=0.01),
}
LAMBDAS = (1e-2, 1.0, 1e3, 1e8)
SEEDS, STEPS = range(3), 60


def task(number: int, seed: int) -> tuple[Tensor, Tensor]:
    """Three clouds of points around centres that are other ones in each task."""
    generator = torch.Generator().manual_seed(100 * seed + number)
    centres = 2 * torch.randn(3, 6, generator=generator)
    labels = torch.arange(96) % 3
    return centres[labels] + torch.randn(96, 6, generator=generator), labels


def accuracy(model: nn.Module, x: Tensor, y: Tensor) -> float:
    return float((model(x).argmax(1) == y).double().mean())


def train(model: nn.Module, optimizer: Optimizer, x: Tensor, y: Tensor) -> None:
    for step in range(STEPS):
        batch = torch.arange(24) + 24 * (step % 4)
        F.cross_entropy(model(x[batch]), y[batch]).backward()
        optimizer.step()
        optimizer.zero_grad()


def old_accuracy(make: Make, method: Method | Anchor | None, seed: int) -> float:
    """Accuracy on the first task, after the second."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))
    optimizer = make(model.parameters())
    anchored = isinstance(method, Anchor)
    guard = None if method is None or anchored else Guard(model, optimizer, method)
    old, new = task(0, seed), task(1, seed)
    train(model, optimizer, *old)
    if anchored:
        optimizer = make(model.parameters())
        guard = Guard(model, optimizer, method, probes=old[0])
    elif guard is not None:
        consolidate(guard, model, *old)
        optimizer = make(model.parameters())
        guard.attach(optimizer)
    train(model, optimizer, *new)
    assert all(parameter.isfinite().all() for parameter in model.parameters())
    if guard is not None:
        consolidate(guard, model, *new)
        guard.detach()
    return accuracy(model, *old)


def consolidate(guard: Guard, model: nn.Module, x: Tensor, y: Tensor) -> None:
    if isinstance(guard.method, Anchor):
        guard.consolidate(probes=x)
    else:
        guard.consolidate([F.cross_entropy(model(x), y)] if guard.method.data_pass else None)


@cache
def unguarded(name: str) -> list[float]:
    return [old_accuracy(OPTIMIZERS[name], None, seed) for seed in SEEDS]


@pytest.mark.parametrize("lam", LAMBDAS)
@pytest.mark.parametrize("method", [RWalk(), EWC(), EWCpp(), PI(), L2SP()], ids=lambda method: method.name)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_no_lambda_harms_what_was_learned(name: str, method: Method, lam: float) -> None:
    guarded = [old_accuracy(OPTIMIZERS[name], replace(method, lam=lam), seed) for seed in SEEDS]
    without = unguarded(name)
    assert mean(guarded) >= mean(without) - stdev(without)


@pytest.mark.parametrize("weight", LAMBDAS)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_no_weight_of_an_anchor_harms_what_was_learned(name: str, weight: float) -> None:
    guarded = [old_accuracy(OPTIMIZERS[name], Anchor(weight=weight), seed) for seed in SEEDS]
    without = unguarded(name)
    assert mean(guarded) >= mean(without) - stdev(without)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_very_large_lambda_keeps_nearly_everything(name: str) -> None:
    guarded = [old_accuracy(OPTIMIZERS[name], EWCpp(lam=1e8), seed) for seed in SEEDS]
    assert mean(guarded) > 0.95 > mean(unguarded(name)) + 0.05


@pytest.mark.parametrize("lam", [1.0, 30.0, 1e3, 1e8])
@pytest.mark.parametrize("options", [{}, {"momentum": 0.9}, {"momentum": 0.9, "nesterov": True}], ids=str)
def test_a_steady_gradient_rests_where_the_whole_spring_holds_it(options: dict[str, Any], lam: float) -> None:
    """At θ* − g / h, however stiff the springs are: part of each pulls before the step, the rest after it."""
    theta = nn.Parameter(torch.zeros(4, dtype=torch.float64))
    model = nn.ParameterList([theta])
    optimizer = SGD(model.parameters(), lr=0.05, **options)
    guard = Guard(model, optimizer, EWC(lam=lam))
    slopes = torch.tensor([1.0, 0.5, 2.0, 0.0], dtype=torch.float64)  # importances: their squares
    guard.consolidate([(theta * slopes).sum()])
    gradient = torch.tensor([1.0, -2.0, 3.0, 0.0], dtype=torch.float64)
    for _ in range(1600):
        theta.grad = gradient.clone()
        optimizer.step()
    expected = -gradient[:3] / (lam * slopes[:3].square())
    torch.testing.assert_close(theta.detach()[:3], expected, rtol=1e-6, atol=1e-15)
    assert theta[3] == 0


def test_springs_that_a_step_can_follow_are_left_to_the_optimizer() -> None:
    """Exactly the paper's equations: nothing is softened, nothing is taken after the step."""
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    alike = copy.deepcopy(model)
    optimizers = [SGD(each.parameters(), lr=0.1) for each in (model, alike)]
    guard = Guard(model, optimizers[0], L2SP(lam=0.4))
    x, y = torch.randn(8, 4), torch.arange(8) % 3
    F.cross_entropy(model(x), y).backward()
    optimizers[0].step()
    optimizers[0].zero_grad()
    guard.consolidate()
    alike.load_state_dict(model.state_dict())
    anchors = [parameter.detach().clone() for parameter in model.parameters()]
    for _ in range(5):
        penalty = sum((p - a).square().sum() for p, a in zip(alike.parameters(), anchors, strict=True))
        F.cross_entropy(model(x), y).backward()
        (F.cross_entropy(alike(x), y) + 0.4 * penalty).backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    for one, other in zip(model.parameters(), alike.parameters(), strict=True):
        torch.testing.assert_close(one, other)


def test_what_momentum_adds_up_to_is_known() -> None:
    parameters = [nn.Parameter(torch.zeros(1))]

    def size(optimizer: Optimizer) -> float | None:
        return stiffness.step_size(optimizer, optimizer.param_groups[0])

    assert size(SGD(parameters, lr=0.1)) == 0.1
    assert size(SGD(parameters, lr=0.1, momentum=0.9)) == pytest.approx(1.0)
    assert size(SGD(parameters, lr=0.1, momentum=0.5, dampening=0.5)) == pytest.approx(0.1)
    assert size(AdamW(parameters, lr=0.1)) == 0.1


# The proximal form's own λ


@pytest.mark.parametrize("kind", [kind for name, kind in METHODS.items() if name != "vanilla"])
def test_each_form_has_a_default_of_its_own(kind: type[Method]) -> None:
    gradient, proximal = kind(), kind(penalty="proximal")
    assert proximal.lam > 10 * gradient.lam > 0
    assert replace(gradient, penalty="proximal") == proximal == pickle.loads(pickle.dumps(proximal))
    assert pickle.loads(pickle.dumps(gradient)) == gradient
    assert replace(pickle.loads(pickle.dumps(gradient)), penalty="proximal") == proximal
    given = kind(lam=float(gradient.lam), penalty="proximal")
    assert given.lam == gradient.lam, "what was given stays"


def test_a_given_lambda_and_the_proximal_forms_own_are_two_runs() -> None:
    own, given = ({"penalty": "proximal"}, {"penalty": "proximal", "lam": 1.0})
    assert RunSpec(method="rwalk", numbers=own).hash() != RunSpec(method="rwalk", numbers=given).hash()
