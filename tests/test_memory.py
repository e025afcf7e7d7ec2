"""Exemplars of earlier tasks, and the examples of every step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise, product
from typing import Any, ClassVar, get_args

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import little
from rwalk import Batch, Fleet, InputError, Learner, Loss, MemorySpec, Stream, Training, from_arrays, learner
from rwalk.data.memory import REPLAYS, Group, Memory, Replay
from rwalk.data.replay_batches import balanced_batches, epoch, shuffled_batches
from rwalk.data.samplers import SAMPLERS
from rwalk.engine import architectures
from rwalk.losses import heads
from rwalk.training import batch_size, steps_per_epoch

SHORT = Training(steps=3, batch=16)


# ── how much is kept ──────────────────────────────────────────────────────────────────────────────────────────


def test_the_quota_is_so_many_a_class_or_a_share_of_the_budget() -> None:
    assert [MemorySpec(per_class=7).quota(groups) for groups in (1, 10, 1000)] == [7, 7, 7]
    assert [MemorySpec(total=100).quota(groups) for groups in (1, 3, 10, 100)] == [100, 33, 10, 1]
    assert MemorySpec(total=5).quota(8) == 1, "a class is never forgotten altogether"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "size per class or in total .*and not both"),
        ({"per_class": 3, "total": 30}, "size per class or in total .*and not both"),
        ({"per_class": 0}, "at least 1 exemplar, not 0"),
        ({"total": -5}, "at least 1 exemplar, not -5"),
        ({"per_class": 2.5}, "at least 1 exemplar, not 2.5"),
        ({"per_class": "10"}, "at least 1 exemplar, not '10'"),
        ({"per_class": 1, "sampler": "moff"}, "unknown sampler 'moff': did you mean 'mof'"),
        ({"per_class": 1, "replay": "balance"}, "unknown replay 'balance': did you mean 'balanced'"),
    ],
)
def test_a_memory_that_cannot_be_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message) as refused:
        MemorySpec(**settings)
    assert "\n" not in str(refused.value)


def test_every_replay_is_described() -> None:
    assert set(get_args(Replay)) == set(REPLAYS)


@given(
    total=st.integers(1, 60),
    tasks=st.lists(st.lists(st.integers(1, 20), min_size=1, max_size=3), min_size=1, max_size=5),
)
def test_under_a_budget_every_class_shrinks_to_its_best(total: int, tasks: list[list[int]]) -> None:
    """Classes of unequal size arrive; each keeps the first of its chosen exemplars."""
    memory, arrived = Memory(MemorySpec(total=total)), []
    for task, sizes in enumerate(tasks):
        quota = memory.spec.quota(len(arrived) + len(sizes))
        groups = [
            Group(task, label, torch.randperm(n, generator=drawn(n))[:quota].expand(2, -1))
            for label, n in enumerate(sizes)
        ]
        memory.keep(groups)
        arrived += groups
        assert [(group.task, group.label) for group in memory.groups] == [(g.task, g.label) for g in arrived]
        for kept, first in zip(memory.groups, arrived, strict=True):
            assert kept.examples.equal(first.examples[:, :quota])
        assert sum(group.examples.shape[1] for group in memory.groups) <= max(total, len(arrived))


def test_exemplars_are_found_by_run_and_by_task() -> None:
    memory = Memory(MemorySpec(per_class=2))
    memory.keep([Group(0, 4, torch.tensor([[1, 2], [3, 4]])), Group(0, 5, torch.tensor([[5], [6]]))])
    memory.keep([Group(1, 6, torch.tensor([[7, 8], [9, 10]]))])
    assert [pool.tolist() for pool in memory.of_run(1)] == [[3, 4], [6], [9, 10]]
    assert [group.label for group in memory.of_task(0)] == [4, 5]
    assert [group.label for group in memory.of_task(1)] == [6]


# ── memories in a fleet ───────────────────────────────────────────────────────────────────────────────────────


class Watcher:
    """Record a fleet's memory after every task."""

    def __init__(self) -> None:
        self.seen: list[list[Group]] = []

    def due(self, fleet: Fleet) -> bool:
        return fleet.step == 0

    def save(self, fleet: Fleet) -> None:
        assert fleet.memory is not None
        self.seen.append(fleet.memory.groups)


def remembered(stream: Stream, spec: MemorySpec, seeds: Sequence[int] = (0,)) -> list[list[Group]]:
    watcher = Watcher()
    fleet = Fleet(stream, "mlp", [learner("vanilla", spec)] * len(seeds), list(seeds), SHORT)
    fleet.train(checkpoints=watcher)
    return watcher.seen


