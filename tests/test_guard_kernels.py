"""Kernels: the scripts of a guard's equations, and the numbers that kernels compute.

Kernels run where there is Triton: on a GPU, or anywhere in Triton's interpreter (`make test-kernels`).
"""

from __future__ import annotations

import os
from dataclasses import replace
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rwalk import EWC, PI, EWCpp, Guard, RWalk
from rwalk.guard.state import codec as codes
from rwalk.guard.step import kernels as generated
from rwalk.guard.step import step_executor as executor
from rwalk.guard.step.equations import AFTER, BEFORE, SCORE, TAKE_OUT, Phase, Plan
from rwalk.guard.step.kernels import Kept, Kernels, Layout, Script, Unwritten
from rwalk.methods import METHODS, Method
from rwalk.methods.l2 import L2SP
from rwalk.methods.mas import MAS

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if DEVICE == "cpu":
    os.environ.setdefault("TRITON_INTERPRET", "1")  # read when Triton is imported
by_kernels = pytest.mark.skipif(find_spec("triton") is None, reason="there is no Triton: make test-kernels")

# Triton's functions in torch.
MEANING = SimpleNamespace(
    where=lambda when, a, b: torch.where(torch.as_tensor(when), torch.as_tensor(a), torch.as_tensor(b)),
    abs=torch.abs,
    sqrt=torch.sqrt,
    maximum=lambda a, b, propagate_nan: torch.maximum(torch.as_tensor(a), torch.as_tensor(b)),
    minimum=lambda a, b, propagate_nan: torch.minimum(torch.as_tensor(a), torch.as_tensor(b)),
    full=lambda shape, number, dtype: torch.full((), number),
    float32=torch.float32,
    PropagateNan=SimpleNamespace(ALL=True),
)


def said(script: Script, words: dict[str, str], columns: dict[str, Tensor]) -> dict[str, Tensor]:
    """The results of a script with numbers in its columns."""
    space: dict[str, Any] = {"tl": MEANING, **columns, **{f"c{i}": n for i, n in enumerate(script.numbers)}}
    space |= {"ROWS": 0, "BLOCK": 0}
    for line in script.lines:
        exec(line, space)
    shape = columns["theta"].shape
    return {name: torch.as_tensor(space[word]).expand(shape) for name, word in words.items()}


def lived(method: Method) -> tuple[dict[str, Tensor], Tensor]:
    """A state after two tasks, and where θ is now."""
    torch.manual_seed(0)
    theta = torch.randn(1, 300)
    state = method.start(theta)
    for _ in range(2):
        for _ in range(4):
            move, grad = 0.1 * torch.randn_like(theta), torch.randn_like(theta)
            theta = theta + move
            method.observe(state, grad, move, grad.square())
        method.consolidate(state, theta, torch.rand_like(theta) if method.data_pass else None)
        method.observe(state, grad, move, grad.square())
    return state, theta + 0.3


@pytest.mark.parametrize("name", METHODS)
def test_equations_that_are_written_down_say_the_same(name: str) -> None:
    method = replace(METHODS[name](), lam=0.7)
    state, theta = lived(method)
    grad, before = torch.randn_like(theta), torch.randn_like(theta)
    columns = {"theta": theta, "grad": grad, "before": before, "given": torch.zeros_like(theta)}
    columns |= {generated.column_of(key): vector for key, vector in state.items()}
    holds = bool(method.springs(state))
    plans = [
        Plan(method, 0.3, at_most, pulls=holds, late=holds) for at_most in ((None, 0.2) if holds else (None,))
    ]
    for plan in plans:
        for phase in (BEFORE, TAKE_OUT, AFTER, SCORE):
            if phase is TAKE_OUT and not holds:
                continue
            script, words = generated.traced(phase, plan, tuple(state))
            got = said(script, words, columns)
            real = {key: vector.clone() for key, vector in columns.items()}
            kept = {key: real[generated.column_of(key)] for key in state}
            phase.equations(plan, real, kept)
            real |= {generated.column_of(key): vector for key, vector in kept.items()}
            results = {*phase.results, *(generated.column_of(key) for key in state)}
            changed = {key for key in results if not torch.equal(real[key], columns[key])}
            assert changed <= got.keys() <= results, phase.name
            for key, vector in got.items():
                torch.testing.assert_close(vector, real[key], rtol=1e-5, atol=1e-6, msg=f"{phase.name}: {key}")


