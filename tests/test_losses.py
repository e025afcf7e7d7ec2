"""Losses of algorithms of their own, against literal versions, example by example."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import little
from rwalk import Batch, Fleet, MemorySpec, Training, learner, split
from rwalk.data import datasets
from rwalk.engine import evaluation
from rwalk.losses.derpp import DER, DERpp
from rwalk.losses.er import ER
from rwalk.losses.er_ace import ERACE
from rwalk.losses.lwf import LwF

RUNS, SIZE, CLASSES = 2, 5, 6


def draws(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def columns(*chosen: int) -> Tensor:
    return torch.tensor([c in chosen for c in range(CLASSES)])


def softmax(values: list[float]) -> list[float]:
    total = sum(math.exp(value) for value in values)
    return [math.exp(value) / total for value in values]


def a_batch(**more: object) -> Batch:
    """Classes 0 to 2 are old, 3 and 4 are new, 5 is still to come."""
    y = torch.tensor([[3, 4, 3, 4, 3], [4, 4, 3, 3, 4]])
    head = torch.where(columns(3, 4), 0.0, -torch.inf).double()
    return Batch(y, head, columns(3, 4), columns(0, 1, 2), **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("temperature", [1.0, 2.0])
def test_lwf_is_li_and_hoiems_sum(temperature: float) -> None:
    """− log p_y over the new classes, and − λ T² Σ_old q log p at temperature T."""
    logits, taught = draws(RUNS, SIZE, CLASSES, seed=0), draws(RUNS, SIZE, CLASSES, seed=1)
    batch, lam = a_batch(taught=taught), 0.7
    expected = []
    for run in range(RUNS):
        total = 0.0
        for i in range(SIZE):
            new = softmax([float(logits[run, i, c]) for c in (3, 4)])
            total -= math.log(new[int(batch.y[run, i]) - 3])
            q = softmax([float(taught[run, i, c]) / temperature for c in (0, 1, 2)])
            p = softmax([float(logits[run, i, c]) / temperature for c in (0, 1, 2)])
            total -= lam * temperature**2 * sum(a * math.log(b) for a, b in zip(q, p, strict=True))
        expected.append(total / SIZE)
    losses = LwF(lam=lam, temperature=temperature)(logits, batch)
    torch.testing.assert_close(losses, torch.tensor(expected, dtype=torch.float64))


def test_lwf_distils_nothing_where_every_old_class_is_taught_again() -> None:
    logits = torch.randn(2, 3, 4, dtype=torch.float64, requires_grad=True)
    y, none = torch.tensor([[0, 1, 2], [3, 0, 1]]), torch.zeros(4, dtype=torch.bool)
    batch = Batch(y, torch.zeros(4), ~none, none, taught=torch.randn(2, 3, 4, dtype=torch.float64))
    losses = LwF()(logits, batch)
    expected = LwF()(logits, batch._replace(taught=None))
    torch.testing.assert_close(losses, expected, rtol=0, atol=0)
    found, wanted = (torch.autograd.grad(each.sum(), logits, retain_graph=True)[0] for each in (losses, expected))
    torch.testing.assert_close(found, wanted, rtol=0, atol=0)


def test_lwf_keeps_what_training_alone_forgets() -> None:
    """Without an exemplar, in multi-head evaluation, where it was meant."""
    digits = split(datasets.load("digits"), classes_per_task=2)
    kept = {}
    for name in ("vanilla", "lwf"):
        fleet = Fleet(digits, "mlp", [learner(name)], [0], Training(steps=150, lr=0.01))
        fleet.train()
        kept[name] = fleet.accuracy["multi"][:, -1, :-1].mean()
    assert kept["lwf"] > kept["vanilla"] + 0.03, kept


@pytest.mark.parametrize("loss", [DERpp(alpha=0.3, beta=0.6), DER(alpha=0.3)], ids=lambda loss: loss.name)
def test_der_and_derpp_are_buzzegas_sums(loss: DERpp) -> None:
    """CE of the new, α · mean squared distance of the kept to their logits, and for DER++ β · CE of the kept."""
    logits, stored = draws(RUNS, SIZE, CLASSES, seed=2), draws(RUNS, SIZE, CLASSES, seed=3)
    is_kept = torch.tensor([[False, True, False, True, True], [False] * 5])
    batch = a_batch(is_kept=is_kept, kept={"logits": stored})._replace(
        head=torch.zeros(CLASSES, dtype=torch.float64)
    )
    beta = 0.6 if loss.name == "der++" else 0.0
    expected = []
    for run in range(RUNS):
        terms: dict[str, list[float]] = {"new": [], "moved": [], "kept": []}
        for i in range(SIZE):
            p = softmax([float(value) for value in logits[run, i]])
            wrong = -math.log(p[int(batch.y[run, i])])
            terms["kept" if is_kept[run, i] else "new"].append(wrong)
            if is_kept[run, i]:
                terms["moved"].append(float((logits[run, i] - stored[run, i]).square().mean()))
        mean = {name: sum(each) / max(1, len(each)) for name, each in terms.items()}
        expected.append(mean["new"] + 0.3 * mean["moved"] + beta * mean["kept"])
    torch.testing.assert_close(loss(logits, batch), torch.tensor(expected, dtype=torch.float64))


def test_exemplars_are_kept_with_the_logits_of_their_tasks_end() -> None:
    one = learner("der++", MemorySpec(per_class=3, sampler="uniform"))
    fleet = Fleet(little.stream(), "mlp", [one] * 2, [0, 1], Training(steps=8, batch=16))
    fleet.begin_task()
    fleet.train_task()
    fleet.end_task()
    assert fleet.memory is not None
    for group in fleet.memory.groups:
        _, logits = evaluation.outputs(fleet, group.examples)
        torch.testing.assert_close(group.stored["logits"], logits)
    before = [group.stored["logits"].clone() for group in fleet.memory.groups]
    fleet.task, fleet.step = 1, 0
    fleet.begin_task()
    fleet.train_task()
    fleet.end_task()
    for group, kept in zip(fleet.memory.groups, before, strict=False):
        assert torch.equal(group.stored["logits"], kept), "as they were then, whatever the network says by now"


def test_er_is_the_mean_over_new_and_kept_alike() -> None:
    logits = draws(RUNS, SIZE, CLASSES, seed=4)
    batch = a_batch()._replace(head=torch.zeros(CLASSES, dtype=torch.float64))
    expected = []
    for run in range(RUNS):
        wrong = [-math.log(softmax(logits[run, i].tolist())[int(batch.y[run, i])]) for i in range(SIZE)]
        expected.append(sum(wrong) / SIZE)
    torch.testing.assert_close(ER()(logits, batch), torch.tensor(expected, dtype=torch.float64))


@pytest.mark.parametrize("kept", [[[1, 0, 1, 0, 1], [0, 0, 0, 1, 1]], None], ids=["with exemplars", "without"])
def test_er_ace_is_caccias_sum(kept: list[list[int]] | None) -> None:
    """New examples against the classes among the new, kept ones against all classes seen: 0 to 4."""
    logits = draws(RUNS, SIZE, CLASSES, seed=5)
    head = torch.where(columns(0, 1, 2, 3, 4), 0.0, -torch.inf).double()
    is_kept = None if kept is None else torch.tensor(kept, dtype=torch.bool)
    y = torch.tensor([[0, 4, 2, 4, 1], [4, 4, 4, 3, 0]])
    batch = a_batch(is_kept=is_kept)._replace(head=head, y=y)
    expected = []
    for run in range(RUNS):
        old = [i for i in range(SIZE) if kept is not None and kept[run][i]]
        new = [i for i in range(SIZE) if i not in old]
        present = sorted({int(y[run, i]) for i in new})
        total = 0.0
        for group, classes in ((new, present), (old, [0, 1, 2, 3, 4])):
            for i in group:
                p = softmax([float(logits[run, i, c]) for c in classes])
                total -= math.log(p[classes.index(int(y[run, i]))]) / len(group)
        expected.append(total)
    torch.testing.assert_close(ERACE()(logits, batch), torch.tensor(expected, dtype=torch.float64))


def test_replay_keeps_what_training_alone_forgets() -> None:
    """Single-head, each example once, in batches of ten, from a reservoir: as the field tries it."""
    digits = split(datasets.load("digits"), classes_per_task=2)
    reservoir = MemorySpec(total=100, sampler="reservoir", replay="beside")
    learners = {
        "vanilla": learner("vanilla"),
        "er": learner("er", reservoir),
        "er-ace": learner("er-ace", reservoir),
        "der++": learner("der++", reservoir, alpha=1.0, beta=1.0),
    }
    kept = {}
    for name, one in learners.items():
        fleet = Fleet(digits, "mlp", [one] * 3, [0, 1, 2], Training(batch=10, optimizer="sgd", lr=0.1))
        fleet.train()
        kept[name] = fleet.accuracy["single"][:, -1].mean()
    assert min(kept["er"], kept["er-ace"], kept["der++"]) > kept["vanilla"] + 0.1, kept