@pytest.fixture(scope="module")
def stream() -> Stream:
    return little.stream()


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_exemplars_are_training_examples_of_their_class_and_task(stream: Stream, sampler: str) -> None:
    for number, groups in enumerate(remembered(stream, MemorySpec(per_class=5, sampler=sampler), seeds=[0, 1])):
        owners = [(k, label) for k, task in enumerate(stream.tasks[: number + 1]) for label in task.classes]
        assert [(group.task, group.label) for group in groups] == owners
        for group in groups:
            assert group.examples.shape == (2, 5)
            assert stream.labels(group.examples).eq(group.label).all()
            assert torch.isin(group.examples, stream.tasks[group.task].train).all()
            for run in group.examples:
                assert len(set(run.tolist())) == 5


def frozen_head(shape: tuple[int, ...], classes: int) -> nn.Module:
    network = architectures.MLP(shape, classes, (8,))
    network.head.requires_grad_(False)
    return network


def only_a_head(shape: tuple[int, ...], classes: int) -> nn.Module:
    return nn.Linear(shape[0], classes)


def no_head(shape: tuple[int, ...], classes: int) -> nn.Module:
    return nn.Sequential(nn.Linear(shape[0], classes), nn.Unflatten(1, (classes, 1)), nn.Flatten())


@pytest.mark.parametrize(
    ("network", "sampler"),
    [*product((frozen_head, only_a_head), ("plane", "mof")), (no_head, "entropy")],
)
@pytest.mark.parametrize("runs", [1, 2])
def test_samplers_need_no_more_of_a_network_than_they_use(network: Any, sampler: Any, runs: int) -> None:
    x, y = torch.rand(40, 6), torch.arange(40) % 4
    flat = from_arrays(x, y, x, y, classes_per_task=2)
    learners = [learner("vanilla", MemorySpec(3, sampler=sampler))] * runs
    fleet = Fleet(flat, network, learners, list(range(runs)), Training(steps=2))
    fleet.train()
    assert fleet.memory is not None and [group.examples.shape for group in fleet.memory.groups] == [(runs, 3)] * 4


def test_a_class_smaller_than_its_quota_is_kept_whole() -> None:
    y = torch.arange(4).repeat_interleave(torch.tensor([3, 20, 5, 30]))
    x = torch.randn(len(y), 8, generator=torch.Generator().manual_seed(0))
    unequal = from_arrays(x, y, x, y, classes_per_task=2)
    for sampler in SAMPLERS:
        groups = remembered(unequal, MemorySpec(per_class=10, sampler=sampler))[-1]
        assert [group.examples.shape[1] for group in groups] == [3, 10, 5, 10]
        for group in (groups[0], groups[2]):
            assert set(group.examples[0].tolist()) == set((y == group.label).nonzero().flatten().tolist())


def test_a_budget_is_shared_by_the_classes_seen(stream: Stream) -> None:
    history = remembered(stream, MemorySpec(total=15))
    assert [[group.examples.shape[1] for group in groups] for groups in history] == [[7] * 2, [3] * 4, [2] * 6]
    for before, after in pairwise(history):
        for old, kept in zip(before, after, strict=False):
            assert kept.examples.equal(old.examples[:, : kept.examples.shape[1]])


@pytest.mark.parametrize("replay", REPLAYS)
def test_a_step_sees_the_task_and_the_runs_own_exemplars(stream: Stream, replay: Replay) -> None:
    spec = MemorySpec(per_class=3, sampler="uniform", replay=replay)
    fleet = Fleet(stream, "mlp", [learner("vanilla", spec)] * 2, [0, 1], Training(epochs=4, batch=16))
    allowed: list[Tensor] = []
    take, seen = fleet.execution.step, []

    def watched(index: Tensor) -> Tensor:
        if fleet.step == 0:
            assert fleet.memory is not None
            own = [torch.cat([stream.tasks[fleet.task].train, *fleet.memory.of_run(run)]) for run in range(2)]
            allowed[:] = own
        for run in range(2):
            assert torch.isin(index[run], allowed[run]).all()
        seen.append((fleet.task, index))
        return take(index)

    fleet.execution.step = watched  # type: ignore[method-assign]
    fleet.train()
    last = torch.cat([index for task, index in seen if task == 2], dim=1)
    replayed = ~torch.isin(last, stream.tasks[2].train)
    assert replayed.any() == (replay != "none")
    if replay == "balanced":
        assert replayed.double().mean() == pytest.approx(4 / 6, abs=0.03)
    if replay in ("half", "beside"):
        assert replayed.double().mean() == 0.5