def test_what_no_kernel_is_written_for_is_left_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    class Sorting(Method):
        wants = frozenset({"move"})

        def observe(self, state: Any, grad: Tensor, move: Tensor, square: Tensor) -> None:
            state["order"].copy_(grad.sort().values)

    kernels = Kernels([torch.ones(3, device=DEVICE)], {"order": Kept([[torch.ones(3)]])}, ["p"], lambda: 0)
    own = type("Own", (RWalk,), {})()
    assert not kernels.run(AFTER, Plan(own), {"grad": [torch.ones(3)]}), "it may do anything from step to step"
    monkeypatch.setitem(METHODS, "sorting", Sorting)
    assert not kernels.run(AFTER, Plan(Sorting()), {"grad": [torch.ones(3)]})
    with pytest.raises(Unwritten):
        Script().column("theta").sort()


# ── by kernels ────────────────────────────────────────────────────────────────────────────────────────────────


class Network(nn.Module):
    """Parameters of one number and of several blocks, one of them with channels last, one without a gradient."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Conv2d(2, 5, 2)
        self.wide = nn.Linear(5, 700)
        self.gain = nn.Parameter(torch.ones(1))
        self.idle = nn.Parameter(torch.ones(3))
        self.head = nn.Linear(700, 4)
        self.to(DEVICE, dtype)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head((self.gain * self.wide(self.first(x).mean((2, 3)))).tanh())
        return logits


Trained = tuple[Guard, Tensor]


def trained(method: Method, wide: torch.dtype = torch.float32, steps: int = 5, **options: Any) -> Trained:
    """Two tasks and half of a third; the guard, and all gradients as they were left."""
    model = Network(wide)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.5)
    guard = Guard(model, optimizer, method, **options)
    draw = torch.Generator().manual_seed(0)
    left = []
    for task in range(3):
        x = torch.randn(steps, 8, 2, 3, 3, generator=draw).to(DEVICE, wide)
        y = torch.randint(4, (steps, 8), generator=draw).to(DEVICE)
        for i in range(steps if task < 2 else steps // 2):
            optimizer.zero_grad()
            F.cross_entropy(model(x[i]).float(), y[i]).backward()
            optimizer.step()
            left += [p.grad.flatten().float() for p in model.parameters() if p.grad is not None]
        if task < 2:
            losses = (F.cross_entropy(model(x[i]).float(), y[i]) for i in range(2))
            guard.consolidate(losses) if method.data_pass else guard.consolidate()
    return guard, torch.cat(left)


def apart_from_kernels(monkeypatch: pytest.MonkeyPatch, *args: Any, **options: Any) -> Trained:
    with monkeypatch.context() as patch:
        patch.setattr(generated, "can_launch", lambda device: False)
        return trained(*args, **options)


def with_kernels(monkeypatch: pytest.MonkeyPatch, *args: Any, **options: Any) -> Trained:
    """Every step by kernels, or the test fails."""

    def never(*args: Any) -> None:
        pytest.fail("this was not done by a kernel")

    with monkeypatch.context() as patch:
        patch.setattr(generated, "can_launch", lambda device: True)
        patch.setattr(executor.Batch, "_run_eagerly", never)
        launches = []
        launch = Layout.launch
        patch.setattr(Layout, "launch", lambda *args: launches.append(args) or launch(*args))
        found = trained(*args, **options)
        assert launches and not generated._failed, generated._told
        return found


def assert_alike(ours: Trained, theirs: Trained, near: float) -> None:
    for mine, other in zip(ours[0].model.parameters(), theirs[0].model.parameters(), strict=True):
        torch.testing.assert_close(mine, other, rtol=near, atol=near)
    mine, other = (guard.state_dict()["tensors"] for guard, _ in (ours, theirs))
    assert mine.keys() == other.keys()
    for key, vector in mine.items():
        # Paths are sums of products with moves, differences of rounded parameters; scores are made of them.
        least = 0.05 if key.startswith(("path", "score")) else 1e-6
        scale = max(float(other[key].abs().max()), least)
        torch.testing.assert_close(vector, other[key], rtol=near, atol=near * scale, msg=key)
    torch.testing.assert_close(ours[1], theirs[1], rtol=near, atol=near)


@pytest.fixture
def _forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """No kernel has failed so far."""
    monkeypatch.setattr(generated, "_failed", set())
    monkeypatch.setattr(generated, "_told", set())
    monkeypatch.setattr(generated, "can_launch", lambda device: True)
    if find_spec("triton") is None:
        monkeypatch.setattr(generated, "kernel_of", lambda text: text)


@pytest.mark.usefixtures("_forgotten")
@pytest.mark.parametrize("options", [{}, {"dtype": "8bit"}], ids=["float32", "8 bits"])
@pytest.mark.parametrize("last", [0, 1, 7])
def test_where_kernels_cannot_be_launched_training_goes_on_without(
    last: int, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Whichever fails first: there may be no compiler, and not every kernel is there from the start."""
    theirs = apart_from_kernels(monkeypatch, RWalk(lam=0.1, dt=3), **options)
    launched = []

    def launch(self: Layout, *args: Any) -> None:
        launched.append(args)
        if len(launched) > last or find_spec("triton") is None:
            raise RuntimeError("no compiler here")
        really(self, *args)

    really = Layout.launch
    monkeypatch.setattr(Layout, "launch", launch)
    ours = trained(RWalk(lam=0.1, dt=3), **options)
    assert_alike(ours, theirs, 0.15 if options else 2e-5)
    assert warnings_of(caplog) == ["part of a guarded step runs without its generated kernel: no compiler here"]


