"""The gradients of old tasks' exemplars, which constrain what a projector may return."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rwalk import seeds
from rwalk.engine.lessons import mask_of
from rwalk.engine.vectors import preserved
from rwalk.losses import heads

if TYPE_CHECKING:
    from rwalk.engine.fleet import Fleet

Constraint = tuple[Tensor, Tensor]  # exemplars [R, n], and the head of each [R, n, C]


def constraints_of(fleet: Fleet) -> list[Constraint]:
    """The exemplars of every old task under its own head; task by task, or all together."""
    assert fleet.memory is not None and fleet.learner.projector is not None
    found = []
    for number, task in enumerate(fleet.stream.tasks[: fleet.task]):
        examples = torch.cat([group.examples for group in fleet.memory.of_task(number)], dim=1)
        examples = examples.to(fleet.theta.device)
        if fleet.stream.groups is None:
            head = mask_of(fleet, task.classes)
        else:
            head = fleet.lesson.head_of(fleet.stream.labels(examples))
        found.append((examples, head.expand(*examples.shape, -1)))
    if fleet.learner.projector.per_task:
        return found
    return [(torch.cat([e for e, _ in found], dim=1), torch.cat([m for _, m in found], dim=1))]


def drawn(fleet: Fleet, constraints: list[Constraint]) -> list[Constraint]:
    """The exemplars a step uses: all of every task, or one batch drawn from all tasks, separately for each run."""
    assert fleet.learner.projector is not None
    if fleet.learner.projector.per_task:
        return constraints
    ((examples, masks),) = constraints
    draws = [seeds.generator(seed, "constraint", fleet.past + fleet.task, fleet.step) for seed in fleet.seeds]
    count = examples.shape[1]
    wanted = fleet.learner.memory.beside if fleet.learner.memory else None
    size = min(wanted or fleet.training.batch, count)
    place = torch.stack([torch.randperm(count, generator=draw)[:size] for draw in draws]).to(examples.device)
    return [(examples.gather(1, place), masks.gather(1, place[..., None].expand(-1, -1, masks.shape[2])))]


def gradient(fleet: Fleet, index: Tensor, head: Tensor) -> Tensor:
    """The gradient of the exemplars' mean loss at θ [R, P]; running statistics are not updated."""
    x, y = fleet.stream.batch(index)
    with torch.enable_grad(), preserved(fleet.net.buffers):
        return fleet.net.gradient(heads.cross_entropy(fleet.net.forward(x) + head, y))
