"""Quantized and offloaded state: decoded and encoded chunk by chunk in a step."""

from __future__ import annotations

import copy
import importlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import SGD, Adam, Optimizer

import guard_memory
from rwalk import EWC, PI, Guard, InputError, RWalk, metrics
from rwalk.guard.state import codec as codes
from rwalk.guard.state import quantized
from rwalk.guard.state.codec import AMOUNT, PLACE, SUM, Code
from rwalk.methods import METHODS, EWCpp, Method

EVERY_CODE = pytest.mark.parametrize("code", [AMOUNT, SUM, PLACE], ids=["amount", "sum", "place"])
MADE = [
    EWC(lam=20.0),
    EWCpp(lam=20.0),
    PI(lam=5.0),
    RWalk(lam=5.0, dt=3),
    RWalk(penalty="proximal", dt=3),
    RWalk(lam=5.0, dt=3, fisher_at="start"),
]
EVERY_METHOD = pytest.mark.parametrize("method", MADE, ids=str)


# Codes


def numbers(code: Code) -> Tensor:
    """Blocks of all sizes."""
    drawn = torch.randn(32, codes.BLOCK, generator=torch.Generator().manual_seed(0)).exp()
    signs = 1 if code is AMOUNT else torch.tensor([1.0, -1.0]).repeat(codes.BLOCK // 2)
    return drawn * signs * torch.logspace(-20, 15, 32)[:, None]


@EVERY_CODE
def test_what_is_on_a_level_stays_there(code: Code) -> None:
    kept = code.encode(numbers(code))
    read = code.decode(*kept)
    draws = codes.drawn(codes.phases("weight", 32, read.device), "fisher", 5)
    for again in (code.encode(read), code.encode(read, draws)):
        assert all(map(torch.equal, kept, again))


@pytest.mark.parametrize(("code", "share"), [(AMOUNT, 0.0626), (SUM, 0.0005)], ids=["amount", "sum"])
def test_each_number_is_rounded_by_a_share_of_itself(code: Code, share: float) -> None:
    exact = numbers(code)
    torch.testing.assert_close(code.decode(*code.encode(exact)), exact, rtol=share, atol=0)


def test_places_are_rounded_by_a_share_of_the_largest() -> None:
    exact = numbers(PLACE)
    error = (PLACE.decode(*PLACE.encode(exact)) - exact).abs().amax(1)
    assert (error <= 2.0**-15 * exact.abs().amax(1)).all()


@EVERY_CODE
@pytest.mark.parametrize("worst", [float("inf"), float("nan"), -float("nan")])
def test_what_is_no_number_stays_none(code: Code, worst: float) -> None:
    spoilt = numbers(code)
    spoilt[3, 5] = worst
    read = code.decode(*code.encode(spoilt)).isfinite()
    assert not read[3].all() and read[:3].all() and read[4:].all()


@pytest.mark.parametrize("rate", [0.9, 0.01])
def test_an_average_moves_however_slowly_it_does(rate: float) -> None:
    """By nearest levels, one that moves by a hundredth per step would never leave its level."""
    draw = torch.Generator().manual_seed(0)
    exact, kept = torch.zeros(64, codes.BLOCK), AMOUNT.encode(torch.zeros(64, codes.BLOCK))
    phases = codes.phases("weight", 64, exact.device)
    for step in range(1000):
        square = torch.randn(exact.shape, generator=draw).square()
        exact.lerp_(square, rate)
        kept = AMOUNT.encode(AMOUNT.decode(*kept).lerp_(square, rate), codes.drawn(phases, "fisher", step))
    read = AMOUNT.decode(*kept)
    assert float(read.mean()) == pytest.approx(float(exact.mean()), rel=0.04)
    assert ((read - exact) / exact).std() < 0.2


def test_a_sum_of_many_small_amounts_is_right_on_average() -> None:
    kept = AMOUNT.encode(torch.zeros(64, codes.BLOCK))
    phases = codes.phases("weight", 64, torch.device("cpu"))
    for step in range(2000):
        kept = AMOUNT.encode(AMOUNT.decode(*kept) + 1.0, codes.drawn(phases, "score", step))
    read = AMOUNT.decode(*kept) / 2000
    assert float(read.mean()) == pytest.approx(1.0, abs=0.04) and read.std() < 0.25


def test_every_vector_of_our_methods_has_a_code() -> None:
    theta = torch.zeros(1, 1)
    for kind in METHODS.values():
        method = kind()
        state = method.start(theta)
        ranges = dict.fromkeys(method.scales, (torch.zeros(()), torch.ones(())))
        method.consolidate(state, theta, theta if method.data_pass else None, ranges)
        for name in state:
            assert not isinstance(codes.code_of(name), codes.Plain), name


# A guard with such a state


class Network(nn.Module):
    """Sizes that fill no block, or several; one that does not lie in a row; and heads that take turns."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Conv2d(2, 6, 3, padding=1).to(memory_format=torch.channels_last)
        self.second = nn.Linear(6, 50)
        self.third = nn.Linear(50, 16)
        self.heads = nn.ModuleList(nn.Linear(16, 3) for _ in range(2))
        self.to(dtype)

    def forward(self, x: Tensor, head: int) -> Tensor:
        seen = self.third(self.second(self.first(x).mean((2, 3))).tanh()).tanh()
        logits: Tensor = self.heads[head](seen)
        return logits


Batch = tuple[Tensor, Tensor, int]
Walked = tuple[list[Tensor], dict[str, Tensor]]


def batches(task: int, dtype: torch.dtype = torch.float32) -> list[Batch]:
    draw = torch.Generator().manual_seed(task)
    return [
        (torch.randn(8, 2, 4, 4, generator=draw).to(dtype), torch.randint(3, (8,), generator=draw), i % 2)
        for i in range(10)
    ]


def learn(model: nn.Module, optimizer: Optimizer, seen: Sequence[Batch]) -> None:
    for x, y, head in seen:
        F.cross_entropy(model(x, head), y).backward()
        optimizer.step()
        optimizer.zero_grad()


def end(guard: Guard, task: int) -> None:
    dtype = next(guard.model.parameters()).dtype
    losses = (F.cross_entropy(guard.model(x, head), y) for x, y, head in batches(task, dtype))
    guard.consolidate(losses if guard.method.data_pass else None)  # type: ignore[union-attr]


def walked(
    method: Method, make: Callable[..., Optimizer] = Adam, precision: torch.dtype = torch.float32, **options: Any
) -> Walked:
    model = Network(precision)
    optimizer = make(model.parameters(), lr=0.02)
    guard = Guard(model, optimizer, method, **options)
    for task in range(2):
        learn(model, optimizer, batches(task, precision))
        end(guard, task)
    learn(model, optimizer, batches(2, precision))
    return [p.detach() for p in model.parameters()], guard.state_dict()["tensors"]


@pytest.fixture(params=["one chunk", "many chunks"])
def _divided(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "many chunks":
        monkeypatch.setattr(quantized, "MOST", {"cpu": 2 * codes.BLOCK})


@pytest.mark.usefixtures("_divided")
@pytest.mark.parametrize("precision", [torch.float32, torch.float64])
@EVERY_METHOD
def test_state_on_the_host_does_the_same(method: Method, precision: torch.dtype) -> None:
    """Kept on the host, in the precision of the equations: only the rounding of gradients differs."""
    near = 1e-5 if precision == torch.float32 else 1e-12
    ours, theirs = (walked(method, precision=precision, **how) for how in ({"offload": "cpu"}, {}))
    torch.testing.assert_close(ours[0], theirs[0], rtol=0, atol=near)
    assert ours[1].keys() == theirs[1].keys()
    for name, vector in theirs[1].items():
        torch.testing.assert_close(ours[1][name], vector, rtol=100 * near, atol=10 * near)


@EVERY_METHOD
def test_size_of_chunks_makes_no_difference(method: Method, monkeypatch: pytest.MonkeyPatch) -> None:
    together = walked(method, dtype="8bit")
    monkeypatch.setattr(quantized, "MOST", {"cpu": codes.BLOCK})
    assert same(together, walked(method, dtype="8bit"))


def same(one: Walked, other: Walked) -> bool:
    pairs = [*zip(one[0], other[0], strict=True), *((one[1][name], other[1][name]) for name in one[1])]
    return one[1].keys() == other[1].keys() and all(torch.equal(a, b) for a, b in pairs)


@EVERY_METHOD
def test_8_bits_do_nearly_the_same_again_and_again_and_draw_nothing(method: Method) -> None:
    before = torch.get_rng_state()
    model = Network()
    drawn_by_the_model = torch.get_rng_state()
    torch.set_rng_state(before)
    rounded = walked(method, dtype="8bit")
    assert torch.equal(torch.get_rng_state(), drawn_by_the_model)
    assert same(rounded, walked(method, dtype="8bit"))
    exact = walked(method)
    start = torch.cat([p.detach().flatten() for p in model.parameters()])
    ours, theirs = (torch.cat([p.flatten() for p in each[0]]) for each in (rounded, exact))
    assert 0 < (ours - theirs).norm() < 0.1 * (theirs - start).norm()


@pytest.mark.parametrize("within_a_task", [False, True])
@EVERY_METHOD
def test_a_resumed_run_goes_on_bit_for_bit(method: Method, within_a_task: bool, tmp_path: Path) -> None:
    model = Network()
    optimizer = SGD(model.parameters(), lr=0.02)
    guard = Guard(model, optimizer, method, dtype="8bit")
    learn(model, optimizer, batches(0))
    end(guard, 0)
    learn(model, optimizer, batches(1)[: 4 * within_a_task])
    guard.save(tmp_path / "guard.safetensors")
    other = copy.deepcopy(model)
    following = SGD(other.parameters(), lr=0.02)
    loaded = Guard.load(tmp_path / "guard.safetensors", other, following, dtype="8bit")
    for each, its, on in ((model, guard, optimizer), (other, loaded, following)):
        learn(each, on, batches(1)[4:])
        end(its, 1)
        learn(each, on, batches(2))
    assert same(*((list(each.model.parameters()), each.state_dict()["tensors"]) for each in (guard, loaded)))


def test_files_do_not_know_how_a_state_is_kept(tmp_path: Path) -> None:
    model = Network()
    optimizer = SGD(model.parameters(), lr=0.02)
    guard = Guard(model, optimizer, RWalk(), dtype="8bit")
    learn(model, optimizer, batches(0))
    end(guard, 0)
    guard.save(tmp_path / "guard.safetensors")
    kept = guard.state_dict()["tensors"]
    guard.detach()
    wide = Guard.load(tmp_path / "guard.safetensors", model, optimizer)
    assert all(torch.equal(vector, kept[name]) for name, vector in wide.state_dict()["tensors"].items())


@pytest.mark.parametrize("options", [{"dtype": "8bit"}, {"offload": "cpu"}], ids=str)
@pytest.mark.parametrize("method", [RWalk(lam=5.0), RWalk(lam=1e5), EWC(lam=20.0)], ids=str)
def test_gradients_are_what_they_were(method: Method, options: dict[str, Any]) -> None:
    """After a step, and after one that failed; to within rounding, where they were pulled in place."""
    model = Network()
    guard = Guard(model, optimizer := Failing(model.parameters(), lr=0.02), method, **options)
    learn(model, optimizer, batches(0))
    end(guard, 0)
    learn(model, optimizer, batches(1)[:2])
    x, y, head = batches(1)[2]
    for optimizer.fails in (True, False):
        F.cross_entropy(model(x, head), y).backward()
        grads = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
        held = guard.state_dict()["tensors"]
        if optimizer.fails:
            with pytest.raises(RuntimeError, match="on purpose"):
                optimizer.step()
            after = guard.state_dict()["tensors"]
            assert all(torch.equal(vector, after[name]) for name, vector in held.items())
            optimizer.fails = False
        optimizer.step()  # after a failed step: once more, with the same gradients
        for name, p in model.named_parameters():
            if name in grads:
                torch.testing.assert_close(p.grad, grads[name], rtol=1e-4, atol=1e-6)
        assert optimizer.saw_a_pull
        optimizer.zero_grad()


class Failing(SGD):
    """Fails half-way if `fails` is set."""

    __module__ = "torch.optim.sgd"  # it leaves gradients as they are
    fails = saw_a_pull = False

    def step(self, closure: Any = None) -> Any:
        grads = [p.grad.clone() for group in self.param_groups for p in group["params"] if p.grad is not None]
        self.saw_a_pull = any(bool(grad.any()) for grad in grads)
        super().step(closure)
        if self.fails:
            raise RuntimeError("on purpose")


def test_a_parameter_may_grow_and_move() -> None:
    model = nn.Sequential(nn.Linear(40, 30), nn.Linear(30, 4))
    optimizer: Optimizer = SGD(model.parameters(), lr=0.1)
    guard = Guard(model, optimizer, RWalk(), dtype="8bit")

    def step() -> None:
        model(torch.ones(2, 40)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    step()
    guard.consolidate()
    known = guard.state_dict()["tensors"]["importance/1.weight"]
    head = nn.Linear(30, 6)
    with torch.no_grad():
        head.weight[:4], head.bias[:4] = model[1].weight, model[1].bias
    model[1] = head
    guard.attach(optimizer := SGD(model.parameters(), lr=0.1))
    grown = guard.state_dict()["tensors"]["importance/1.weight"]
    assert not grown[4:].any()
    torch.testing.assert_close(grown[:4], known, rtol=0.1, atol=1e-6)
    step()
    assert guard.penalty() >= 0


# Refused


def test_an_unknown_dtype_is_refused() -> None:
    model = nn.Linear(4, 2)
    with pytest.raises(InputError, match="dtype must be '8bit' or None, not '4bit'"):
        Guard(model, SGD(model.parameters(), lr=0.1), dtype="4bit")  # type: ignore[arg-type]


def test_a_method_may_not_make_vectors_in_a_step() -> None:
    class Inventing(RWalk):
        def observe(self, state: Any, grad: Tensor, move: Tensor, square: Tensor) -> None:
            state["new"] = grad

    guard = Guard(
        model := nn.Linear(2, 2), optimizer := SGD(model.parameters(), lr=0.1), Inventing(), dtype="8bit"
    )
    model(torch.ones(1, 2)).sum().backward()
    with pytest.raises(InputError, match="not 'new' in a step"):
        optimizer.step()
    guard.detach()


# Memory, protection


@pytest.mark.parametrize(
    ("method", "vectors"),
    [(RWalk(dt=2), 3.5), (RWalk(lam=1e4, dt=2), 3.5), (RWalk(penalty="proximal", dt=2), 3.5), (PI(), 3.0)],
    ids=str,
)
def test_memory_at_the_peak_is_as_documented(method: Method, vectors: float) -> None:
    more, sizes = guard_memory.extra(method, layers=8, width=256, outputs=1024, steps=3, dtype="8bit")
    assert more <= vectors * sum(sizes)


@pytest.mark.slow
@pytest.mark.parametrize("method", [RWalk(), PI(), EWC(lam=1e3), EWCpp()], ids=lambda method: method.name)
def test_8_bits_protect_as_well(method: Method, monkeypatch: pytest.MonkeyPatch) -> None:
    """Digits in five tasks, five seeds: forgetting and accuracy are not significantly a point worse."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "examples"))
    digits = importlib.import_module("guard_plain")
    stream = digits.tasks()
    found: dict[Any, Any] = {}
    for dtype in (None, "8bit"):
        runs = np.stack([protected(digits, stream, seed, method, dtype) for seed in range(5)])
        found[dtype] = metrics.forgetting(runs), metrics.average_accuracy(runs)
        print(
            method.name,
            dtype,
            *(f"{100 * each.mean():.2f} ± {100 * each.std(ddof=1):.2f}" for each in found[dtype]),
        )
    (forgot, known), (forgot_8, known_8) = found[None], found["8bit"]
    for worse in (forgot_8 - forgot, known - known_8):  # seed by seed: the same beginning and the same batches
        error = float(np.std(worse, ddof=1)) / len(worse) ** 0.5
        assert worse.mean() <= 0.01 + T_95 * error


T_95 = 2.13  # Student's t of five seeds, one side: beyond that many standard errors, a difference is no chance


def protected(digits: Any, stream: Any, seed: int, method: Method, dtype: Any) -> Any:
    torch.manual_seed(seed)
    model = digits.MultiHead(len(stream))
    optimizer = Adam(model.parameters(), lr=1e-2)
    guard = Guard(model, optimizer, method, dtype=dtype)
    accuracies = np.full((len(stream), len(stream)), np.nan)
    for task in stream:
        x, y = task.train.tensors
        for _ in range(10):
            for batch in torch.randperm(len(x)).split(32):
                F.cross_entropy(model(x[batch], task.number), y[batch]).backward()
                optimizer.step()
                optimizer.zero_grad()
        losses = (F.cross_entropy(model(x[i], task.number), y[i]) for i in torch.arange(len(x)).split(8))
        guard.consolidate(losses if method.data_pass else None)
        seen = stream[: task.number + 1]
        accuracies[task.number, : len(seen)] = [digits.accuracy(model, each) for each in seen]
    return accuracies


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device here")
@pytest.mark.parametrize("options", [{}, {"dtype": "8bit"}], ids=str)
@EVERY_METHOD
def test_offloaded_on_a_gpu(method: Method, options: dict[str, Any]) -> None:
    """The same as without, nothing on the device between steps, and no step in which the host waits."""
    found = []
    for offload in (None, "cpu"):
        model = Network().to("cuda")
        optimizer = SGD(model.parameters(), lr=0.02)
        guard = Guard(model, optimizer, method, offload=offload, **options)  # type: ignore[arg-type]
        for task in range(2):
            seen = [(x.to("cuda"), y.to("cuda"), head) for x, y, head in batches(task)]
            learn(model, optimizer, seen[:2])
            torch.cuda.set_sync_debug_mode("error")
            try:
                learn(model, optimizer, seen[2:])
            finally:
                torch.cuda.set_sync_debug_mode("default")
            guard.consolidate(
                (F.cross_entropy(model(x, head), y) for x, y, head in seen) if method.data_pass else None
            )
        if offload:
            kept = [each for state in guard._state.started for each in state.kept.values()]
            assert all(tensor.is_pinned() for tensors in kept for tensor in tensors)
        found.append(([p.detach().cpu() for p in model.parameters()], guard.state_dict()["tensors"]))
    for ours, theirs in zip(found[0][0], found[1][0], strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)
