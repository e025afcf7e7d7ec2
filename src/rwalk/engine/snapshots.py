"""The whole state of a fleet, for checkpoints and for continuing with more tasks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from rwalk.data.memory import Group
from rwalk.methods.method import State

if TYPE_CHECKING:
    from rwalk.engine.fleet import Fleet

SECTIONS = ("optimizer", "method", "loss", "buffer", "accuracy", "measured", "held")


@dataclass
class Snapshot:
    """Everything that the rest of a training depends on, on the CPU."""

    theta: Tensor
    optimizer: State
    method: State
    loss: State
    buffer: State
    accuracy: State  # by head
    measured: State  # the additional measurements
    held: State  # a reservoir's examples, or the sums of a solver
    task: int
    step: int
    stopped: list[str | None]
    groups: list[Group] = field(default_factory=list)

    def tensors(self) -> dict[str, Tensor]:
        """All tensors by name, for a file."""
        named = {"theta": self.theta}
        for section in SECTIONS:
            named |= {f"{section}.{name}": tensor for name, tensor in getattr(self, section).items()}
        for number, group in enumerate(self.groups):
            named[f"exemplars.{number}"] = group.examples
            named |= {f"exemplars.{number}.{name}": tensor for name, tensor in group.stored.items()}
        return named

    def counters(self) -> dict[str, Any]:
        """The rest, as JSON values."""
        groups = [[group.task, group.label] for group in self.groups]
        return {"task": self.task, "step": self.step, "stopped": self.stopped, "groups": groups}

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor], counters: Mapping[str, Any]) -> Snapshot:
        """The snapshot that `tensors` and `counters` came from."""

        def section(prefix: str) -> State:
            return {name.removeprefix(prefix): each for name, each in tensors.items() if name.startswith(prefix)}

        groups = [
            Group(task, label, tensors[f"exemplars.{number}"], section(f"exemplars.{number}."))
            for number, (task, label) in enumerate(counters["groups"])
        ]
        states: dict[str, Any] = {name: section(f"{name}.") for name in SECTIONS}
        states |= {name: counters[name] for name in ("task", "step", "stopped")}
        return cls(tensors["theta"], **states, groups=groups)


def take(fleet: Fleet) -> Snapshot:
    """Copy a fleet's state to the CPU: the device might not have room for both the original and a copy."""

    def copied(state: Mapping[str, Tensor]) -> State:
        return {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in state.items()}

    return Snapshot(
        theta=fleet.theta.to("cpu", copy=True),
        optimizer=copied(fleet.optimizer.state),
        method=copied(fleet.state),
        loss=copied(fleet.loss_state),
        buffer=copied(fleet.net.buffers),
        accuracy=copied({head: torch.from_numpy(each) for head, each in fleet.accuracy.items()}),
        measured=copied({name: torch.from_numpy(each) for name, each in fleet.measured.items()}),
        held=copied(fleet.held),
        task=fleet.task,
        step=fleet.step,
        stopped=list(fleet.stopped),
        groups=[
            Group(each.task, each.label, each.examples.cpu().contiguous(), copied(each.stored))
            for each in (fleet.memory.groups if fleet.memory else [])
        ],
    )


def restore(fleet: Fleet, snapshot: Snapshot) -> None:
    """Continue from a snapshot of the same fleet."""
    fleet.theta.copy_(snapshot.theta)
    for name, vector in snapshot.optimizer.items():
        fleet.optimizer.state[name].copy_(vector)
    fleet.state = {name: vector.to(fleet.theta, copy=True) for name, vector in snapshot.method.items()}
    fleet.loss_state = {name: each.to(fleet.theta.device, copy=True) for name, each in snapshot.loss.items()}
    fleet.held = {name: each.to(fleet.held[name].device, copy=True) for name, each in snapshot.held.items()}
    for name, buffer in snapshot.buffer.items():
        fleet.net.buffers[name].copy_(buffer)
    if fleet.memory:
        fleet.memory.groups = [
            Group(each.task, each.label, each.examples.cpu(), dict(each.stored)) for each in snapshot.groups
        ]
    for head, accuracy in snapshot.accuracy.items():
        fleet.accuracy[head][:] = accuracy.cpu().numpy()
    for name, values in snapshot.measured.items():
        fleet.measured[name][:] = values.cpu().numpy()
    fleet.task, fleet.step = snapshot.task, snapshot.step
    fleet.stopped = list(snapshot.stopped)
