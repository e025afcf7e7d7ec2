"""Learners without a gradient, in fleets: exact in any order and any batches, against one solve over all data."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

import little
from rwalk import Fleet, IncrementalClassifier, InputError, MemorySpec, Stream, Training, learner, split
from rwalk.data import datasets
from rwalk.data.streams import Task
from rwalk.studies import Study
from rwalk.studies.specs import RunSpec
from rwalk.testing.fleet_checks import (
    FleetRecipe,
    a_fleet_equals_its_runs_alone,
    an_interrupted_run_ends_as_if_it_had_not_been,
    cloud_stream,
)

SIZE = 24


def solved(name: str, stream: Stream, batch: int = 16, seed: int = 3, **numbers: float) -> Fleet:
    one = learner(name, size=SIZE, **numbers)
    fleet = Fleet(stream, "mlp", [one], [seed], Training(batch=batch), dtype=torch.float64)
    fleet.train()
    return fleet


def layer(fleet: Fleet) -> tuple[Tensor, Tensor]:
    parts = fleet.net.layout.split(fleet.theta[0])
    return parts["head.weight"], parts["head.bias"]


def all_features(fleet: Fleet, stream: Stream) -> tuple[Tensor, Tensor]:
    """Of every training example of every task, through the fleet's own map."""
    examples = torch.cat([task.train for task in stream.tasks])
    x, y = stream.batch(examples)
    features, _ = fleet.net.forward_with_features(x[None].double(), train=False)
    return features[0].detach(), y


def mixed(stream: Stream, seed: int) -> Stream:
    """The same data, the examples of every task in another order, and the tasks after the first too."""
    draw = torch.Generator().manual_seed(seed)
    first, *rest = (
        Task(task.classes, task.train[torch.randperm(len(task.train), generator=draw)], task.test)
        for task in stream.tasks
    )
    return replace(stream, tasks=(first, *reversed(rest)))


@pytest.mark.parametrize("name", ["ridge", "slda"])
def test_any_order_and_any_batches_give_the_same_weights(name: str) -> None:
    stream = little.stream()
    weights, bias = layer(solved(name, stream, batch=16))
    for other in (
        solved(name, stream, batch=1),
        solved(name, stream, batch=7),
        solved(name, stream, batch=1000),
        solved(name, mixed(stream, 1), batch=16),
        solved(name, mixed(stream, 2), batch=5),
    ):
        torch.testing.assert_close(layer(other)[0], weights, rtol=0, atol=1e-8)
        torch.testing.assert_close(layer(other)[1], bias, rtol=0, atol=1e-8)


def test_ridge_is_one_solve_over_all_data() -> None:
    """(Φᵀ Φ + λ D) W = Φᵀ Y about the means, D a block's mean variance times the number of blocks."""
    stream, lam = little.stream(), 0.03
    fleet = solved("ridge", stream, ridge=lam)
    features, y = all_features(fleet, stream)
    phi, targets = features.numpy(), np.eye(stream.classes)[y.numpy()]
    centred, about = phi - phi.mean(0), targets - targets.mean(0)
    blocks = fleet.net.module.blocks
    variance = np.split((centred**2).sum(0), np.cumsum(blocks)[:-1])
    penalty = np.concatenate([np.full(len(v), v.sum() * len(blocks) / phi.shape[1]) for v in variance])
    weights = np.linalg.solve(centred.T @ centred + lam * np.diag(penalty), centred.T @ about)
    np.testing.assert_allclose(layer(fleet)[0].numpy(), weights.T, rtol=0, atol=1e-8)
    bias = targets.mean(0) - phi.mean(0) @ weights
    np.testing.assert_allclose(layer(fleet)[1].numpy(), bias, rtol=0, atol=1e-8)


