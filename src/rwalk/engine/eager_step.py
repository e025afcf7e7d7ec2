"""One step, operation by operation: inputs → losses → gradient → projection → update of θ.

`compiled` and `captured` execute the same step faster.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from rwalk.engine import exemplars, fisher, teachers
from rwalk.engine.method_groups import Chunk, chunks, score, update
from rwalk.errors import InputError
from rwalk.losses import Batch
from rwalk.training import batch_size

if TYPE_CHECKING:
    from rwalk.engine.fleet import Fleet

BLOCK = 65_536  # parameters that a CPU updates at a time: eight vectors of this size are 2 MB
Inputs = dict[str, Tensor]
KEPT, STORE = "kept.", "store."  # prefixes of inputs: tensors stored with exemplars, and a reservoir's own


class Eager:
    """Executes the steps of a fleet as PyTorch computes them.

    On a CPU a single run is updated block by block, so that a block stays in the cache and scratch memory is
    small. A fleet, or a GPU, updates all parameters at once.
    """

    name: ClassVar[str] = "eager"

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.update, self.score = update, score
        self.gradients: Callable[..., tuple[Tensor, ...]] = self.gradients_by_autograd
        self.constraint: Callable[[Tensor, Tensor], Tensor] = partial(exemplars.constraint_gradient, fleet)
        self.chunks: list[list[Chunk]] = []  # of each method group

    def begin_task(self) -> None:
        fleet, layout = self.fleet, self.fleet.net.layout
        # In one order, so that a program compiled for one run also serves a run restored from a file.
        for group in fleet.method_groups:
            group.state = dict(sorted(group.state.items()))
        self.inputs = StepInputs(fleet)
        methods = [group.method for group in fleet.method_groups]
        plain = not any(method.wants or method.data_pass for method in methods)  # the optimizer's step alone
        self.block = layout.size if fleet.theta.is_cuda or plain or not fleet.net.solo else BLOCK
        self.by_parameter = fleet.net.solo and not fleet.theta.is_cuda
        sizes = layout.sizes if self.by_parameter else [layout.size]
        blocks = [min(self.block, size - done) for size in sizes for done in range(0, size, self.block)]
        scratch = not (fleet.theta.is_cuda or plain)
        self.chunks = [
            chunks(group, fleet.theta, fleet.optimizer, blocks, scratch) for group in fleet.method_groups
        ]
        if fleet.learner.projector and fleet.task:
            self.constraints = exemplars.constraints_of(fleet)

    def step(self, *batch: Tensor) -> Tensor:
        """Take one step with a batch of `task_plan.batches_of`; losses [R]."""
        fleet = self.fleet
        losses, *pieces = self.gradients(*batch)
        square = None
        if fleet.learner.method.observes_examples:
            inputs = self.inputs.of(*batch)  # augmented by the same draws as in the gradient
            square = fisher.of_examples(fleet, inputs["x"], inputs["y"])
        with torch.no_grad():
            if fleet.learner.projector and fleet.task:
                grad = fleet.learner.projector.project(torch.cat(pieces, dim=1), self.old_gradients())
                pieces = [grad[:, chunk.where] for chunk in self.chunks[0]]
            fleet.optimizer.tick()
            for group, own in zip(fleet.method_groups, self.chunks, strict=True):
                for chunk, piece in zip(own, pieces, strict=True):
                    self.update(group.method, fleet.optimizer, chunk, piece[group.rows], square)
        return losses

    def gradients_by_autograd(self, *batch: Tensor) -> tuple[Tensor, ...]:
        return self.differentiate(self.inputs.of(*batch))

    def differentiate(self, inputs: Inputs) -> tuple[Tensor, ...]:
        """Losses [R] and their gradients, one piece per chunk."""
        net = self.fleet.net
        losses = losses_of(self.fleet, net.forward(inputs["x"]), inputs)
        pieces = net.gradient_pieces(losses) if self.by_parameter else [net.gradient(losses)]
        return losses.detach(), *(block for piece in pieces for block in piece.split(self.block, dim=1))

    def old_gradients(self) -> Tensor:
        """The gradients of the old tasks' exemplars at θ [R, constraints, P]."""
        drawn = exemplars.drawn_constraints(self.fleet, self.constraints)
        return torch.stack([self.constraint(*each) for each in drawn], dim=1)

    def close_window(self, number: int) -> None:
        """Let the method of a group score a window of steps."""
        group = self.fleet.method_groups[number]
        self.score(group.method, group.state, self.fleet.theta[group.rows])

    def end_task(self) -> None:
        self.chunks = []  # views of vectors that consolidation replaces


