"""The plan of a task: everything that is fixed while it is learned, and the batches of its steps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from rwalk import seeds
from rwalk.data import replay_batches
from rwalk.engine import exemplars
from rwalk.training import steps_per_epoch

if TYPE_CHECKING:
    from rwalk.engine.fleet import Fleet


class Rivals(NamedTuple):
    """Groups of classes that compete with each other, as a teacher's loss uses them."""

    groups: Tensor  # [G, C], True for the members
    taught: Tensor  # [G]: how often each group was taught before this task; a part of a group counts as once


@dataclass(frozen=True)
class TaskPlan:
    """A task as a fleet learns it."""

    pools: list[Tensor]  # the training examples by class, on the CPU; of all tasks so far if all are learned again
    size: int  # examples in an epoch
    steps: int
    head: Tensor  # mask of the trained classes [C]: 0, or −∞ for the others; or one such row per label [C, C]
    new: Tensor  # the task's own classes [C], as booleans
    old: Tensor  # the other classes seen before [C], as booleans
    rivals: Rivals | None = None  # competing classes, if the scenario groups them

    @property
    def examples(self) -> Tensor:
        return torch.cat(self.pools)

    def head_of(self, y: Tensor) -> Tensor:
        """The head of examples with these labels [...]: one for all [C], or one each [..., C]."""
        return self.head if self.head.dim() == 1 else self.head[y]


def task_plan(fleet: Fleet) -> TaskPlan:
    """The plan of a fleet's current task."""
    stream, learner, task = fleet.stream, fleet.learner, fleet.stream.tasks[fleet.task]
    again = learner.loss.everything
    replays = learner.memory is not None and learner.memory.replay != "none"
    own = (*task.classes, *task.others)
    seen = tuple(dict.fromkeys((*stream.seen(fleet.task), *own)))
    new = fleet.mask(own) == 0
    examples = torch.cat([each.train for each in stream.tasks[: fleet.task + 1]]) if again else task.train
    labels = stream.labels(examples)
    # All classes seen, if the batches contain examples of the old ones; otherwise the task's classes alone.
    head = fleet.mask(seen if again or replays else own) if stream.groups is None else _heads(fleet, stream.groups)
    return TaskPlan(
        pools=[examples[labels == label].cpu() for label in (seen if again else own)],
        size=learner.examples(stream, fleet.task),
        steps=learner.steps(fleet.training, stream, fleet.task),
        head=head,
        new=new,
        old=(fleet.mask((*fleet.known, *seen)) == 0) & ~new,
        rivals=None if stream.groups is None else _rivals(fleet, stream.groups),
    )


def _heads(fleet: Fleet, groups: tuple[tuple[int, ...], ...]) -> Tensor:
    """The head of a single group of competing classes [C], or of every label [C, C]."""
    masks = [fleet.mask(group) for group in groups]
    if len(masks) == 1:
        return masks[0]
    owner = {label: mask for group, mask in zip(groups, masks, strict=True) for label in group}
    return torch.stack([owner[label] for label in range(fleet.stream.classes)])


def _rivals(fleet: Fleet, groups: tuple[tuple[int, ...], ...]) -> Rivals:
    before = [set(task.classes) for task in fleet.stream.tasks[: fleet.task]]
    known = set().union(*before)
    taught = [max(sum(set(group) <= each for each in before), bool(known & set(group))) for group in groups]
    members = torch.stack([fleet.mask(group) == 0 for group in groups])
    return Rivals(members, torch.tensor(taught, dtype=fleet.theta.dtype, device=fleet.theta.device))


def batches_of(fleet: Fleet, start: int | None = None) -> Iterator[tuple[Tensor, ...]]:
    """The inputs of every step from `start`, by default the fleet's next step.

    They depend on (seed, task, epoch) alone: indices [R, B]; with a reservoir, places in it [R, B]; with an
    augmentation, its draws [R, B, k].
    """
    plan = fleet.task_plan
    per_epoch = steps_per_epoch(plan.size, fleet.training.batch)
    step = fleet.step if start is None else start
    while step < plan.steps:
        epoch, offset = divmod(step, per_epoch)
        drawn = [_epoch(fleet, run, seed, epoch) for run, seed in enumerate(fleet.seeds)]
        inputs = [torch.stack(each, dim=1).to(fleet.theta.device) for each in zip(*drawn, strict=True)]
        here = slice(offset, offset + plan.steps - step)
        yield from zip(*(each[here] for each in inputs), strict=True)
        step += per_epoch - offset


def _epoch(fleet: Fleet, run: int, seed: int, epoch: int) -> list[Tensor]:
    """The inputs of one run's steps in an epoch, each [steps, B, …]."""
    batch, memory = fleet.training.batch, fleet.memory
    if fleet.learner.reservoir:
        drawn = exemplars.reservoir_epoch(fleet, run, epoch)
    else:
        generator = seeds.generator(seed, "order", fleet.task_number, epoch)
        kept, replay, beside = (
            ([], "none", None) if memory is None else (memory.of_run(run), memory.spec.replay, memory.spec.beside)
        )
        drawn = [replay_batches.epoch(fleet.task_plan.pools, kept, replay, batch, generator, beside)]
    if fleet.augmentation is not None:
        steps, size = drawn[0].shape
        generator = seeds.generator(seed, "augment", fleet.task_number, epoch)
        drawn.append(fleet.augmentation.draw(steps, size, generator))
    return drawn