@pytest.mark.usefixtures("_forgotten")
def test_a_failed_kernel_is_replaced_alone_with_one_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    launched = []

    def kernel_of(text: str) -> str:
        if "tl.sqrt" in text:
            raise RuntimeError("too many registers")
        return text

    def launch(self: Layout, kernel: str, *args: Any) -> None:
        launched.append(kernel)

    def root(plan: Plan, at: Any, state: Any) -> None:
        at["theta"].copy_(at["theta"].sqrt())

    def half(plan: Plan, at: Any, state: Any) -> None:
        at["theta"].mul_(0.5)

    monkeypatch.setattr(generated, "kernel_of", kernel_of)
    monkeypatch.setattr(Layout, "launch", launch)
    kernels = Kernels([torch.ones(3, device=DEVICE)], {}, ["p"], lambda: 0)
    phases = [Phase(each.__name__, each, frozenset({"theta"})) for each in (half, root, half, root)]
    assert [kernels.run(phase, Plan(RWalk()), {}) for phase in phases] == [True, False, True, False]
    assert len(launched) == 2
    assert warnings_of(caplog) == ["part of a guarded step runs without its generated kernel: too many registers"]


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name.startswith("rwalk")]


WAYS = [
    RWalk(lam=0.1, dt=3),
    RWalk(lam=0.1, dt=3, fisher_at="start"),
    RWalk(lam=1e4, dt=3),
    RWalk(lam=10.0, dt=2, penalty="proximal"),
    PI(lam=0.1),
    EWCpp(lam=1.0),
    EWC(lam=0.1),
    EWC(lam=1e6),
    MAS(lam=0.1),
    L2SP(lam=0.1),
]