class StepInputs:
    """Makes the inputs of a task's steps: named tensors, some of which are the same for the whole task."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        plan, loss = fleet.task_plan, fleet.loss
        self.fixed: Inputs = {"new": plan.new, "old": plan.old}
        if plan.rivals is not None and teachers.THETA in fleet.loss_state:
            self.fixed |= {"rivals": plan.rivals.groups, "times": plan.rivals.taught}
        if loss.tells_task:
            self.fixed["task"] = torch.tensor(float(fleet.task_number)).to(fleet.theta)
        self.fixed |= teachers.tensors(fleet.loss_state)
        self.exemplars: Tensor | None = None  # their indices [R, M], if the loss uses them
        self.tells_kept = bool(loss.tells_kept or loss.keeps)
        if self.tells_kept and fleet.memory and fleet.memory.groups:
            self.exemplars, self.stored = exemplars.recalled(fleet)

    def of(self, index: Tensor, *draws: Tensor) -> Inputs:
        """The inputs of one step, from a batch of `task_plan.batches_of`."""
        x, y = self.fleet.stream.batch(index)
        kept = self._kept(index)
        if self.fleet.learner.reservoir:
            kept, draws = self._from_reservoir(draws[0]), draws[1:]
        if self.fleet.augmentation:
            x = self.fleet.augmentation.apply(x, *draws)
        return {"x": x, "y": y, "head": self.fleet.task_plan.head_of(y), **self.fixed, **kept}

    def _kept(self, index: Tensor) -> Inputs:
        """Which of these examples [R, B] are exemplars, and the tensors stored with them."""
        if self.exemplars is None:
            return {}
        place = torch.searchsorted(self.exemplars, index).clamp(max=self.exemplars.shape[1] - 1)
        found: Inputs = {"is_kept": self.exemplars.gather(1, place) == index}
        for name, each in self.stored.items():
            here = place.reshape(*place.shape, *(1 for _ in each.shape[2:])).expand(*place.shape, *each.shape[2:])
            found[KEPT + name] = each.gather(1, here)
        return found

    def _from_reservoir(self, place: Tensor) -> Inputs:
        """The same from a reservoir's places [R, B + others]: the task's own examples go there, others come."""
        if not self.tells_kept:
            return {}
        fleet = self.fleet
        own = batch_size(len(fleet.task_plan.examples), fleet.training.batch)
        found: Inputs = {"is_kept": place < fleet.held["examples"].shape[1]}
        found["is_kept"][:, :own] = False
        for name in fleet.loss.keeps:
            every = place[..., None].expand(*place.shape, fleet.held[name].shape[2])
            found |= {KEPT + name: fleet.held[name].gather(1, every), STORE + name: fleet.held[name]}
        if fleet.loss.keeps:
            found["into"] = place[:, :own]
        return found


def losses_of(fleet: Fleet, logits: Tensor, inputs: Inputs, pure: bool = False) -> Tensor:
    """Losses [R]. A reservoir stores the logits of the examples that it takes in.

    With `pure` the teacher's logits are computed in a form that `programs` can record.
    """
    net, taught = fleet.net, None
    if teachers.THETA in inputs:
        x, theta, buffers = inputs["x"], inputs[teachers.THETA], teachers.buffers(inputs)
        with torch.no_grad():
            if pure:
                taught = net.pure_outputs(theta, buffers, x)
            else:
                taught = net.forward(x, theta=theta, buffers=buffers, train=False)
    losses = fleet.loss(logits, batch_of(inputs, taught))
    if losses.shape != logits.shape[:1]:
        what, found = type(fleet.loss).__name__, list(losses.shape)
        raise InputError(f"the loss {what} gives {found} for {fleet.runs} runs: give one number per run, [R]")
    if "into" in inputs:
        with torch.no_grad():
            into, store = inputs["into"][..., None].expand(-1, -1, logits.shape[2]), inputs[STORE + "logits"]
            store.scatter_(1, into, logits.detach()[:, : into.shape[1]])
            store[:, -1] = 0  # the place of examples that are not held
    return losses


def batch_of(inputs: Inputs, taught: Tensor | None) -> Batch:
    """The inputs of a step as a loss takes them."""
    kept = {name.removeprefix(KEPT): each for name, each in inputs.items() if name.startswith(KEPT)}
    masks = (inputs["head"], inputs["new"], inputs["old"])
    rivals, times, task = (inputs.get(name) for name in ("rivals", "times", "task"))
    return Batch(inputs["y"], *masks, taught, inputs.get("is_kept"), kept, rivals, times, task)


def pure_gradient(
    fleet: Fleet, inputs: Inputs, buffers: list[Tensor], parameters: dict[str, Tensor]
) -> tuple[Tensor, list[Tensor]]:
    """Losses [R] and gradients, one piece [R, n] per parameter, as a function of the arguments alone."""
    return fleet.net.pure_gradient(
        lambda logits: losses_of(fleet, logits, inputs, pure=True), parameters, buffers, inputs["x"]
    )
