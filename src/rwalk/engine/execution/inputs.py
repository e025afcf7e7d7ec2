"""What a step is given, as named tensors: programs take them as arguments, losses see them as a batch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rwalk.engine import exemplars, teachers
from rwalk.losses import Batch
from rwalk.training import batch_size

if TYPE_CHECKING:
    from rwalk.engine.fleet import Fleet

Inputs = dict[str, Tensor]
KEPT, STORE = "kept.", "store."


class StepInputs:
    """The inputs of a fleet's steps, of which some are the same for a whole task."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        lesson = fleet.lesson
        self.fixed: Inputs = {"new": lesson.new, "old": lesson.old}
        if lesson.rivals is not None and "teacher" in fleet.loss_state:
            self.fixed |= {"rivals": lesson.rivals.groups, "times": lesson.rivals.taught}
        if fleet.loss.tells_task:
            self.fixed["task"] = torch.tensor(float(fleet.past + fleet.task)).to(fleet.theta)
        self.fixed |= teachers.tensors(fleet.loss_state)
        self.exemplars: Tensor | None = None  # their numbers [R, M], where the loss wants to know them
        self.tells_kept = bool(fleet.loss.tells_kept or fleet.loss.keeps)
        if self.tells_kept and fleet.memory and fleet.memory.groups:
            self.exemplars, self.stored = exemplars.recalled(fleet)

    def of(self, index: Tensor, *draws: Tensor) -> Inputs:
        x, y = self.fleet.stream.batch(index)
        kept = self._kept(index)
        if self.fleet.learner.reservoir:
            kept, draws = self._from_reservoir(draws[0]), draws[1:]
        if self.fleet.augmentation:
            x = self.fleet.augmentation.apply(x, *draws)
        return {"x": x, "y": y, "head": self.fleet.lesson.head_of(y), **self.fixed, **kept}

    def _kept(self, index: Tensor) -> Inputs:
        """Which of these examples [R, B] come from the memory, and what is stored beside them."""
        if self.exemplars is None:
            return {}
        place = torch.searchsorted(self.exemplars, index).clamp(max=self.exemplars.shape[1] - 1)
        found: Inputs = {"is_kept": self.exemplars.gather(1, place) == index}
        for name, each in self.stored.items():
            here = place.reshape(*place.shape, *(1 for _ in each.shape[2:])).expand(*place.shape, *each.shape[2:])
            found[KEPT + name] = each.gather(1, here)
        return found

    def _from_reservoir(self, place: Tensor) -> Inputs:
        """The same by places [R, B + others]: where the task's own go, and where the others come from."""
        if not self.tells_kept:
            return {}
        fleet = self.fleet
        own = batch_size(len(fleet.lesson.examples), fleet.training.batch)
        found: Inputs = {"is_kept": place < fleet.held["examples"].shape[1]}
        found["is_kept"][:, :own] = False
        for name in fleet.loss.keeps:
            every = place[..., None].expand(*place.shape, fleet.held[name].shape[2])
            found |= {KEPT + name: fleet.held[name].gather(1, every), STORE + name: fleet.held[name]}
        if fleet.loss.keeps:
            found["into"] = place[:, :own]
        return found


def losses_of(fleet: Fleet, logits: Tensor, inputs: Inputs, taught: Tensor | None) -> Tensor:
    """Losses [R]; and what a reservoir stores beside examples that come in is stored."""
    losses = fleet.loss(logits, batch_of(inputs, taught))
    if "into" in inputs:
        with torch.no_grad():
            into, store = inputs["into"][..., None].expand(-1, -1, logits.shape[2]), inputs[STORE + "logits"]
            store.scatter_(1, into, logits.detach()[:, : into.shape[1]])
            store[:, -1] = 0  # who went nowhere
    return losses


def batch_of(inputs: Inputs, taught: Tensor | None) -> Batch:
    """The inputs as a loss sees them."""
    kept = {name.removeprefix(KEPT): each for name, each in inputs.items() if name.startswith(KEPT)}
    return Batch(
        inputs["y"],
        inputs["head"],
        inputs["new"],
        inputs["old"],
        taught,
        inputs.get("is_kept"),
        kept,
        inputs.get("rivals"),
        inputs.get("times"),
        inputs.get("task"),
    )
