"""Learners that begin anew with every task (joint, GDumb), against plain PyTorch on the same batches."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import little
from rwalk import Fleet, IncrementalClassifier, InputError, MemorySpec, Training, learner
from rwalk.engine import architectures
from rwalk.engine.parameter_matrix import seeded
from rwalk.engine.task_plan import batches_of
from rwalk.studies import Study
from rwalk.studies.specs import RunSpec

TRAINING = Training(epochs=2, batch=9, optimizer="sgd", lr=0.05)
MEMORY = MemorySpec(total=20, sampler="uniform")


def trained(name: str, training: Training = TRAINING) -> tuple[Fleet, list[list[Tensor]], list[Tensor]]:
    """A fleet of two, and of every task its batches [steps][R, B] and θ at its end."""
    learners = [learner(name, MEMORY)] * 2
    fleet = Fleet(little.stream(), "mlp", learners, [5, 6], training, dtype=torch.float64)
    batches, thetas = [], []
    for _ in range(len(fleet.stream)):
        fleet.begin_task()
        batches.append([])
        for (index,) in batches_of(fleet):
            batches[-1].append(index)
            fleet.execution.step(index)
            fleet.step += 1
        fleet.end_task()
        thetas.append(fleet.theta.clone())
        fleet.task, fleet.step = fleet.task + 1, 0
    return fleet, batches, thetas


@pytest.mark.parametrize("name", ["joint", "gdumb"])
def test_every_task_is_a_plain_training_of_a_new_network(name: str) -> None:
    _, batches, thetas = trained(name)
    stream = little.stream()
    for run, seed in enumerate((5, 6)):
        for k in range(len(stream)):
            with seeded(seed):
                module = architectures.builder("mlp", tuple(stream.shape), stream.classes)().double()
            optimizer = torch.optim.SGD(module.parameters(), lr=0.05)
            seen = list(stream.seen(k))
            for index in batches[k]:
                x, y = stream.x[index[run]].double(), stream.y[index[run]]
                labels = torch.tensor([seen.index(int(label)) for label in y])
                F.cross_entropy(module(x)[:, seen], labels).backward()
                optimizer.step()
                optimizer.zero_grad()
            vector = torch.nn.utils.parameters_to_vector(module.parameters()).detach()
            torch.testing.assert_close(thetas[k][run], vector, rtol=0, atol=1e-10)


def test_joint_training_passes_over_all_data_so_far() -> None:
    _, batches, _ = trained("joint")
    stream = little.stream()
    for k, steps in enumerate(batches):
        everything = sorted(torch.cat([task.train for task in stream.tasks[: k + 1]]).tolist())
        for epoch in (steps[: len(steps) // 2], steps[len(steps) // 2 :]):
            for run in range(2):
                passed = torch.cat([index[run] for index in epoch])[: len(everything)]
                assert sorted(passed.tolist()) == everything


def test_joint_training_has_as_many_steps_as_the_tasks_together() -> None:
    _, batches, _ = trained("joint", replace(TRAINING, steps=4))
    assert [len(steps) for steps in batches] == [4, 8, 12]


def test_gdumb_sees_its_memory_and_nothing_else() -> None:
    fleet, batches, _ = trained("gdumb")
    stream = little.stream()
    for k, steps in enumerate(batches):
        share = MEMORY.quota(2 * (k + 1))
        for run in range(2):
            passed = torch.cat([index[run] for index in steps[: len(steps) // 2]]).unique()
            assert torch.bincount(stream.y[passed]).tolist() == [share] * 2 * (k + 1)
            if k:
                assert not set(passed.tolist()) - set(torch.cat([t.train for t in stream.tasks[: k + 1]]).tolist())
    assert fleet.memory is not None
    for run in range(2):
        last = torch.cat([index[run] for index in batches[-1]]).unique()
        assert last.tolist() == sorted(torch.cat(fleet.memory.of_run(run)).tolist())


def greedily_balanced(labels: list[int], budget: int, draw: torch.Generator) -> list[int]:
    """Prabhu et al., algorithm 1, to the letter: the places of the examples that are kept."""
    kept: list[int] = []
    for place, label in enumerate(labels):
        classes = {labels[other] for other in kept} | {label}
        count = {c: sum(labels[other] == c for other in kept) for c in classes}
        if len(kept) < budget:
            kept.append(place)
        elif count[label] < budget / len(classes):
            largest = max(classes, key=lambda c: count[c])
            those = [other for other in kept if labels[other] == largest]
            kept.remove(those[int(torch.randint(len(those), (1,), generator=draw))])
            kept.append(place)
    return kept


def test_a_uniform_memory_is_as_balanced_as_the_greedy_sampler() -> None:
    """As many of every class, up to the remainder; and, in random order, any example as likely as another."""
    draw, budget, trials = torch.Generator().manual_seed(0), 7, 400
    first, second = [0] * 8, [0] * 8
    for _ in range(trials):
        tasks = [[0] * 4 + [1] * 4, [2] * 8]
        orders = [torch.randperm(8, generator=draw).tolist() for _ in tasks]
        stream = [(task, place) for task, order in enumerate(orders) for place in order]
        labels = [tasks[task][place] for task, place in stream]
        kept = greedily_balanced(labels, budget, draw)
        counts = [sum(labels[place] == c for place in kept) for c in range(3)]
        assert sum(counts) == budget and min(counts) == MemorySpec(total=budget).quota(3)
        for place in kept:
            task, example = stream[place]
            (first, second)[task][example] += 1
    for counts in (first, second):
        share = sum(counts) / 8 / trials
        deviation = (share * (1 - share) / trials) ** 0.5
        assert all(abs(count / trials - share) < 5 * deviation for count in counts), counts


def test_a_memory_makes_no_other_run_of_joint_training() -> None:
    assert RunSpec(method="joint", memory=MEMORY).hash() == RunSpec(method="joint").hash()


def test_joint_training_is_a_row_like_any_other() -> None:
    row, vanilla = little.study(methods=["joint", "vanilla"], seeds=1, reference="none").execute()
    assert row.method == "joint" and row.single.A > vanilla.single.A
    assert Study((RunSpec(method="joint"),), "none").steps(RunSpec(method="joint")) > 0


def test_a_classifier_that_has_no_old_data_cannot_train_jointly() -> None:
    with pytest.raises(InputError, match="joint learns from all data together"):
        IncrementalClassifier(method="joint").fit([[0.0], [1.0]], [0, 1])
