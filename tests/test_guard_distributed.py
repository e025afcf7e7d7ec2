"""Two processes give the numbers of one: replicated (DistributedDataParallel) and sharded (fully_shard)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.debug import CommDebugMode
from torch.nn.parallel import DistributedDataParallel

from rwalk.errors import InputError
from rwalk.guard import Anchor, Guard
from rwalk.methods import EWC, Method, RWalk

RWALK, HELD = RWalk(lam=5.0, dt=3), EWC(lam=50.0)
KINDS: dict[str, tuple[Method, dict[str, Any]]] = {
    "rwalk": (RWALK, {}),
    "ewc": (HELD, {}),
    "rwalk, lent": (RWALK, {"offload": "cpu"}),
    "ewc, lent": (HELD, {"offload": "cpu"}),
    "rwalk, 8 bit": (RWALK, {"dtype": "8bit"}),
}
ROUNDED = 0.25  # shards have blocks of their own, and with 3 bits of mantissa, levels are up to an eighth apart
Wrapper = Callable[[nn.Module], nn.Module]
Outcome = dict[str, Tensor]


def replicated(model: nn.Module) -> nn.Module:
    return DistributedDataParallel(model)


def sharded(model: nn.Module) -> nn.Module:
    for layer in model.children():
        fully_shard(layer)
    return fully_shard(model)


WRAPPERS: dict[str, Wrapper] = {"DistributedDataParallel": replicated, "fully_shard": sharded}


def network(outputs: int) -> nn.Sequential:
    """Layers whose rows two ranks cannot share out equally, and a bias of one number: an empty shard."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 1), nn.Linear(1, outputs)).double()


def whole(model: nn.Module) -> list[Tensor]:
    parameters: list[Any] = list(model.parameters())
    return [p.full_tensor().detach() if hasattr(p, "full_tensor") else p.detach() for p in parameters]


def grown(model: nn.Module, outputs: int) -> nn.Sequential:
    """The same network with more outputs."""
    larger = network(outputs)
    for parameter, old in zip(larger.parameters(), whole(model), strict=True):
        parameter.detach()[tuple(slice(size) for size in old.shape)] = old
    return larger


def batches(task: int, rank: int, world: int) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(task)
    draws = [
        (torch.randn(8, 6, generator=generator), torch.randint(3, (8,), generator=generator)) for _ in range(10)
    ]
    return [(x[rank::world].double(), y[rank::world]) for x, y in draws]


def learn(model: nn.Module, guard: Guard, task: int, rank: int, world: int) -> float:
    for x, y in batches(task, rank, world):
        F.cross_entropy(model(x), y).backward()
        guard.optimizer.step()
        guard.optimizer.zero_grad()
    penalty = guard.penalty()
    if guard.method.data_pass:
        guard.consolidate(F.cross_entropy(model(x), y) for x, y in batches(task, rank, world))
    else:
        guard.consolidate()
    return penalty


def run(wrap: Wrapper, kind: str, file: Path, rank: int = 0, world: int = 1) -> Outcome:
    """Two tasks, a file, and a third task with a guard loaded from it into a model that has grown."""
    method, options = KINDS[kind]
    model = wrap(network(outputs=3))
    guard = Guard(model, torch.optim.Adam(model.parameters(), lr=0.02), method, **options)
    penalties = [learn(model, guard, task, rank, world) for task in range(2)]
    guard.save(file)
    model = wrap(grown(model, outputs=5))
    guard = Guard.load(file, model, torch.optim.Adam(model.parameters(), lr=0.02), **options)
    penalties.append(learn(model, guard, 2, rank, world))
    return {
        "penalties": torch.tensor(penalties, dtype=torch.float64),
        "theta": torch.cat([parameter.flatten() for parameter in whole(model)]),
        **guard.state_dict()["tensors"],
    }


