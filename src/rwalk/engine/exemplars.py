"""Which examples of a task a fleet keeps, and what it stores beside them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rwalk import seeds
from rwalk.data import samplers
from rwalk.data.memory import Group
from rwalk.engine import reservoirs
from rwalk.engine.evaluation import outputs
from rwalk.engine.vectors import Networks, head_weight
from rwalk.errors import InputError
from rwalk.learners import Learner

if TYPE_CHECKING:
    from rwalk.engine.fleet import Fleet


def keep(fleet: Fleet, before: bool) -> None:
    """Remember what the learner remembers of a task: before it is learned, or after."""
    if fleet.learner.reservoir and not before:
        reservoirs.close_task(fleet)
    if fleet.memory and fleet.memory.spec.is_all == before:
        fleet.memory.keep(chosen(fleet))


def chosen(fleet: Fleet) -> list[Group]:
    """The exemplars of the current task, class by class, drawn separately for each run."""
    assert fleet.memory is not None
    spec, task = fleet.memory.spec, fleet.stream.tasks[fleet.task]
    quota = spec.quota(len(fleet.memory.groups) + len(task.classes))
    needs = samplers.find(spec.sampler).needs
    evidence: dict[str, Tensor] = {}
    groups = []
    for label, pool in zip(task.classes, fleet.lesson.pools, strict=True):
        draws = [seeds.generator(seed, "exemplars", fleet.past + fleet.task, label) for seed in fleet.seeds]
        if needs:
            features, logits = outputs(fleet, pool.expand(fleet.runs, -1))
            evidence = {"features": features, "logits": logits + fleet.lesson.head}
        if "weights" in needs:
            evidence["weights"] = head_weight(fleet.net)[:, label]
        places = samplers.select(spec.sampler, len(pool), quota, draws, **evidence)
        examples = pool[places.cpu()]
        groups.append(Group(fleet.task, label, examples, _stored(fleet, examples)))
    return groups


def _stored(fleet: Fleet, examples: Tensor) -> dict[str, Tensor]:
    """What the loss wants to have stored with exemplars [R, m]."""
    if not fleet.loss.keeps:
        return {}
    features, logits = outputs(fleet, examples)
    return {name: {"features": features, "logits": logits}[name].cpu() for name in fleet.loss.keeps}


def check_features(learner: Learner, net: Networks) -> None:
    """Refuse a network without the features that the sampler or the classifier needs."""
    memory = learner.memory
    sampled = memory is not None and not memory.is_reservoir and "features" in samplers.find(memory.sampler).needs
    if (sampled or learner.classifier.needs_exemplars) and not net.has_features:
        raise InputError(
            "the network's features cannot be found: give it a last nn.Linear with one output per class, or use "
            "the sampler 'uniform' (iCaRL does not work without features)"
        )


def recalled(fleet: Fleet) -> tuple[Tensor, dict[str, Tensor]]:
    """The indices [R, M] of all exemplars in ascending order, and what is stored with them [R, M, …]."""
    assert fleet.memory is not None
    groups = fleet.memory.groups
    numbers, order = torch.cat([group.examples for group in groups], dim=1).sort(dim=1)
    stored = {}
    for name in fleet.loss.keeps:
        each = torch.cat([group.stored[name] for group in groups], dim=1)
        place = order.reshape(*order.shape, *(1 for _ in each.shape[2:])).expand_as(each)
        stored[name] = each.gather(1, place).to(fleet.theta)
    return numbers.to(fleet.theta.device), stored
