"""The executor: a guarded step against the equations written out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils._python_dispatch import TorchDispatchMode

import guard_memory
from rwalk import EWC, PI, Guard, InputError, RWalk
from rwalk.methods import Method, State

RWALK = RWalk(lam=0.1, dt=3)  # soft enough to be left to the optimizer


class Network(nn.Module):
    """Parameters of several sizes and of two precisions, and heads that take turns."""

    def __init__(self, narrow: torch.dtype = torch.float32) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Conv2d(1, 3, 2, dtype=torch.float64).to(memory_format=torch.channels_last)
        self.second = nn.Linear(3, 6, dtype=torch.float64)
        self.third = nn.Linear(6, 5, dtype=narrow)
        self.heads = nn.ModuleList(nn.Linear(5, 4, dtype=narrow) for _ in range(2))

    def forward(self, x: Tensor, head: int) -> Tensor:
        seen = self.second(self.first(x).mean((2, 3))).tanh()
        logits: Tensor = self.heads[head](self.third(seen.to(self.third.weight.dtype)).tanh())
        return logits


def batches(task: int) -> list[tuple[Tensor, Tensor, int]]:
    draw = torch.Generator().manual_seed(task)
    return [
        (
            torch.randn(8, 1, 4, 4, generator=draw, dtype=torch.float64),
            torch.randint(4, (8,), generator=draw),
            i % 2,
        )
        for i in range(8)
    ]


def walked(model: Network, guard: Guard | None, optimizer: Optimizer, oracle: Oracle | None = None) -> None:
    for task in range(2):
        for x, y, head in batches(task):
            F.cross_entropy(model(x, head), y).backward()
            if oracle is None:
                optimizer.step()
            else:
                oracle.step(optimizer)
            optimizer.zero_grad()
        if guard is not None:
            guard.consolidate()
        elif oracle is not None:
            oracle.end_task()


class Oracle:
    """RWalk as the paper has it, parameter by parameter, with a copy of everything."""

    def __init__(self, model: nn.Module, method: RWalk) -> None:
        self.method = method
        self.parameters = list(model.parameters())
        self.anchors: dict[nn.Parameter, tuple[Tensor, Tensor]] = {}
        self.fisher = {p: torch.zeros_like(p) for p in self.parameters}
        self.score = {p: torch.zeros_like(p) for p in self.parameters}
        self.path = {p: torch.zeros_like(p) for p in self.parameters}
        self.origin = {p: p.detach().clone() for p in self.parameters}
        self.joined: set[nn.Parameter] = set()
        self.steps = 0

    @torch.no_grad()
    def step(self, optimizer: Optimizer) -> None:
        moving = [p for p in self.parameters if p.grad is not None]
        before = {p: (p.clone(), p.grad.clone()) for p in moving if p.grad is not None}
        for p in moving:
            if p in self.anchors and p.grad is not None:
                importance, anchor = self.anchors[p]
                p.grad += 2 * self.method.lam * importance * (p - anchor)
        optimizer.step()
        for p, (theta, grad) in before.items():
            self.joined.add(p)
            self.fisher[p] = (1 - self.method.alpha) * self.fisher[p] + self.method.alpha * grad**2
            self.path[p] = self.path[p] - grad * (p - theta)
        self.steps += 1
        if self.steps % self.method.dt == 0:
            self.end_window()

    def end_window(self) -> None:
        for p in self.joined:
            distance = 0.5 * self.fisher[p] * (p.detach() - self.origin[p]) ** 2
            gained = (self.path[p] / (distance + self.method.eps)).clamp(min=0)
            self.score[p] = self.score[p] + gained * (0.5 if p in self.anchors else 1)
            self.path[p] = torch.zeros_like(p)
            self.origin[p] = p.detach().clone()

    def end_task(self) -> None:
        self.end_window()

        def unit(vectors: dict[nn.Parameter, Tensor], p: nn.Parameter) -> Tensor:
            every = torch.cat([vectors[each].flatten().double() for each in self.joined])
            return (vectors[p] - every.min()) / (every.max() - every.min())

        found = {p: (unit(self.fisher, p) + unit(self.score, p)).to(p.dtype) for p in self.joined}
        self.anchors = {p: (importance, p.detach().clone()) for p, importance in found.items()}
        self.score = {p: score / 2 for p, score in self.score.items()}
        self.steps = 0


def sgd(model: nn.Module) -> Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.5)


@pytest.mark.parametrize(("narrow", "near"), [(torch.float64, 1e-11), (torch.float32, 1e-4)], ids=str)
def test_network_walks_as_the_equations_written_out(narrow: torch.dtype, near: float) -> None:
    ours, theirs = Network(narrow), Network(narrow)
    guard = Guard(ours, optimizer := sgd(ours), RWALK)
    walked(ours, guard, optimizer)
    oracle = Oracle(theirs, RWALK)
    walked(theirs, None, sgd(theirs), oracle)
    for p, q in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=0, atol=near)
    kept = guard.state_dict()["tensors"]
    for (name, _), q in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        importance, anchor = oracle.anchors[q]
        torch.testing.assert_close(kept[f"anchor/{name}"], anchor, rtol=0, atol=near)
        torch.testing.assert_close(kept[f"importance/{name}"], importance, rtol=0, atol=10 * near)


class Changing(torch.optim.SGD):
    """Clips the gradients themselves, as some people's optimizers do."""

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.grad.clamp_(-1e-3, 1e-3)
        return super().step(closure)


