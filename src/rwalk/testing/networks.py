"""What must hold for a network: it can be trained in fleets, resumed from files, and is determined by seeds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from rwalk.engine.fleet import Fleet
from rwalk.engine.networks import Factory
from rwalk.learners import Learner, learner
from rwalk.testing.claims import Check, claim, draws, listed
from rwalk.testing.trials import FLEET_CHECKS, Trial, stream_of
from rwalk.training import Training

# Plain SGD: where a gradient is zero up to rounding, Adam turns the rounding into a whole step, and depth
# amplifies it.
GENTLE = Training(steps=5, batch=8, optimizer="sgd", lr=0.01)


@dataclass(frozen=True)
class Built:
    trial: Trial

    def fleet(self) -> Fleet:
        return self.trial.fleet()


def a_seed_decides_how_it_begins(built: Built) -> None:
    one, same = built.fleet(), built.fleet()
    claim(one.theta.equal(same.theta), "the same seeds begin with other parameters the second time")
    claim(not one.theta[0].equal(one.theta[1]), "other seeds begin with the same parameters")


def an_example_is_judged_by_itself_once_it_is_trained(built: Built) -> None:
    """In evaluation mode, outputs do not depend on the rest of the batch."""
    fleet = built.trial.trained([0])
    x = draws(1, 4, *built.trial.stream.shape, seed=3)
    with torch.no_grad():
        together = fleet.net.forward(x, train=False)
        alone = torch.cat([fleet.net.forward(x[:, i : i + 1], train=False) for i in range(4)], dim=1)
    apart = float((together - alone).abs().max()) / (1 + float(together.abs().max()))
    claim(apart < 1e-9, "in evaluation mode, an example's outputs depend on the others in its batch")


NETWORK_CHECKS = (a_seed_decides_how_it_begins, an_example_is_judged_by_itself_once_it_is_trained)


def checks_of_network(given: str | Factory, shape: tuple[int, ...] = (1, 8, 8)) -> Iterator[Check]:
    name = given if isinstance(given, str) else getattr(given, "__name__", repr(given))
    learners: tuple[Learner, ...] = (learner("rwalk", lam=1.0), learner("rwalk", lam=2.0))
    trial = Trial(learners, given, stream_of(shape), GENTLE)
    yield from listed(trial, name, *FLEET_CHECKS)
    yield from listed(Built(trial), name, *NETWORK_CHECKS)
