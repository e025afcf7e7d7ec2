"""Guards in ordinary training setups: never worse than no guard on the old task, finite, repeatable."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW

from rwalk import EWC, Guard, RWalk, StateOptions
from test_guard_drift import accuracy, task

STEPS = 48


class Network(nn.Module):
    """A trunk with batch norm, two layers that share a weight, and a head that may grow."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 32)
        self.norm = nn.BatchNorm1d(32)
        self.hidden, self.again = nn.Linear(32, 32), nn.Linear(32, 32)
        self.again.weight = self.hidden.weight
        self.head = nn.Linear(32, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.first(x)).relu()
        out: Tensor = self.head(self.again(self.hidden(x).relu()).relu())
        return out


@cache
def trained() -> Network:
    """It was trained on the first task."""
    torch.manual_seed(0)
    model = Network()
    optimizer = Adam(model.parameters(), lr=3e-3)
    x, y = task(0)
    for step in range(150):
        F.cross_entropy(model(x[step % 6 :: 6]), y[step % 6 :: 6]).backward()
        optimizer.step()
        optimizer.zero_grad()
    return model


def batches() -> Iterator[tuple[int, Tensor, Tensor]]:
    x, y = task(1)
    generator = torch.Generator().manual_seed(3)
    for step in range(STEPS):
        batch = torch.randint(len(x), (32,), generator=generator)
        yield step, x[batch], y[batch]


Begin = Callable[[nn.Module, Any], Guard | None]


def plain(model: Network, begin: Begin) -> Guard | None:
    optimizer = AdamW(model.parameters(), lr=3e-3)
    guard = begin(model, optimizer)
    for _, x, y in batches():
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
    return guard


def mixed_precision(model: Network, begin: Begin) -> Guard | None:
    optimizer = AdamW(model.parameters(), lr=3e-3)
    guard = begin(model, optimizer)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**40, growth_interval=4)  # some steps are skipped
    for _, x, y in batches():
        with torch.autocast("cpu", torch.bfloat16):
            loss = F.cross_entropy(model(x).float(), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    return guard


def accumulation(model: Network, begin: Begin) -> Guard | None:
    optimizer = AdamW(model.parameters(), lr=3e-3)
    guard = begin(model, optimizer)
    for step, x, y in batches():
        (F.cross_entropy(model(x), y) / 2).backward()
        if step % 2:
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)
    return guard


def clipping(model: Network, begin: Begin) -> Guard | None:
    optimizer = SGD(model.parameters(), lr=0.05, momentum=0.9)
    guard = begin(model, optimizer)
    for _, x, y in batches():
        F.cross_entropy(model(x), y).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    return guard


def closure(model: Network, begin: Begin) -> Guard | None:
    optimizer = AdamW(model.parameters(), lr=3e-3)
    guard = begin(model, optimizer)
    for _, x, y in batches():

        def loss(x: Tensor = x, y: Tensor = y) -> Tensor:
            optimizer.zero_grad()
            value = F.cross_entropy(model(x), y)
            value.backward()
            return value

        optimizer.step(loss)  # type: ignore[arg-type]
    return guard


def groups(model: Network, begin: Begin) -> Guard | None:
    head, trunk = list(model.head.parameters()), [*model.first.parameters(), *model.norm.parameters()]
    rest = list(dict.fromkeys([*model.hidden.parameters(), *model.again.parameters()]))
    optimizer = AdamW([{"params": trunk, "lr": 1e-3}, {"params": rest}, {"params": head, "lr": 1e-2}], lr=3e-3)
    guard = begin(model, optimizer)
    for _, x, y in batches():
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
    return guard


def unfreezing(model: Network, begin: Begin) -> Guard | None:
    model.first.requires_grad_(False)
    optimizer = AdamW(model.parameters(), lr=3e-3)
    guard = begin(model, optimizer)
    for step, x, y in batches():
        model.first.requires_grad_(step >= STEPS // 2)
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
    return guard


def grown_head(model: Network, begin: Begin) -> Guard | None:
    optimizer = AdamW(model.parameters(), lr=3e-3)
    guard = begin(model, optimizer)
    torch.manual_seed(1)
    head = nn.Linear(32, 6)
    with torch.no_grad():
        head.weight[:4], head.bias[:4] = model.head.weight, model.head.bias
    model.head = head
    optimizer = AdamW(model.parameters(), lr=3e-3)
    if guard is not None:
        guard.attach(optimizer)
    for _, x, y in batches():
        F.cross_entropy(model(x), 2 + y).backward()
        optimizer.step()
        optimizer.zero_grad()
    return guard


def momentum(model: Network, begin: Begin) -> Guard | None:
    optimizer = SGD(model.parameters(), lr=0.02, momentum=0.9, nesterov=True)
    guard = begin(model, optimizer)
    for _, x, y in batches():
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
    return guard


def schedule(model: Network, begin: Begin) -> Guard | None:
    optimizer = AdamW(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=STEPS)
    guard = begin(model, optimizer)
    for _, x, y in batches():
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
    return guard


def compiled(model: Network, begin: Begin) -> Guard | None:
    optimizer = AdamW(model.parameters(), lr=3e-3)
    fast: Any = torch.compile(model, backend="eager")
    guard = begin(fast, optimizer)
    for _, x, y in batches():
        F.cross_entropy(fast(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
    return guard


def distributed(model: Network, begin: Begin) -> Guard | None:
    wrapped = nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
    optimizer = AdamW(wrapped.parameters(), lr=3e-3)
    guard = begin(wrapped, optimizer)
    for _, x, y in batches():
        F.cross_entropy(wrapped(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
    return guard


SETUPS = (
    plain, mixed_precision, accumulation, clipping, closure, groups, unfreezing, grown_head, momentum, schedule,
    compiled, distributed,
)  # fmt: skip
KINDS: dict[str, dict[str, Any]] = {
    "default": {},
    "budget": {"budget": 0.05},
    "ewc": {"method": EWC()},
    "8bit": {"method": RWalk(), "state": StateOptions(dtype="8bit")},
}


@pytest.fixture(scope="module", autouse=True)
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    store = tmp_path_factory.mktemp("store") / "file"
    dist.init_process_group("gloo", rank=0, world_size=1, init_method=f"file://{store}")
    yield
    dist.destroy_process_group()


def trained_with(setup: Callable[..., Guard | None], kind: str | None) -> Network:
    model = copy.deepcopy(trained())
    model.train()

    def begin(given: nn.Module, optimizer: Any) -> Guard | None:
        return None if kind is None else Guard(given, optimizer, probes=task(0)[0], **KINDS[kind])

    torch.manual_seed(5)
    guard = setup(model, begin)
    if guard is not None:
        guard.finish()
    return model


@cache
def without_a_guard(setup: Callable[..., Guard | None]) -> float:
    return old_accuracy(trained_with(setup, None))


def old_accuracy(model: Network) -> float:
    old = copy.deepcopy(model)
    old.head.weight, old.head.bias = nn.Parameter(old.head.weight[:4]), nn.Parameter(old.head.bias[:4])
    return accuracy(old, 0)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("setup", SETUPS, ids=lambda setup: setup.__name__)
def test_guard_in_an_ordinary_setup(setup: Callable[..., Guard | None], kind: str) -> None:
    model, again = trained_with(setup, kind), trained_with(setup, kind)
    assert all(bool(tensor.isfinite().all()) for tensor in model.state_dict().values())
    assert old_accuracy(model) >= without_a_guard(setup)
    pairs = zip(model.state_dict().values(), again.state_dict().values(), strict=True)
    assert all(torch.equal(*pair) for pair in pairs)
