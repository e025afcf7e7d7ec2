"""Steps without a gradient: examples are counted in, and at a task's end the weights are solved for."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from rwalk.closed_form.features import LOOKED_AT, tensors_of
from rwalk.closed_form.statistics import Statistics
from rwalk.engine.lessons import batches_of
from rwalk.engine.vectors import head_weight
from rwalk.errors import InputError
from rwalk.methods.base import State
from rwalk.training import batch_size

if TYPE_CHECKING:
    from rwalk.engine.fleet import Fleet

ROWS = 512  # worth a multiplication; fewer are left waiting


def empty(fleet: Fleet) -> State:
    """Sums of every run, [R, …], before the first example; nothing, where the learner has a gradient."""
    if fleet.learner.solver is None:
        return {}
    features = head_weight(fleet.net).shape[2]
    every = [Statistics.empty(features, fleet.stream.classes, fleet.theta.device).tensors() for _ in fleet.seeds]
    return {name: torch.stack([each[name] for each in every]) for name in every[0]}


class Solved:
    """Every example once. The map comes first, from the inputs of the first task."""

    name: ClassVar[str] = "solved"

    def __init__(self, fleet: Fleet) -> None:
        if fleet.augmentation is not None:
            raise InputError("what is solved for sees every example once, as it is: drop the augmentation")
        self.fleet = fleet

    def begin_task(self) -> None:
        fleet, batch = self.fleet, self.fleet.training.batch
        if (fleet.past, fleet.task, fleet.step) == (0, 0, 0):
            self._make_maps()
        held = [{name: each[run] for name, each in fleet.held.items()} for run in range(fleet.runs)]
        self.sums = [Statistics(**each) for each in held]
        self.size = batch_size(fleet.lesson.size, batch)
        self.together = max(1, ROWS // self.size)  # steps
        # What waited when a run was interrupted waits again, so that sums are made in the same portions.
        done = fleet.step % self.together
        self.waiting = [self._once(index, fleet.step - done + n) for n, (index,) in self._since(done)]

    def step(self, *batch: Tensor) -> Tensor:
        fleet = self.fleet
        self.waiting.append(self._once(batch[0], fleet.step))
        if (fleet.step + 1) % self.together == 0 or fleet.step + 1 == fleet.lesson.steps:
            self._count_in(torch.cat(self.waiting, dim=1))
            self.waiting = []
        return fleet.theta.new_zeros(fleet.runs)  # there is nothing to descend

    def close_window(self, walker: int) -> None:
        """Nobody scores a path that is not walked."""

    @torch.no_grad()
    def end_task(self) -> None:
        fleet = self.fleet
        assert fleet.learner.solver is not None
        blocks: Sequence[int] = fleet.net.module.blocks  # type: ignore[assignment]
        layer = fleet.net.layout.split(fleet.theta)
        for run, sums in enumerate(self.sums):
            solution = fleet.learner.solver.solution(sums, blocks)
            seen = solution.bias.isfinite()  # what has no example yet has no score either; no head asks for it
            layer["head.weight"][run].copy_(solution.weights.T)
            layer["head.bias"][run].copy_(solution.bias.where(seen, 0))

    def _make_maps(self) -> None:
        """From all inputs of the task, in the order of its data: whatever order they are learned in."""
        fleet = self.fleet
        assert fleet.learner.solver is not None
        examples = fleet.stream.tasks[0].train
        x, _ = fleet.stream.batch(examples[:: -(-len(examples) // LOOKED_AT)])
        one = torch.ones(len(x), dtype=torch.float64, device=x.device)
        for run, seed in enumerate(fleet.seeds):
            made = fleet.learner.solver.recipe(seed).make(x, one)
            for name, each in tensors_of(made).items():
                if name in fleet.net.buffers:
                    fleet.net.buffers[name][run].copy_(each)

    @torch.no_grad()
    def _count_in(self, index: Tensor) -> None:
        x, y = self.fleet.stream.batch(index)
        features, _ = self.fleet.net.forward_with_features(x, train=False)
        one = torch.ones(index.shape[1], dtype=torch.float64, device=x.device)
        for run, sums in enumerate(self.sums):
            sums.add(features[run], y[run], one)
            sums.tensors()  # nothing is left waiting there

    def _once(self, index: Tensor, step: int) -> Tensor:
        """Without those that fill up the last batch, which were counted in before."""
        return index[:, : self.fleet.lesson.size - step * self.size]

    def _since(self, steps: int) -> list[tuple[int, tuple[Tensor, ...]]]:
        """The batches of so many last steps."""
        return list(enumerate(islice(batches_of(self.fleet, self.fleet.step - steps), steps)))
