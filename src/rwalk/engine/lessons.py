"""What is fixed while a task is learned, and the batches it is learned from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rwalk import seeds
from rwalk.data import batches
from rwalk.losses import heads
from rwalk.training import steps_per_epoch

if TYPE_CHECKING:
    from rwalk.engine.fleet import Fleet


@dataclass(frozen=True)
class Lesson:
    """A task, as a fleet learns it."""

    pools: list[Tensor]  # its training examples, class by class, on the CPU
    steps: int
    head: Tensor  # of the classes that are trained [C]: 0, −∞ for the others
    new: Tensor  # which classes are its own [C]
    old: Tensor  # which were seen before and are not [C]

    @property
    def examples(self) -> Tensor:
        return torch.cat(self.pools)


def lesson_of(fleet: Fleet) -> Lesson:
    """The current task of a fleet."""
    stream, task = fleet.stream, fleet.stream.tasks[fleet.task]
    labels = stream.labels(task.train)
    replays = fleet.memory is not None and fleet.memory.spec.replay != "none"
    seen = stream.seen(fleet.task)
    new = mask_of(fleet, task.classes) == 0
    return Lesson(
        pools=[task.train[labels == label].cpu() for label in task.classes],
        steps=fleet.training.steps_of(len(task.train)),
        # All classes seen, if the batches contain exemplars of the old ones; otherwise the task's classes alone.
        head=mask_of(fleet, seen if replays else task.classes),
        new=new,
        old=(mask_of(fleet, seen) == 0) & ~new,
    )


def mask_of(fleet: Fleet, classes: tuple[int, ...]) -> Tensor:
    return heads.mask(classes, fleet.stream.classes, fleet.theta)


def batches_of(fleet: Fleet) -> Iterator[tuple[Tensor, ...]]:
    """The inputs of every step from `fleet.step` on: indices [R, B], and the draws of an augmentation [R, B, k].

    They depend on (seed, task, epoch) alone.
    """
    per_epoch = steps_per_epoch(len(fleet.lesson.examples), fleet.training.batch)
    while fleet.step < fleet.lesson.steps:
        epoch, offset = divmod(fleet.step, per_epoch)
        drawn = [_epoch(fleet, run, seed, epoch) for run, seed in enumerate(fleet.seeds)]
        plans = [torch.stack(each, dim=1).to(fleet.theta.device) for each in zip(*drawn, strict=True)]
        here = slice(offset, offset + fleet.lesson.steps - fleet.step)
        yield from zip(*(plan[here] for plan in plans), strict=True)


def _epoch(fleet: Fleet, run: int, seed: int, epoch: int) -> list[Tensor]:
    """The draws of one run, each [steps, B, …]."""
    where = (fleet.past + fleet.task, epoch)
    kept = [] if fleet.memory is None else fleet.memory.of_run(run)
    replay = "none" if fleet.memory is None else fleet.memory.spec.replay
    generator = seeds.generator(seed, "order", *where)
    order = batches.epoch(fleet.lesson.pools, kept, replay, fleet.training.batch, generator)
    if fleet.augmentation is None:
        return [order]
    steps, batch = order.shape
    return [order, fleet.augmentation.draw(steps, batch, seeds.generator(seed, "augment", *where))]
