"""A Guard in a user's loop gives the parameters of a fleet, with the same batches and masks."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector

from rwalk import seeds
from rwalk.data import datasets, replay_batches, splits
from rwalk.data.streams import Stream
from rwalk.engine.fleet import Fleet
from rwalk.guard import Guard
from rwalk.learners import Learner
from rwalk.losses import heads
from rwalk.methods import EWC, PI, EWCpp, Method, RWalk, Vanilla
from rwalk.training import Training

SEED = 3


@pytest.fixture(scope="module")
def stream() -> Stream:
    return splits.split(datasets.load("digits"), classes_per_task=5).to("cpu", torch.float64)


def fleet_of_one(stream: Stream, method: Method, training: Training) -> Fleet:
    return Fleet(stream, "mlp", [Learner(method)], [SEED], training, dtype=torch.float64)


def fleet_batches(stream: Stream, task: int, training: Training) -> Iterator[tuple[Tensor, Tensor]]:
    train = stream.tasks[task].train
    labels = stream.labels(train)
    pools = [train[labels == label] for label in stream.tasks[task].classes]
    for epoch in range(training.epochs):
        generator = seeds.generator(SEED, "order", task, epoch)
        for index in replay_batches.epoch(pools, [], "none", training.batch, generator):
            yield stream.batch(index)


def plain_loop(model: nn.Module, stream: Stream, method: Method, training: Training, micro_batches: int) -> Guard:
    """A user's loop, with the masks and the batch order of the fleet."""
    guard = None
    for task, now in enumerate(stream.tasks):
        mask = heads.mask(now.classes, stream.classes, next(model.parameters()))
        optimizer = torch.optim.Adam(model.parameters(), lr=training.lr, fused=True)
        if guard is None:
            guard = Guard(model, optimizer, method)
        else:
            guard.attach(optimizer)
        for x, y in fleet_batches(stream, task, training):
            for part_x, part_y in zip(x.chunk(micro_batches), y.chunk(micro_batches), strict=True):
                loss = F.cross_entropy(model(part_x) + mask, part_y)
                (loss * len(part_y) / len(y)).backward()
            optimizer.step()
            optimizer.zero_grad()
        if method.data_pass:
            x, y = stream.batch(now.train)
            guard.consolidate(F.cross_entropy(model(each) + mask, y) for each in [x])
        else:
            guard.consolidate()
    assert guard is not None
    return guard


MINI, FULL = Training(epochs=2), Training(epochs=8, batch=10_000)


@pytest.mark.parametrize(
    ("method", "training"),
    [
        (Vanilla(), MINI),
        (RWalk(lam=2.0, dt=5), MINI),
        (RWalk(lam=2.0, dt=5, fisher_at="start"), MINI),
        (RWalk(lam=100.0, dt=7, penalty="proximal"), MINI),
        (EWCpp(lam=10.0), MINI),
        (EWCpp(lam=10.0, normalize=False), MINI),
        (PI(lam=2.0), MINI),
        (EWC(lam=1e3), FULL),  # its pass over the data is one batch, which leaves no weights to differ in
        (EWC(lam=1e3, penalty="proximal"), FULL),
    ],
    ids=str,
)
def test_fleet_plain_loop_and_accumulation_agree(stream: Stream, method: Method, training: Training) -> None:
    fleet = fleet_of_one(stream, method, training)
    beginning = deepcopy(fleet.net.module)
    fleet.train()
    for micro_batches in (1, 2):
        model = deepcopy(beginning)
        guard = plain_loop(model, stream, method, training, micro_batches)
        theta = parameters_to_vector(model.parameters())
        torch.testing.assert_close(theta, fleet.theta[0], rtol=0, atol=1e-9)
        for name, vector in fleet.state.items():
            mine = torch.cat([tensor.flatten() for tensor in of_vector(guard, name)])
            torch.testing.assert_close(mine, vector[0], rtol=1e-6, atol=1e-9)


def of_vector(guard: Guard, name: str) -> list[Tensor]:
    return [tensor for key, tensor in guard.state_dict()["tensors"].items() if key.startswith(f"{name}/")]