def anchored(wrap: Wrapper, rank: int, folder: Path) -> Outcome:
    """The default guard with a budget, each rank on data of its own; where each rank ends, and the drift there."""
    model = wrap(network(outputs=3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    probes = batches(9, 0, 1)[0][0].repeat(4, 1)
    guard = Guard(model, optimizer, Anchor(every=2), probes=probes, budget=0.001)
    for task in range(3):
        for x, y in batches(task, rank, 2):
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
    guard.save(folder / "anchored.safetensors")
    drift = guard.finish().drift
    return {"theta": torch.cat([p.flatten() for p in whole(model)]), "drift": torch.tensor(drift)}


def reloaded(wrap: Wrapper, rank: int, folder: Path) -> Outcome:
    """Whether an anchor's old weights and last pull are the same on this rank after a file."""
    probes = batches(9, 0, 1)[0][0]
    model = wrap(network(outputs=3))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    guard = Guard(model, optimizer, Anchor(every=2), probes=probes)
    for x, y in batches(0, rank, 2):
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
    guard.save(folder / "reloaded.safetensors")
    held = local_parts(guard)
    guard.detach()
    loaded = Guard.load(folder / "reloaded.safetensors", model, optimizer, probes=probes)
    return {"same": torch.tensor([len(held) == 12, *map(torch.equal, held, local_parts(loaded))])}


def local_parts(guard: Guard) -> list[Tensor]:
    assert guard._reference is not None
    old = guard._reference.tensors
    return [*(old[name] for name in sorted(old)), *(guard._pull_added[p] for p in guard.model.parameters())]


def alone(rank: int) -> Outcome:
    """Each rank has a model of its own, and nothing is averaged."""
    torch.manual_seed(rank)
    model = nn.Linear(6, 3).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    guard = Guard(model, optimizer, Anchor(every=1), probes=batches(9, 0, 1)[0][0], budget=0.01)
    for x, y in batches(rank, 0, 1):
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
    return {"drift": torch.tensor([reading.drift for reading in guard.report().readings])}


def with_batch_norm(rank: int) -> Outcome:
    """Each rank ends with statistics of its own batches, and finds another drift with them."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)).double()
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    guard = Guard(model, optimizer, probes=batches(9, 0, 1)[0][0], budget=0.001)
    for x, y in batches(1, rank, 2):
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
    report = guard.finish()
    theta = torch.cat([each.flatten() for each in whole(net)])
    return {"theta": theta, "left": torch.tensor(report.left), "drift": torch.tensor(guard.drift())}


def other_probes(rank: int) -> Outcome:
    model = replicated(network(outputs=3))
    try:
        Guard(model, torch.optim.SGD(model.parameters(), lr=0.5), probes=batches(rank, 0, 1)[0][0])
    except InputError as error:
        return {"refused": torch.tensor("different probes" in str(error))}
    return {"refused": torch.tensor(False)}


def bucket_views() -> Outcome:
    """The gradients of the task's loss are the user's after a step with a pull."""
    model: Any = DistributedDataParallel(network(outputs=3), gradient_as_bucket_view=True)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    Guard(model, optimizer, Anchor(every=1), probes=batches(9, 0, 1)[0][0])
    kept = []
    for x, y in batches(0, 0, 1)[:3]:
        F.cross_entropy(model(x), y).backward()
        before = [p.grad.clone() for p in model.parameters()]
        optimizer.step()
        kept.append(all(torch.equal(p.grad, g) for p, g in zip(model.parameters(), before, strict=True)))
        optimizer.zero_grad()
    return {"kept": torch.tensor(kept)}


def communication() -> Outcome:
    """How often ranks talk: in a step without a guard, in one with it, and at a task's end."""
    counts = []
    model = sharded(network(outputs=3))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    x, y = batches(0, rank=0, world=1)[0]

    def step() -> None:
        with CommDebugMode() as talk:
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
        optimizer.zero_grad()
        counts.append(talk.get_total_counts())

    step()
    guard = Guard(model, optimizer, RWalk(dt=1))
    step()
    with CommDebugMode() as talk:
        guard.consolidate()
    counts.append(talk.get_total_counts())
    return {"counts": torch.tensor(counts)}


def work(rank: int, folder: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    for wrapper, wrap in WRAPPERS.items():
        for name in KINDS:
            outcome = run(wrap, name, folder / f"{wrapper}-{name}.safetensors", rank, world=2)
            if rank == 0:
                torch.save(outcome, folder / f"{wrapper}-{name}.outcome")
    torch.save(communication(), folder / f"communication-{rank}")
    for wrapper, wrap in WRAPPERS.items():
        torch.save(anchored(wrap, rank, folder), folder / f"anchored-{wrapper}-{rank}")
        torch.save(reloaded(wrap, rank, folder), folder / f"reloaded-{wrapper}-{rank}")
    torch.save(with_batch_norm(rank), folder / f"batch-norm-{rank}")
    torch.save(alone(rank), folder / f"alone-{rank}")
    torch.save({**other_probes(rank), **bucket_views()}, folder / f"replicas-{rank}")
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Results of two processes for all wrappers and methods, because starting takes longer than learning."""
    folder = tmp_path_factory.mktemp("two-processes")
    mp.spawn(work, (folder,), nprocs=2)
    return folder


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_two_processes_do_what_one_does(wrapper: str, kind: str, outcomes: Path, tmp_path: Path) -> None:
    outcome = torch.load(outcomes / f"{wrapper}-{kind}.outcome")
    expected = run(lambda model: model, kind, tmp_path / "one.safetensors")
    assert outcome.keys() == expected.keys()
    assert expected["penalties"][1] > 0 < expected["penalties"][2]
    for name, tensor in expected.items():
        rounded = "8 bit" in kind
        rtol, atol = (ROUNDED, 0.02 * float(tensor.abs().max())) if rounded else (1e-9, 1e-12)
        torch.testing.assert_close(outcome[name], tensor, rtol=rtol, atol=atol)


def test_ranks_talk_once_a_task(outcomes: Path) -> None:
    for rank in range(2):
        without, within, at_the_end = torch.load(outcomes / f"communication-{rank}")["counts"].tolist()
        assert within == without > 0
        assert at_the_end == 1


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_replicas_with_an_anchor_and_a_budget_stay_the_same(wrapper: str, outcomes: Path) -> None:
    one, other = (torch.load(outcomes / f"anchored-{wrapper}-{rank}") for rank in range(2))
    assert torch.equal(one["theta"], other["theta"]) and bool(one["theta"].isfinite().all())
    assert 0 < one["drift"] <= 0.001


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_an_anchors_file_gives_every_rank_its_own_part(wrapper: str, outcomes: Path) -> None:
    for rank in range(2):
        assert bool(torch.load(outcomes / f"reloaded-{wrapper}-{rank}")["same"].all())


def test_replicas_with_batch_norm_are_rewound_alike(outcomes: Path) -> None:
    one, other = (torch.load(outcomes / f"batch-norm-{rank}") for rank in range(2))
    assert 0 < one["left"] < 1 and one["drift"] != other["drift"]
    assert torch.equal(one["theta"], other["theta"])
    assert max(one["drift"], other["drift"]) <= 0.001


def test_processes_with_models_of_their_own_do_not_mix_readings(outcomes: Path) -> None:
    one, other = (torch.load(outcomes / f"alone-{rank}")["drift"] for rank in range(2))
    assert len(one) == 9 and not torch.equal(one, other)


def test_replicas_refuse_different_probes_and_keep_bucket_gradients(outcomes: Path) -> None:
    for rank in range(2):
        found = torch.load(outcomes / f"replicas-{rank}")
        assert bool(found["refused"]) and bool(found["kept"].all())
