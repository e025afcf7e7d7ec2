"""A step operation by operation, as PyTorch computes it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from rwalk.engine import constraints, fisher, teachers, walk
from rwalk.engine.execution.inputs import Inputs, StepInputs, losses_of
from rwalk.engine.walkers import Walker

if TYPE_CHECKING:
    from rwalk.engine.fleet import Fleet

BLOCK = 65_536  # parameters a CPU takes through a whole step of the walk at a time: eight vectors of it are 2 MB
Gradients = Callable[..., tuple[Tensor, ...]]  # a batch → losses [R], and their gradients part by part


class Eager:
    """On a CPU a single run is taken block by block through all operations, so that a block stays in the cache and
    no scratch vector is larger than one. A fleet, or a GPU, takes all parameters at once."""

    name: ClassVar[str] = "eager"

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.walk = walk.step
        self.gradients: Gradients = self.by_autograd
        self.constraint: Callable[[Tensor, Tensor], Tensor] = partial(constraints.gradient, fleet)
        self.parts: list[list[walk.Part]] = []  # of each walker

    def begin_task(self) -> None:
        fleet, layout = self.fleet, self.fleet.net.layout
        # Always in the same order: a program compiled for one run also serves a run that was restored from a file.
        for walker in fleet.walkers:
            walker.state = dict(sorted(walker.state.items()))
        self.inputs = StepInputs(fleet)
        methods = [walker.method for walker in fleet.walkers]
        idle = not any(method.wants or method.data_pass for method in methods)  # nothing to do but to step
        self.block = layout.size if fleet.theta.is_cuda or idle or not fleet.net.solo else BLOCK
        self.by_parameter = fleet.net.solo and not fleet.theta.is_cuda
        sizes = layout.sizes if self.by_parameter else [layout.size]
        blocks = [min(self.block, size - done) for size in sizes for done in range(0, size, self.block)]
        scratch = not (fleet.theta.is_cuda or idle)
        self.parts = [
            walk.cut(fleet.theta, fleet.optimizer.state, each, blocks, scratch) for each in fleet.walkers
        ]
        if fleet.learner.projector and fleet.task:
            self.recalled = constraints.constraints_of(fleet)

    def end_task(self) -> None:
        self.parts = []  # views of vectors that consolidation replaces

    def step(self, *batch: Tensor) -> Tensor:
        fleet = self.fleet
        losses, *pieces = self.gradients(*batch)
        square = None
        if fleet.learner.method.observes_examples:
            inputs = self.inputs.of(*batch)  # augmented by the same draws as in the gradient
            square = fisher.of_examples(fleet, inputs["x"], inputs["y"])
        with torch.no_grad():
            if fleet.learner.projector and fleet.task:
                grad = fleet.learner.projector.project(torch.cat(pieces, dim=1), self.old_gradients())
                pieces = [grad[:, part.where] for part in self.parts[0]]
            fleet.optimizer.tick()
            for walker, parts in zip(fleet.walkers, self.parts, strict=True):
                for part, piece in zip(parts, pieces, strict=True):
                    self.walk(walker.method, fleet.optimizer, part, piece[walker.rows], square)
        return losses

    def close_window(self, walker: int) -> None:
        self.score_window(self.fleet.walkers[walker], walk.score)

    def score_window(self, walker: Walker, score: walk.Function) -> None:
        score(walker.method, walker.state, self.fleet.theta[walker.rows])

    def old_gradients(self) -> Tensor:
        """The gradients of the old tasks' exemplars at θ [R, constraints, P]."""
        drawn = constraints.drawn(self.fleet, self.recalled)
        return torch.stack([self.constraint(*each) for each in drawn], dim=1)

    def by_autograd(self, *batch: Tensor) -> tuple[Tensor, ...]:
        return self.differentiated(self.inputs.of(*batch))

    def differentiated(self, inputs: Inputs) -> tuple[Tensor, ...]:
        """Losses [R], and their gradients part by part; for a single run as autograd returns them."""
        net = self.fleet.net
        losses = self.losses(net.forward(inputs["x"]), inputs)
        pieces = net.gradient_pieces(losses) if self.by_parameter else [net.gradient(losses)]
        return losses.detach(), *(block for piece in pieces for block in piece.split(self.block, dim=1))

    def losses(self, logits: Tensor, inputs: Inputs) -> Tensor:
        taught = None
        if teachers.THETA in inputs:
            theta, buffers = inputs[teachers.THETA], teachers.buffers(inputs)
            with torch.no_grad():
                taught = self.fleet.net.forward(inputs["x"], theta=theta, buffers=buffers, train=False)
        return losses_of(self.fleet, logits, inputs, taught)
