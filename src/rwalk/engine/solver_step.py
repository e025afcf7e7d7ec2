"""Steps without a gradient: examples are added to sums, and at a task's end the weights are solved for."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from rwalk.closed_form.features import LOOKED_AT, tensors_of
from rwalk.closed_form.sums import Statistics
from rwalk.engine.parameter_matrix import head_weight
from rwalk.engine.task_plan import batches_of
from rwalk.errors import InputError
from rwalk.methods.method import State
from rwalk.training import batch_size

if TYPE_CHECKING:
    from rwalk.engine.fleet import Fleet

ROWS = 512  # examples that repay a matrix product; fewer wait for the next step


def empty_sums(fleet: Fleet) -> State:
    """The sums of every run [R, …] before the first example; no tensors without a solver."""
    if fleet.learner.solver is None:
        return {}
    features = head_weight(fleet.net).shape[2]
    every = [Statistics.empty(features, fleet.stream.classes, fleet.theta.device).tensors() for _ in fleet.seeds]
    return {name: torch.stack([each[name] for each in every]) for name in every[0]}


class Solved:
    """Uses every example once. The feature map is made first, from the inputs of the first task."""

    name: ClassVar[str] = "solved"

    def __init__(self, fleet: Fleet) -> None:
        if fleet.augmentation is not None:
            raise InputError("a solver uses every example once, unchanged: drop the augmentation")
        self.fleet = fleet

    def begin_task(self) -> None:
        fleet = self.fleet
        if (fleet.task_number, fleet.step) == (0, 0):
            self._make_maps()
        held = [{name: each[run] for name, each in fleet.held.items()} for run in range(fleet.runs)]
        self.sums = [Statistics(**each) for each in held]
        self.size = batch_size(fleet.task_plan.size, fleet.training.batch)
        self.together = max(1, ROWS // self.size)  # steps
        # A resumed run waits for the same examples again, so that sums are made in the same portions.
        first = fleet.step - fleet.step % self.together
        recent = islice(batches_of(fleet, first), fleet.step - first)
        self.waiting = [self._once(index, step) for step, (index,) in enumerate(recent, first)]

    def step(self, *batch: Tensor) -> Tensor:
        fleet = self.fleet
        self.waiting.append(self._once(batch[0], fleet.step))
        if (fleet.step + 1) % self.together == 0 or fleet.step + 1 == fleet.task_plan.steps:
            self._add(torch.cat(self.waiting, dim=1))
            self.waiting = []
        return fleet.theta.new_zeros(fleet.runs)  # there is no loss

    def close_window(self, number: int) -> None:
        """No-op: solvers have no path score."""

    @torch.no_grad()
    def end_task(self) -> None:
        fleet = self.fleet
        assert fleet.learner.solver is not None
        blocks: Sequence[int] = fleet.net.module.blocks  # type: ignore[assignment]
        layer = fleet.net.layout.split(fleet.theta)
        for run, sums in enumerate(self.sums):
            solution = fleet.learner.solver.solution(sums, blocks)
            seen = solution.bias.isfinite()  # a class without examples has no score; no head includes it
            layer["head.weight"][run].copy_(solution.weights.T)
            layer["head.bias"][run].copy_(solution.bias.where(seen, 0))

    def _make_maps(self) -> None:
        """Make the feature maps from the first task's inputs, in the order of its data."""
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
    def _add(self, index: Tensor) -> None:
        """Add examples [R, n] to the sums."""
        x, y = self.fleet.stream.batch(index)
        features, _ = self.fleet.net.forward_with_features(x, train=False)
        one = torch.ones(index.shape[1], dtype=torch.float64, device=x.device)
        for run, sums in enumerate(self.sums):
            sums.add(features[run], y[run], one)
            sums.tensors()  # completes the sums

    def _once(self, index: Tensor, step: int) -> Tensor:
        """A batch without the examples that fill up an epoch's last batch, which were added before."""
        return index[:, : self.fleet.task_plan.size - step * self.size]