# ── batches ───────────────────────────────────────────────────────────────────────────────────────────────────


def numbered(sizes: Sequence[int], start: int = 0) -> list[Tensor]:
    """Pools of so many examples each, numbered one after another."""
    return list(torch.arange(start, start + sum(sizes)).split(list(sizes)))


def drawn(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def counts(batch: Tensor, pools: Sequence[Tensor]) -> list[int]:
    return [int(torch.isin(batch, pool).sum()) for pool in pools]


sizes = st.lists(st.integers(1, 12), min_size=1, max_size=4)
lessons = st.tuples(sizes, sizes).map(lambda both: (numbered(both[0]), numbered(both[1], start=1000)))
batch_sizes = st.integers(1, 40)
seeds = st.integers(0, 2**32)


@given(sizes, batch_sizes)
def test_an_epoch_is_one_pass_over_the_tasks_own_data(sizes: list[int], batch: int) -> None:
    left, steps = sum(sizes), 0
    while left > 0:
        left -= min(batch, sum(sizes))
        steps += 1
    assert steps_per_epoch(sum(sizes), batch) == steps
    assert batch_size(sum(sizes), batch) == min(batch, sum(sizes))


@given(lessons, batch_sizes, seeds, st.sampled_from(sorted(REPLAYS)))
def test_batches_are_full_of_known_examples_and_depend_on_the_generator_alone(
    lesson: tuple[list[Tensor], list[Tensor]], batch: int, seed: int, replay: Replay
) -> None:
    current, kept = lesson
    before = torch.get_rng_state()
    plan = epoch(current, kept, replay, batch, drawn(seed))
    examples = sum(map(len, kept if replay == "alone" else current))
    width = batch_size(examples, batch) * (2 if replay == "beside" else 1)
    assert plan.shape == (steps_per_epoch(examples, batch), width)
    assert torch.isin(plan, torch.cat([*current, *kept])).all()
    assert plan.equal(epoch(current, kept, replay, batch, drawn(seed)))
    assert torch.get_rng_state().equal(before)


@given(lessons, batch_sizes, seeds)
def test_balanced_batches_hold_all_classes_in_equal_parts(
    lesson: tuple[list[Tensor], list[Tensor]], batch: int, seed: int
) -> None:
    current, kept = lesson
    for one in epoch(current, kept, "balanced", batch, drawn(seed)):
        parts = counts(one, [*current, *kept])
        assert sum(parts) == len(one) and max(parts) - min(parts) <= 1


@given(sizes, batch_sizes, seeds, st.booleans())
def test_without_exemplars_an_epoch_is_a_permutation_filled_up_from_its_beginning(
    sizes: list[int], batch: int, seed: int, unused: bool
) -> None:
    current, kept = numbered(sizes), numbered([5], start=1000) if unused else []
    order = epoch(current, kept, "none" if unused else "balanced", batch, drawn(seed)).flatten()
    total = sum(sizes)
    assert sorted(order[:total].tolist()) == list(range(total))
    assert order[total:].equal(order[: len(order) - total])


@given(lessons, batch_sizes, seeds)
def test_concat_takes_task_and_exemplars_as_one_dataset(
    lesson: tuple[list[Tensor], list[Tensor]], batch: int, seed: int
) -> None:
    everything = torch.cat([*lesson[0], *lesson[1]])
    order = epoch(*lesson, "concat", batch, drawn(seed)).flatten()
    once = order[: len(everything)]
    assert len(set(once.tolist())) == len(once), "nothing comes again before all have come"
    assert order[len(everything) :].equal(order[: max(0, len(order) - len(everything))])


@given(lessons, batch_sizes, seeds)
def test_half_of_a_batch_is_exemplars_in_equal_parts(
    lesson: tuple[list[Tensor], list[Tensor]], batch: int, seed: int
) -> None:
    current, kept = lesson
    plan = epoch(current, kept, "half", batch, drawn(seed))
    fresh, half = torch.cat(current), plan.shape[1] // 2
    for one in plan:
        assert int(torch.isin(one, fresh).sum()) == len(one) - half
        parts = counts(one, kept)
        assert sum(parts) == half and max(parts) - min(parts) <= 1
    new = plan[:, : plan.shape[1] - half].flatten()[: len(fresh)]
    assert len(set(new.tolist())) == len(new)


@given(lessons, batch_sizes, seeds)
def test_beside_the_new_examples_come_as_many_kept_ones(
    lesson: tuple[list[Tensor], list[Tensor]], batch: int, seed: int
) -> None:
    current, kept = lesson
    plan = epoch(current, kept, "beside", batch, drawn(seed))
    width = batch_size(sum(map(len, current)), batch)
    assert plan.shape[1] == 2 * width
    assert plan[:, :width].equal(epoch(current, [], "beside", batch, drawn(seed))), (
        "the new as if there were no old"
    )
    assert torch.isin(plan[:, width:], torch.cat(kept)).all()


def test_beside_the_new_every_exemplar_is_as_likely_whatever_its_class() -> None:
    kept = numbered([2, 5, 11], start=1000)
    plan = epoch([torch.arange(60_000)], kept, "beside", 6, drawn(0))
    seen = Counter(plan[:, 6:].flatten().tolist())
    assert all(seen[example] == pytest.approx(60_000 / 18, rel=0.08) for example in torch.cat(kept).tolist())


class Telling(Loss):
    """Tells new from kept, and stores nothing."""

    tells_kept: ClassVar[bool] = True
    replay: ClassVar[Replay | None] = "beside"
    seen: ClassVar[list[Batch]] = []

    def __call__(self, logits: Tensor, batch: Batch) -> Tensor:
        self.seen.append(batch)
        return heads.cross_entropy(logits + batch.head, batch.y)


@pytest.mark.parametrize("replay", REPLAYS)
@pytest.mark.parametrize("runs", [1, 2])
def test_a_loss_that_asks_is_told_which_examples_are_kept(stream: Stream, runs: int, replay: Replay) -> None:
    """Against looking every number up in the run's own memory, one by one."""
    Telling.seen.clear()
    spec = MemorySpec(per_class=3, sampler="uniform", replay=replay)
    fleet = Fleet(stream, "mlp", [Learner(memory=spec, loss=Telling())] * runs, list(range(runs)), SHORT)
    expected: list[Tensor | None] = []
    take = fleet.execution.step

    def watched(index: Tensor) -> Tensor:
        assert fleet.memory is not None
        own = [{int(n) for group in fleet.memory.groups for n in group.examples[run]} for run in range(runs)]
        told = [[int(n) in own[run] for n in index[run]] for run in range(runs)]
        expected.append(torch.tensor(told) if fleet.memory.groups else None)
        return take(index)

    fleet.execution.step = watched  # type: ignore[method-assign]
    fleet.train()
    for batch, told in zip(Telling.seen, expected, strict=True):
        assert batch.kept == {}
        if told is None:
            assert batch.is_kept is None, "nothing is kept yet"
        else:
            assert batch.is_kept is not None and batch.is_kept.equal(told)
            if replay == "beside":
                half = told.shape[1] // 2
                assert told[:, half:].all() and not told[:, :half].any()


def test_a_loss_that_does_not_ask_is_told_nothing(stream: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Telling, "tells_kept", False)
    Telling.seen.clear()
    one = Learner(memory=MemorySpec(per_class=3, sampler="uniform"), loss=Telling())
    Fleet(stream, "mlp", [one], [0], SHORT).train()
    assert Telling.seen and all(batch.is_kept is None for batch in Telling.seen)


def test_every_example_of_a_class_is_as_likely_as_every_other() -> None:
    pools = numbered([2, 5, 11])
    seen = Counter(balanced_batches(pools, 10_000, 6, drawn(0)).flatten().tolist())
    for pool in pools:
        for example in pool.tolist():
            assert seen[example] == pytest.approx(20_000 / len(pool), rel=0.08)


def test_the_odd_places_of_a_balanced_batch_go_to_all_classes_in_turn() -> None:
    """Four places, three classes: no class gets the fourth more often than the others."""
    plan = balanced_batches(numbered([9, 9, 9]), 3_000, 4, drawn(0))
    twice = Counter(pool for one in plan for pool, n in enumerate(counts(one, numbered([9, 9, 9]))) if n == 2)
    assert all(twice[pool] == pytest.approx(1_000, rel=0.08) for pool in range(3))


def test_another_seed_is_another_order() -> None:
    current, kept = numbered([20, 20]), numbered([5, 5], start=1000)
    for replay in REPLAYS:
        plans = [epoch(current, kept, replay, 8, drawn(seed)) for seed in (0, 1)]
        assert not plans[0].equal(plans[1])
    assert not shuffled_batches(torch.arange(50), 5, 10, drawn(0)).flatten().equal(torch.arange(50))