def test_slda_is_bayes_rule_for_gaussians_of_one_covariance() -> None:
    """log π_c + log N(φ; μ_c, Σ), up to what all classes share; written out class by class."""
    stream, lam = little.stream(), 0.05
    fleet = solved("slda", stream, ridge=lam)
    features, y = all_features(fleet, stream)
    phi, labels = features.numpy(), y.numpy()
    blocks = fleet.net.module.blocks
    variance = np.split(((phi - phi.mean(0)) ** 2).sum(0), np.cumsum(blocks)[:-1])
    penalty = np.concatenate([np.full(len(v), v.sum() * len(blocks) / phi.shape[1]) for v in variance])
    means = np.stack([phi[labels == c].mean(0) for c in range(stream.classes)])
    within = sum((phi[labels == c] - means[c]).T @ (phi[labels == c] - means[c]) for c in range(stream.classes))
    inverse = np.linalg.inv((within + lam * np.diag(penalty)) / len(phi))
    shares = np.array([np.mean(labels == c) for c in range(stream.classes)])
    apart = phi[:, None] - means
    expected = np.log(shares) - 0.5 * np.einsum("ncd,de,nce->nc", apart, inverse, apart)
    weights, bias = (each.numpy() for each in layer(fleet))
    scores = phi @ weights.T + bias
    np.testing.assert_allclose(scores - scores[:, :1], expected - expected[:, :1], rtol=0, atol=1e-7)


def test_the_map_is_made_from_the_first_tasks_inputs_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rwalk.closed_form.features.patches.SAMPLED", 2000)
    stream = cloud_stream((1, 16, 16))
    later = stream.tasks[1].train
    changed = stream.x.clone()
    changed[later] = 0.0
    one, other = solved("ridge", stream), solved("ridge", replace(stream, x=changed))
    assert one.net.buffers["filters"].shape == (1, SIZE, 1, 6, 6)
    for name, buffer in one.net.buffers.items():
        assert buffer.equal(other.net.buffers[name])
    assert not one.theta.equal(other.theta)


def test_seeds_make_different_maps() -> None:
    one, other = (solved("ridge", little.stream(), seed=seed) for seed in (0, 1))
    assert not one.net.buffers["slopes"].equal(other.net.buffers["slopes"])


@pytest.mark.parametrize("name", ["ridge", "slda"])
def test_patches_of_images_keep_the_contract(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same alone and in a fleet, and through a checkpoint."""
    monkeypatch.setattr("rwalk.closed_form.features.patches.SAMPLED", 500)
    trial = FleetRecipe([learner(name, size=4)] * 2, stream=cloud_stream((1, 16, 16)))
    a_fleet_equals_its_runs_alone(trial)
    an_interrupted_run_ends_as_if_it_had_not_been(trial)


@pytest.mark.parametrize("name", ["ridge", "slda"])
def test_nothing_is_forgotten(name: str) -> None:
    """Digits, single-head, no exemplars: what a joint solve knows, the last task's end knows."""
    digits = split(datasets.load("digits"), classes_per_task=2)
    fleet = Fleet(digits, "mlp", [learner(name, size=300)], [0])
    fleet.train()
    assert fleet.accuracy["single"][0, -1].mean() > 0.93
    assert fleet.stopped == [None]


def test_a_study_has_rows_of_them_like_of_any_other_learner() -> None:
    names = ("ridge", "ridge", "slda", "slda")
    runs = tuple(RunSpec(method=name, numbers={"size": 20}, seed=n % 2) for n, name in enumerate(names))
    study = Study(runs, "none", workers=1)
    rows = study.execute()
    assert [row.method for row in rows] == [*names]
    assert all(row.single.A > 0.8 and row.stopped is None for row in rows)
    stream = study.stream(runs[0].stream)
    assert study.steps(runs[0]) == sum(-(-len(task.train) // 64) for task in stream.tasks)


def test_a_memory_is_of_no_use_to_them() -> None:
    assert RunSpec(method="ridge", memory=MemorySpec(total=50)).hash() == RunSpec(method="ridge").hash()


def test_what_makes_no_sense_is_refused_in_one_line() -> None:
    with pytest.raises(InputError, match="uses every example once, unchanged: drop the augmentation"):
        Fleet(cloud_stream((1, 16, 16)), "mlp", [learner("ridge", size=4)], [0], Training(augment="crop-flip"))
    with pytest.raises(InputError, match="trains no network: set method='closed-form'"):
        IncrementalClassifier(method="slda").fit([[0.0], [1.0]], [0, 1])
    with pytest.raises(InputError, match="images have shape"):
        Fleet(little.stream(), "mlp", [learner("ridge", features="images")], [0])
    for wrong in ({"size": 0}, {"ridge": -1.0}, {"features": "sounds"}):
        with pytest.raises(InputError):
            learner("ridge", **wrong)
