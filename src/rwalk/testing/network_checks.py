"""Checks of a network: it can be trained in fleets, resumed from files, and is determined by seeds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch

from rwalk.engine import teachers
from rwalk.engine.architectures import Factory
from rwalk.learners import Learner, learner
from rwalk.testing.check_tools import Check, claim, draws, named_checks
from rwalk.testing.fleet_checks import FLEET_CHECKS, FleetRecipe, cloud_stream
from rwalk.training import Training

# Plain SGD: where a gradient is zero up to rounding, Adam turns the rounding into a whole step, and depth
# amplifies it.
GENTLE = Training(steps=5, batch=8, optimizer="sgd", lr=0.01)


def a_seed_decides_how_it_begins(trial: FleetRecipe) -> None:
    one, same = trial.fleet(), trial.fleet()
    claim(one.theta.equal(same.theta), "the same seeds begin with other parameters the second time")
    claim(not one.theta[0].equal(one.theta[1]), "other seeds begin with the same parameters")


def an_example_is_judged_by_itself_once_it_is_trained(trial: FleetRecipe) -> None:
    """In evaluation mode, outputs do not depend on the rest of the batch."""
    fleet = trial.trained([0])
    x = draws(1, 4, *trial.stream.shape, seed=3)
    with torch.no_grad():
        together = fleet.net.forward(x, train=False)
        alone = torch.cat([fleet.net.forward(x[:, i : i + 1], train=False) for i in range(4)], dim=1)
    apart = float((together - alone).abs().max()) / (1 + float(together.abs().max()))
    claim(apart < 1e-9, "in evaluation mode, an example's outputs depend on the others in its batch")


def a_teacher_says_the_same_while_its_student_learns(trial: FleetRecipe) -> None:
    """Batch norm's running statistics belong to a network, as its parameters do: a teacher keeps its own."""
    taught = replace(trial, learners=[learner("lwf")] * 2)
    for runs in ([0], None):
        fleet = taught.fleet(runs)
        fleet.begin_task()
        fleet.train_task()
        fleet.end_task()
        fleet.task, fleet.step = 1, 0
        x = draws(fleet.runs, 4, *trial.stream.shape, seed=3)
        with torch.no_grad():
            before = fleet.net.forward(x, train=False)
        fleet.begin_task()
        fleet.train_task()
        theta, buffers = fleet.loss_state[teachers.THETA], teachers.buffers(fleet.loss_state)
        with torch.no_grad():
            after = fleet.net.forward(x, theta=theta, buffers=buffers, train=False)
        apart = float((after - before).abs().max()) / (1 + float(before.abs().max()))
        claim(
            apart < 1e-9, "a copy of its parameters and buffers is not the network: it depends on something else"
        )


NETWORK_CHECKS = (
    a_seed_decides_how_it_begins,
    an_example_is_judged_by_itself_once_it_is_trained,
    a_teacher_says_the_same_while_its_student_learns,
)


def checks_of_network(given: str | Factory, shape: tuple[int, ...] = (1, 8, 8)) -> Iterator[Check]:
    name = given if isinstance(given, str) else getattr(given, "__name__", repr(given))
    learners: tuple[Learner, ...] = (learner("rwalk", lam=1.0), learner("rwalk", lam=2.0))
    trial = FleetRecipe(learners, given, cloud_stream(shape), GENTLE)
    yield from named_checks(trial, name, *FLEET_CHECKS, *NETWORK_CHECKS)
