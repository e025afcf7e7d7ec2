"""iCaRL: its loss and its classifier against literal versions, example by example."""

from __future__ import annotations

import copy
import math
from collections import defaultdict

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import little
from reproduction.variants import ICaRL2020
from rwalk import Fleet, InputError, MemorySpec, Stream, Training, learner
from rwalk.data import datasets, splits
from rwalk.decision_rules import NearestMean
from rwalk.engine import eager_step
from rwalk.engine.task_plan import batches_of
from rwalk.losses import Batch
from rwalk.losses.icarl import ICaRL


def distillation(logits: Tensor, y: Tensor, new: Tensor, old: Tensor, teacher: Tensor | None) -> Tensor:
    return ICaRL()(logits, Batch(y, torch.zeros(logits.shape[-1]), new, old, teacher))


SHORT = Training(steps=12, batch=16)


def draws(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def sigmoid(z: float) -> float:
    return 1 / (1 + math.exp(-z))


@pytest.mark.parametrize("taught", [False, True], ids=["first task", "later task"])
def test_the_loss_is_rebuffis_sum_over_outputs(taught: bool) -> None:
    """Algorithm 3: − Σ_new [y log g + (1 − y) log(1 − g)] − Σ_old [q log g + (1 − q) log(1 − g)]."""
    runs, batch, classes = 2, 5, 7
    new, old = [4, 5], [0, 2, 3] if taught else []  # 1 and 6 are not seen yet, or not any more
    logits, teacher = draws(runs, batch, classes, seed=0), draws(runs, batch, classes, seed=1)
    y = torch.tensor([[4, 5, 0, 2, 4], [5, 5, 3, 0, 4]])
    expected = []
    for run in range(runs):
        total = 0.0
        for i in range(batch):
            for c in new + old:
                g = sigmoid(float(logits[run, i, c]))
                target = float(y[run, i] == c) if c in new else sigmoid(float(teacher[run, i, c]))
                total -= target * math.log(g) + (1 - target) * math.log(1 - g)
        expected.append(total / batch)

    def mask(columns: list[int]) -> Tensor:
        return torch.tensor([c in columns for c in range(classes)])

    losses = distillation(logits, y, mask(new), mask(old), teacher if taught else None)
    torch.testing.assert_close(losses, torch.tensor(expected, dtype=torch.float64))


def test_distilling_what_the_network_says_itself_pulls_at_no_old_output() -> None:
    logits = draws(1, 4, 5, seed=2).requires_grad_(True)
    old = torch.tensor([True, True, False, False, False])
    new = torch.tensor([False, False, True, True, False])
    loss = distillation(logits, torch.tensor([[2, 3, 0, 1]]), new, old, logits.detach())
    slope = torch.autograd.grad(loss.sum(), logits)[0]
    assert slope[..., old].abs().max() < 1e-12
    assert slope[..., 4].eq(0).all(), "outputs of classes to come get no gradient"
    assert slope[..., new].abs().min() > 0


def literal_means(features: Tensor, counts: list[int]) -> list[Tensor]:
    means, start = [], 0
    for count in counts:
        units = [phi / phi.norm() for phi in features[start : start + count]]
        mean = sum(units[1:], units[0]) / count
        means.append(mean / mean.norm())
        start += count
    return means


def test_class_means_are_means_of_unit_features_made_unit_again() -> None:
    features, counts = draws(3, 9, 4, seed=3), [2, 3, 4]
    labels = [label for label, count in zip((7, 2, 5), counts, strict=True) for _ in range(count)]
    means, order = NearestMean().fit(features, labels)
    assert order == [7, 2, 5]
    for run in range(3):
        torch.testing.assert_close(means[run], torch.stack(literal_means(features[run], counts)))


def test_a_class_scores_by_its_distance_and_not_at_all_without_exemplars() -> None:
    features, fitted = draws(2, 6, 4, seed=4), NearestMean().fit(draws(2, 3, 4, seed=5), [5, 0, 2])
    means, logits = fitted[0], torch.zeros(2, 6, 6)
    scores = NearestMean().scores(features, logits, fitted)
    for run in range(2):
        for i in range(6):
            unit = features[run, i] / features[run, i].norm()
            for mean, label in enumerate([5, 0, 2]):
                distance = float((unit - means[run, mean]).square().sum())
                assert float(scores[run, i, label]) == pytest.approx(-distance, abs=1e-12)
    assert scores[..., [1, 3, 4]].eq(-torch.inf).all()


def test_features_that_are_not_made_unit_are_compared_as_they_are() -> None:
    features, kept = draws(2, 6, 4, seed=6), draws(2, 5, 4, seed=7)
    rule = NearestMean(unit=False)
    scores = rule.scores(features, torch.zeros(2, 6, 3), rule.fit(kept, [2, 2, 0, 0, 0]))
    for run in range(2):
        means = {2: kept[run, :2].sum(0) / 2, 0: kept[run, 2:].sum(0) / 3}
        for i in range(6):
            for label, mean in means.items():
                distance = float((features[run, i] - mean).square().sum())
                assert float(scores[run, i, label]) == pytest.approx(-distance, abs=1e-12)
    assert scores[..., 1].eq(-torch.inf).all()


def test_features_of_length_zero_still_have_scores() -> None:
    dead = torch.zeros(1, 3, 4, dtype=torch.float64)
    fitted = NearestMean().fit(dead, [0, 1, 1])
    assert NearestMean().scores(dead, torch.zeros(1, 3, 2), fitted).isfinite().all()


# ── in the fleet ──────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def stream() -> Stream:
    return little.stream()


def trained(stream: Stream, name: str, seeds: tuple[int, ...] = (0, 1)) -> Fleet:
    one = learner(name, MemorySpec(per_class=5))
    fleet = Fleet(stream, little.Network, [one] * len(seeds), list(seeds), SHORT, dtype=torch.float64)
    fleet.train()
    return fleet


def test_hybrid_1_differs_in_the_classifier_alone(stream: Stream) -> None:
    whole, hybrid = trained(stream, "icarl"), trained(stream, "icarl-hb1")
    assert whole.theta.equal(hybrid.theta)
    assert whole.memory is not None and hybrid.memory is not None
    for one, other in zip(whole.memory.groups, hybrid.memory.groups, strict=True):
        assert one.examples.equal(other.examples)
    for head in ("single", "multi"):
        assert not np.array_equal(whole.accuracy[head], hybrid.accuracy[head], equal_nan=True)


def literal_accuracies(fleet: Fleet, run: int) -> dict[str, list[float]]:
    """Every test example classified by itself: nearest among all means, nearest among its own task's."""
    assert fleet.memory is not None
    of_class: dict[int, list[int]] = defaultdict(list)
    for group in fleet.memory.groups:
        of_class[group.label] += group.examples[run].tolist()
    runs = fleet.runs

    def features(x: Tensor) -> Tensor:
        return fleet.net.forward_with_features(x.expand(runs, *x.shape), train=False)[0][run].detach()

    means = {
        label: literal_means(features(fleet.stream.batch(torch.tensor(kept))[0]), [len(kept)])[0]
        for label, kept in of_class.items()
    }
    accuracies: dict[str, list[float]] = {"single": [], "multi": []}
    for task in fleet.stream.tasks:
        x, y = fleet.stream.test_batch(task.test)
        units = [phi / phi.norm() for phi in features(x)]
        for head, candidates in (("single", list(means)), ("multi", list(task.classes))):
            chosen = [min(candidates, key=lambda c: float((unit - means[c]).norm())) for unit in units]
            accuracies[head].append(float(np.mean(np.array(chosen) == y.numpy())))
    return accuracies


def test_both_heads_come_from_the_distances_to_the_means(stream: Stream) -> None:
    fleet = trained(stream, "icarl")
    for run in range(2):
        for head, expected in literal_accuracies(fleet, run).items():
            np.testing.assert_allclose(fleet.accuracy[head][run, -1], expected)


def test_a_class_met_in_several_tasks_has_one_mean() -> None:
    shuffled = splits.permuted(datasets.load("digits"), tasks=3)
    fleet = Fleet(shuffled, "mlp", [learner("icarl", MemorySpec(per_class=2))], [0], SHORT, dtype=torch.float64)
    fleet.train()
    assert fleet.memory is not None and len(fleet.memory.groups) == 30
    np.testing.assert_allclose(fleet.accuracy["single"][0, -1], literal_accuracies(fleet, 0)["single"])


def test_the_teacher_is_the_network_before_the_task(stream: Stream) -> None:
    fleet = Fleet(stream, "mlp", [learner("icarl", MemorySpec(per_class=5))], [0], SHORT)
    before = fleet.theta.clone()
    fleet.begin_task()
    assert fleet.loss_state == {}, "nobody has been there before"
    fleet.train_task()
    fleet.end_task()
    fleet.task, fleet.step = 1, 0
    after = fleet.theta.clone()
    fleet.begin_task()
    fleet.train_task()
    assert fleet.loss_state["teacher"].equal(after)
    assert not after.equal(before) and not fleet.theta.equal(after)


class WithBatchNorm(nn.Module):
    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.body = nn.Linear(torch.Size(shape).numel(), 16)
        self.norm = nn.BatchNorm1d(16)
        self.head = nn.Linear(16, classes)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(torch.relu(self.norm(self.body(x.flatten(1)))))
        return out


@pytest.mark.parametrize("runs", [1, 2])
@pytest.mark.parametrize("name", ["icarl", "lwf"])
def test_a_teacher_with_batch_norm_is_the_whole_network_before_the_task(
    stream: Stream, name: str, runs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its running statistics included: what it says does not change while the task is learned."""
    each = learner(name, MemorySpec(per_class=5) if name == "icarl" else None)
    fleet = Fleet(stream, WithBatchNorm, [each] * runs, range(runs), SHORT, dtype=torch.float64)
    fleet.begin_task()
    fleet.train_task()
    fleet.end_task()
    before, moved = copy.deepcopy(fleet), 0.0
    fleet.task, fleet.step = 1, 0
    taught: list[tuple[Tensor, Tensor]] = []
    batch_of = eager_step.batch_of

    def noted(inputs: dict[str, Tensor], said: Tensor) -> Batch:
        taught.append((inputs["x"], said))
        return batch_of(inputs, said)

    monkeypatch.setattr(eager_step, "batch_of", noted)
    fleet.begin_task()
    fleet.train_task()
    assert len(taught) == fleet.task_plan.steps
    for x, said in taught:
        with torch.no_grad():
            torch.testing.assert_close(said, before.net.forward(x, train=False), rtol=0, atol=1e-9)
            now = fleet.net.forward(x, theta=before.theta, train=False)
            moved = max(moved, float((said - now).abs().max()))
    assert moved > 0.1, "the student's running statistics have moved"


def test_icarl_trains_on_the_union_and_needs_exemplars() -> None:
    for name in ("icarl", "icarl-hb1"):
        one = learner(name, MemorySpec(per_class=3, replay="balanced"))
        assert one.memory is not None and one.memory.replay == "concat" and isinstance(one.loss, ICaRL)
        with pytest.raises(InputError, match="needs exemplars"):
            learner(name)
        with pytest.raises(InputError, match="has no 'margin'"):
            learner(name, MemorySpec(per_class=3), margin=0.5)


@pytest.mark.parametrize("taught", [False, True], ids=["first task", "later task"])
def test_icarl_of_2020_is_torchs_mean_over_the_outputs_so_far(taught: bool) -> None:
    logits, teacher = draws(2, 5, 7, seed=8), draws(2, 5, 7, seed=9)
    y = torch.tensor([[2, 3, 2, 2, 3], [3, 3, 2, 3, 2]])
    first = torch.arange(7) < 2
    new, old = (torch.arange(7) < 4) & ~first, first & taught
    seen = slice(0, 4) if taught else slice(2, 4)
    target = F.one_hot(y, 7).double()
    if taught:
        target[..., :2] = teacher[..., :2].sigmoid()
    batch = Batch(y, torch.zeros(7), new, old, teacher if taught else None)
    losses = ICaRL2020()(logits, batch)
    for run in range(2):
        expected = F.binary_cross_entropy_with_logits(logits[run, :, seen], target[run, :, seen])
        torch.testing.assert_close(losses[run], expected)


def test_icarl_of_2020_classifies_by_exemplars_that_it_never_trains_on(stream: Stream) -> None:
    one = learner("icarl-2020", MemorySpec(per_class=5, sampler="mof-plain"))
    fleet = Fleet(stream, little.Network, [one], [0], SHORT, dtype=torch.float64)
    for number, task in enumerate(stream.tasks):
        fleet.task, fleet.step = number, 0
        fleet.begin_task()
        shown = torch.cat([index.flatten() for index, *_ in batches_of(fleet)])
        assert set(shown.tolist()) <= set(task.train.tolist())
        fleet.train_task()
        fleet.end_task()
    assert fleet.memory is not None and len(fleet.memory.groups) == stream.classes
    assert fleet.learner.classifier == NearestMean(unit=False)


def test_distillation_keeps_what_training_alone_forgets(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same exemplars and the same batches; without the teacher, old outputs learn labels like new ones."""
    digits = splits.split(datasets.load("digits"), classes_per_task=2)

    def accuracy_on_old_classes() -> float:
        one = learner("icarl-hb1", MemorySpec(per_class=5))
        fleet = Fleet(digits, "mlp", [one] * 2, [0, 1], Training(epochs=5))
        fleet.train()
        return float(fleet.accuracy["single"][:, -1, :-1].mean())

    taught = accuracy_on_old_classes()
    monkeypatch.setattr(ICaRL, "begin_task", lambda *seen: None)
    assert taught > accuracy_on_old_classes() + 0.3
