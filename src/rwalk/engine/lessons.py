"""What is fixed while a task is learned, and the batches it is learned from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from rwalk import seeds
from rwalk.data import batches
from rwalk.engine import reservoirs
from rwalk.losses import heads
from rwalk.training import steps_per_epoch

if TYPE_CHECKING:
    from rwalk.engine.fleet import Fleet


@dataclass(frozen=True)
class Lesson:
    """A task, as a fleet learns it."""

    pools: list[Tensor]  # its training examples (or all so far, if all are learned again) by class, on the CPU
    size: int  # examples that an epoch passes over
    steps: int
    head: Tensor  # of the classes that are trained [C]: 0, −∞ for the others; or one such row per label [C, C]
    new: Tensor  # which classes are its own [C]
    old: Tensor  # which were seen before and are not [C]
    rivals: Rivals | None = None  # which classes compete with each other, where the scenario says so

    @property
    def examples(self) -> Tensor:
        return torch.cat(self.pools)

    def head_of(self, y: Tensor) -> Tensor:
        """The head of examples with these labels [...]: one for all [C], or one each [..., C]."""
        return self.head if self.head.dim() == 1 else self.head[y]


class Rivals(NamedTuple):
    """Groups of classes that compete with each other, and what they mean to a teacher."""

    groups: Tensor  # [G, C], True for the members
    taught: Tensor  # [G]: how often each was taught before this task; part of it counts as once


def lesson_of(fleet: Fleet) -> Lesson:
    """The current task of a fleet."""
    stream, learner, task = fleet.stream, fleet.learner, fleet.stream.tasks[fleet.task]
    again = learner.loss.everything
    replays = learner.memory is not None and learner.memory.replay != "none"
    own = (*task.classes, *task.others)
    seen = tuple(dict.fromkeys((*stream.seen(fleet.task), *own)))
    new = mask_of(fleet, own) == 0
    examples = torch.cat([each.train for each in stream.tasks[: fleet.task + 1]]) if again else task.train
    labels = stream.labels(examples)
    head = mask_of(fleet, seen if again or replays else own) if stream.groups is None else heads_of(fleet)
    return Lesson(
        pools=[examples[labels == label].cpu() for label in (seen if again else own)],
        size=learner.examples(stream, fleet.task),
        steps=learner.steps(fleet.training, stream, fleet.task),
        # All classes seen, if the batches contain examples of the old ones; otherwise the task's classes alone.
        head=head,
        new=new,
        old=(mask_of(fleet, (*fleet.known, *seen)) == 0) & ~new,
        rivals=None if stream.groups is None else _rivals(fleet),
    )


def heads_of(fleet: Fleet) -> Tensor:
    """Where the scenario says which classes compete: one head for all [C], or the head of every label [C, C]."""
    groups = fleet.stream.groups
    assert groups is not None
    masks = [mask_of(fleet, group) for group in groups]
    if len(masks) == 1:
        return masks[0]
    owner = {label: mask for group, mask in zip(groups, masks, strict=True) for label in group}
    return torch.stack([owner[label] for label in range(fleet.stream.classes)])


def _rivals(fleet: Fleet) -> Rivals:
    groups = fleet.stream.groups
    assert groups is not None
    before = [set(task.classes) for task in fleet.stream.tasks[: fleet.task]]
    known = set().union(*before)
    taught = [max(sum(set(group) <= each for each in before), bool(known & set(group))) for group in groups]
    members = torch.stack([mask_of(fleet, group) == 0 for group in groups])
    return Rivals(members, torch.tensor(taught, dtype=fleet.theta.dtype, device=fleet.theta.device))


def mask_of(fleet: Fleet, classes: tuple[int, ...]) -> Tensor:
    return heads.mask(classes, fleet.stream.classes, fleet.theta)


def batches_of(fleet: Fleet, start: int | None = None) -> Iterator[tuple[Tensor, ...]]:
    """What every step from `start` (or where the fleet is) on is given, depending on (seed, task, epoch) alone:

    indices [R, B]; places in a reservoir [R, B], where there is one; the draws of an augmentation [R, B, k].
    """
    per_epoch = steps_per_epoch(fleet.lesson.size, fleet.training.batch)
    step = fleet.step if start is None else start
    while step < fleet.lesson.steps:
        epoch, offset = divmod(step, per_epoch)
        drawn = [_epoch(fleet, run, seed, epoch) for run, seed in enumerate(fleet.seeds)]
        plans = [torch.stack(each, dim=1).to(fleet.theta.device) for each in zip(*drawn, strict=True)]
        here = slice(offset, offset + fleet.lesson.steps - step)
        yield from zip(*(plan[here] for plan in plans), strict=True)
        step += per_epoch - offset


def _epoch(fleet: Fleet, run: int, seed: int, epoch: int) -> list[Tensor]:
    """The draws of one run, each [steps, B, …]."""
    where = (fleet.past + fleet.task, epoch)
    if fleet.learner.reservoir:
        drawn = reservoirs.epoch(fleet, run, epoch)
    else:
        kept = [] if fleet.memory is None else fleet.memory.of_run(run)
        replay = "none" if fleet.memory is None else fleet.memory.spec.replay
        generator = seeds.generator(seed, "order", *where)
        beside = None if fleet.memory is None else fleet.memory.spec.beside
        drawn = [batches.epoch(fleet.lesson.pools, kept, replay, fleet.training.batch, generator, beside)]
    if fleet.augmentation is not None:
        steps, batch = drawn[0].shape
        drawn.append(fleet.augmentation.draw(steps, batch, seeds.generator(seed, "augment", *where)))
    return drawn