class Replacing(torch.optim.SGD):
    """Gives parameters new numbers, and not in their old place."""

    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.data = p.data - group["lr"] * p.grad


@pytest.mark.parametrize("method", [RWALK, PI(lam=0.1), EWC(lam=0.1)], ids=str)
def test_a_step_makes_no_views(method: Method) -> None:
    """With hundreds of parameters, each view would take the host as long as a kernel."""
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(5)))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, foreach=True)
    guard = Guard(model, optimizer, method)
    x = torch.randn(8, 4)

    def backward() -> None:
        optimizer.zero_grad()
        model(x).square().mean().backward()

    for _ in range(2):
        backward()
        optimizer.step()
    guard.consolidate((model(x).square().mean() for _ in range(2)) if method.data_pass else None)
    backward()
    optimizer.step()
    backward()
    with Seen() as seen:
        optimizer.step()
    assert seen.names and not seen.names & {"unsqueeze", "select", "view", "reshape", "squeeze", "detach"}


class Seen(TorchDispatchMode):
    """The names of all operations."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.add(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("kind", [Changing, Replacing])
def test_whatever_an_optimizer_does_the_gradient_and_the_move_are_observed(kind: type[Optimizer]) -> None:
    model = Network()
    guard = Guard(model, optimizer := kind(model.parameters(), lr=0.05), RWALK)
    x, y, head = batches(0)[0]
    for _ in range(2):
        F.cross_entropy(model(x, head), y).backward()
        grads = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
        before = {name: p.detach().clone() for name, p in model.named_parameters()}
        paths = {name: t.clone() for name, t in guard.state_dict()["tensors"].items() if name.startswith("path/")}
        optimizer.step()
        state = guard.state_dict()["tensors"]
        for name, p in model.named_parameters():
            if name in grads:
                assert torch.equal(p.grad, grads[name])
                moved = -grads[name] * (p.detach() - before[name])
                torch.testing.assert_close(state[f"path/{name}"], paths.get(f"path/{name}", 0) + moved)
        optimizer.zero_grad()


@pytest.mark.parametrize("foreach", [False, True])
def test_torchs_own_optimizers_leave_gradients_as_they_are(foreach: bool) -> None:
    kinds = [
        kind
        for name, kind in vars(torch.optim).items()
        if isinstance(kind, type)
        and issubclass(kind, Optimizer)
        and name not in ("Optimizer", "LBFGS", "SparseAdam")
    ]
    assert len(kinds) > 8
    for kind in kinds:
        parameter = nn.Parameter(torch.ones(3, 2))
        options = {"lr": 0.1, "weight_decay": 0.1, "foreach": foreach}
        known = kind.__init__.__code__.co_varnames
        optimizer = kind([parameter], **{key: value for key, value in options.items() if key in known})
        for _ in range(3):
            parameter.grad = torch.full((3, 2), 0.5)
            optimizer.step()
            assert parameter.grad.eq(0.5).all(), kind.__name__


@pytest.mark.parametrize(("method", "vectors"), [(RWalk(), 8), (RWalk(penalty="proximal"), 7), (PI(), 6)], ids=str)
def test_memory_at_the_peak_is_as_documented(method: Method, vectors: int) -> None:
    """As many vectors as that, and one tensor."""
    more, sizes = guard_memory.extra(method, layers=12, width=64, outputs=128, steps=11)
    assert more <= vectors * sum(sizes) + 1.5 * max(sizes)


@dataclass(frozen=True)
class Careless(RWalk):
    """Rebinds a vector instead of changing it, and makes another if `invents`."""

    invents: bool = False

    def observe(self, state: State, grad: Tensor, move: Tensor, square: Tensor) -> None:
        state["fisher"] = state["fisher"] * (1 - self.alpha) + self.alpha * square
        state["path"] = state["path"] - grad * move
        if self.invents:
            state["new"] = grad


def test_a_method_may_rebind_its_vectors_but_not_make_new_ones_in_a_step() -> None:
    states = []
    for method in (RWALK, Careless(lam=0.1, dt=3)):
        guard = Guard(model := Network(), optimizer := sgd(model), method)
        walked(model, guard, optimizer)
        states.append(guard.state_dict()["tensors"])
    for name, tensor in states[0].items():
        torch.testing.assert_close(states[1][name], tensor, rtol=1e-4, atol=1e-6)
    guard = Guard(model := Network(), optimizer := sgd(model), Careless(invents=True))
    with pytest.raises(InputError, match="not 'new' in a step"):
        walked(model, guard, optimizer)


def test_ewc_holds_each_task() -> None:
    guard = Guard(model := Network(), optimizer := sgd(model), EWC(lam=10.0))
    for task in range(2):
        for x, y, head in batches(task):
            F.cross_entropy(model(x, head), y).backward()
            optimizer.step()
            optimizer.zero_grad()
        guard.consolidate(F.cross_entropy(model(x, head), y) for x, y, head in batches(task))
    springs = guard.state_dict()["tensors"]
    by_hand = sum(
        5.0 * float((springs[f"fisher.{k}/{name}"] * (p.detach() + 1 - springs[f"anchor.{k}/{name}"]) ** 2).sum())
        for k in range(2)
        for name, p in model.named_parameters()
    )
    with torch.no_grad():
        for p in model.parameters():
            p += 1
    assert guard.penalty() == pytest.approx(by_hand, rel=1e-5)