@by_kernels
@pytest.mark.parametrize("method", WAYS, ids=str)
def test_kernels_walk_as_operations_do(method: Method, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = (way(monkeypatch, method) for way in (with_kernels, apart_from_kernels))
    assert_alike(ours, theirs, 2e-5)


@by_kernels
def test_narrow_parameters_go_through_kernels_too(monkeypatch: pytest.MonkeyPatch) -> None:
    method = RWalk(lam=0.1, dt=3)
    ours, theirs = (way(monkeypatch, method, torch.bfloat16) for way in (with_kernels, apart_from_kernels))
    mine, other = (
        torch.cat([p.detach().flatten() for p in guard.model.parameters()]) for guard, _ in (ours, theirs)
    )
    torch.testing.assert_close(mine, other, rtol=0.02, atol=0.02)
    states = [guard.state_dict()["tensors"] for guard, _ in (ours, theirs)]
    for key, vector in states[0].items():  # Triton's interpreter cuts bits off where a GPU rounds
        off = (vector - states[1][key]).float().norm() / states[1][key].float().norm().clamp(min=1e-6)
        assert off < 0.2 or vector.numel() < 100, key  # of a single number, one bit is everything


@by_kernels
@pytest.mark.parametrize("name", ["fisher", "path", "anchor"])
def test_codes_are_the_same_bit_by_bit(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Written by a kernel, read by a kernel, and both without one."""
    torch.manual_seed(0)
    code: Any = codes.code_of(name)
    thetas = [torch.randn(size) * 10.0 ** torch.randint(-9, 9, (size,)) for size in (1, 128, 300, 5000)]
    thetas[1].zero_()
    thetas[2][5], thetas[3][200] = float("nan"), float("inf")
    thetas = [theta.to(DEVICE) for theta in thetas]
    padded = [F.pad(theta, (0, -len(theta) % codes.BLOCK)).view(-1, codes.BLOCK) for theta in thetas]
    phases = [codes.phases(f"p{i}", len(each), each.device) for i, each in enumerate(padded)]
    draws = [codes.drawn(phase, name, moment=7) if code.draws else None for phase in phases]
    expected = [code.encode(each, draw) for each, draw in zip(padded, draws, strict=True)]
    rooms = [tuple(torch.zeros_like(each) for each in kept) for kept in expected]
    columns = [list(column) for column in zip(*rooms, strict=True)]
    kept = Kept(columns, code)
    names = [f"p{i}" for i in range(len(thetas))]
    kernels = Kernels(thetas, {name: kept}, names, lambda: 7)

    def write(plan: Plan, at: Any, state: Any) -> None:
        state[name].copy_(at["theta"])

    def read(plan: Plan, at: Any, state: Any) -> None:
        at["given"].copy_(state[name])

    plan = Plan(RWalk())
    assert kernels.run(Phase("write", write, frozenset()), plan, {}), generated._told
    for room, wanted, theta in zip(rooms, expected, padded, strict=True):
        assert torch.equal(room[1], wanted[1])
        known = (
            theta.isfinite().all(1) if name == "anchor" else slice(None)
        )  # in no level of a lost block is anything
        assert torch.equal(room[0][known], wanted[0][known])
    given = [torch.empty_like(theta) for theta in thetas]
    assert kernels.run(Phase("read", read, frozenset({"given"})), plan, {"given": given})
    decoded = torch.cat(
        [code.decode(*room).flatten()[: len(theta)] for room, theta in zip(rooms, thetas, strict=True)]
    )
    torch.testing.assert_close(torch.cat(given), decoded, rtol=0, atol=0, equal_nan=True)
    assert not decoded[-4800].isfinite()  # which was infinite


@by_kernels
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_kernels_round_narrow_parameters_by_the_same_draws(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    thetas = [torch.randn(size, device=DEVICE).to(dtype) for size in (1, 128, 700)]
    expected = []
    for i, theta in enumerate(thetas):
        wide = theta.float() * 1.0001
        draws = codes.drawn_for(wide, f"p{i}", "theta", 7)
        expected.append(codes.rounded(wide, dtype, draws).to(dtype))
    names = [f"p{i}" for i in range(len(thetas))]
    kernels = Kernels(thetas, {}, names, lambda: 7)

    def grow(plan: Plan, at: Any, state: Any) -> None:
        at["theta"].mul_(1.0001)

    assert kernels.run(Phase("grow", grow, frozenset({"theta"})), Plan(RWalk()), {}), generated._told
    assert all(map(torch.equal, thetas, expected))


@by_kernels
@pytest.mark.parametrize("method", WAYS, ids=str)
def test_kernels_keep_a_state_of_8_bits(method: Method, monkeypatch: pytest.MonkeyPatch) -> None:
    """As operations do, except where rounding changes a draw: a level is an eighth of a number."""
    ours, theirs = (way(monkeypatch, method, dtype="8bit") for way in (with_kernels, apart_from_kernels))
    for mine, other in zip(ours[0].model.parameters(), theirs[0].model.parameters(), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-3, atol=1e-3)
    mine, other = (guard.state_dict()["tensors"] for guard, _ in (ours, theirs))
    for key, vector in mine.items():
        far = (vector - other[key]).abs() > 1e-5 + 1e-4 * other[key].abs()
        assert far.float().mean() <= 0.02 or vector.numel() < 100, key
        torch.testing.assert_close(
            vector, other[key], rtol=0.13, atol=1e-3 * float(other[key].abs().max()), msg=key
        )
    torch.testing.assert_close(ours[1], theirs[1], rtol=1e-3, atol=1e-3)
