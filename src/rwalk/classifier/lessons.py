"""From one call of the estimator to the next: what a call leaves, and how a fleet takes it up.

The training loop walks through a stream of tasks. An estimator gets one task per call, and of the data of
earlier calls only the exemplars are left. So every call has a stream of its own, in which the exemplars stand for
the tasks they came from, and a fleet of one that is put before its last task.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from rwalk.data.memory import Group
from rwalk.data.streams import Stream, Task
from rwalk.engine import networks, snapshots
from rwalk.engine.fleet import Fleet
from rwalk.engine.networks import Factory
from rwalk.engine.vectors import Layout
from rwalk.errors import InputError
from rwalk.methods import Method
from rwalk.methods.base import State
from rwalk.seeds import seeded


@dataclass(frozen=True)
class Knowledge:
    """All that was learned; classes are columns of the head."""

    seed: int
    tasks: int = 0
    last_seen: list[int] = field(default_factory=list)  # the task that last brought each class, −1 for none yet
    exemplars: dict[int, Tensor] = field(default_factory=dict)  # copies of inputs [m, *shape], by class
    theta: Tensor = field(default_factory=lambda: torch.empty(1, 0))  # the parameters [R, P], a run for every λ
    method: State = field(default_factory=dict)  # the method's vectors [R, P]
    buffer: State = field(default_factory=dict)  # the network's buffers [R, …]
    scale: State = field(default_factory=dict)  # what inputs are brought to scale by; nothing, if they are not
    judges: dict[int, Tensor] = field(default_factory=dict)  # inputs never trained on, by class, to choose λ by
    best: int = 0  # the run that is used
    sharpness: float = 1.0  # what its logits are multiplied by to be probabilities

    def moved(self, moves: Sequence[int], total: int) -> Knowledge:
        """The same with class c at column moves[c] of `total`; its tensors stay, `take_up` moves them."""
        last_seen = [-1] * total
        for column, task in zip(moves, self.last_seen, strict=True):
            last_seen[column] = task
        exemplars, judges = ({moves[c]: x for c, x in each.items()} for each in (self.exemplars, self.judges))
        return replace(self, last_seen=last_seen, exemplars=exemplars, judges=judges)

    def after(self, fleet: Fleet, inputs: Tensor, best: int = 0) -> Knowledge:
        """What is known once the fleet has learned the last task of its stream, these inputs.

        Runs share the exemplars that the best of them has chosen.
        """
        now = snapshots.take(fleet)
        lesson = fleet.stream.tasks[-1]
        kept = {}
        for group in now.groups:
            if group.label in lesson.classes:  # chosen anew; the others lose at most their last ones
                kept[group.label] = inputs[group.examples[best]]
            else:
                assert fleet.memory is not None
                kept[group.label] = self.exemplars[group.label][: fleet.memory.spec.quota(len(now.groups))]
        last_seen = [self.tasks if c in lesson.classes else task for c, task in enumerate(self.last_seen)]
        if fleet.memory is not None and fleet.memory.spec.total is not None:
            # Fewer exemplars than classes: the classes seen last have one each.
            latest = sorted(kept, key=lambda label: last_seen[label], reverse=True)
            kept = {label: kept[label] for label in sorted(latest[: fleet.memory.spec.total])}
        return replace(
            self,
            tasks=self.tasks + 1,
            last_seen=last_seen,
            exemplars=kept,
            theta=now.theta,
            method=now.method,
            buffer=now.buffer,
            best=best,
        )

    def scaled(self, x: Tensor) -> Tensor:
        """Inputs as the network sees them."""
        return (x - self.scale["centre"]) / self.scale["deviation"] if self.scale else x


@dataclass(frozen=True)
class Call:
    """What one call learns from: its own examples, and what is known, exemplars included."""

    x: Tensor
    y: Tensor  # columns of the head
    past: Knowledge

    @property
    def returning(self) -> list[int]:
        """The classes of this call that have exemplars already."""
        return [column for column in self.past.exemplars if column in self.y]

    @property
    def inputs(self) -> Tensor:
        """All that the exemplars of its classes are chosen from: its own examples, then the exemplars so far."""
        return torch.cat([self.x, *(self.past.exemplars[column] for column in self.returning)])


class Scaling(nn.Module):
    """Inputs → what a network was trained on."""

    centre: Tensor
    deviation: Tensor

    def __init__(self, centre: Tensor, deviation: Tensor) -> None:
        super().__init__()
        self.register_buffer("centre", centre.clone())
        self.register_buffer("deviation", deviation.clone())

    def forward(self, x: Tensor) -> Tensor:
        return (x - self.centre) / self.deviation


def stream_of(call: Call) -> tuple[Stream, list[Group]]:
    """A call's data as the last task of a stream, and the exemplars as the tasks before it.

    A class that returns brings its exemplars along: they are data of the new task, and the sampler chooses again
    from all of them. So every class is in one task, with one share of a batch and of the memory.
    """
    x, y, past = call.x, call.y, call.past
    present = set(y.tolist())
    returning = call.returning
    resting = sorted((past.last_seen[column], column) for column in past.exemplars if column not in present)
    columns = [*returning, *(column for _, column in resting)]
    counts = [len(past.exemplars[column]) for column in columns]
    numbers = torch.arange(len(x) + sum(counts)).split([len(x), *counts])
    new, old = numbers[: 1 + len(returning)], numbers[1 + len(returning) :]

    origins = sorted({task for task, _ in resting})
    groups = [
        Group(origins.index(task), column, examples[None])
        for (task, column), examples in zip(resting, old, strict=True)
    ]
    tasks = []
    for number in range(len(origins)):
        own = [group for group in groups if group.task == number]
        tasks.append(_task([group.label for group in own], torch.cat([group.examples[0] for group in own])))
    tasks.append(_task(sorted(present), torch.cat(new)))

    x = past.scaled(torch.cat([call.inputs, *(past.exemplars[column] for _, column in resting)]))
    y = torch.cat([y, *(torch.full((count,), column) for column, count in zip(columns, counts, strict=True))])
    names = tuple(str(column) for column in range(len(past.last_seen)))
    return Stream(x, y, x, y, tuple(tasks), names, "lessons"), groups


def _task(classes: list[int], examples: Tensor) -> Task:
    # Nobody gave test data: what the loop measures at a task's end are accuracies in training.
    return Task(tuple(classes), examples, examples)


def take_up(fleet: Fleet, past: Knowledge, layout: Layout, moves: Sequence[int], groups: list[Group]) -> None:
    """Put a fresh fleet where the last call ended, before the last task of its stream.

    `layout` is that of the network so far. Rows of its head go where their classes went. Rows of new classes stay
    as they begin, in θ and in the method's vectors; where the method begins without a vector, they are zero, and a
    spring of importance 0 is none. Where there was one run so far, all runs go on from it.
    """
    check_method(fleet.learner.method, past)
    if layout.names != fleet.net.layout.names or past.buffer.keys() != fleet.net.buffers.keys():
        raise InputError("the network is not the one that learned so far: keep that, or call fit anew")
    begin = snapshots.take(fleet)
    for name in past.method:
        begin.method.setdefault(name, torch.zeros_like(begin.theta))
    vectors = [(past.theta, begin.theta), *((old, begin.method[name]) for name, old in past.method.items())]
    for run in range(fleet.runs):
        source = run if len(past.theta) > 1 else 0
        for name, old in past.buffer.items():
            _move_rows(old[source], begin.buffer[name][run], moves)
        for before, after in vectors:
            parts = zip(
                layout.split(before[source]).values(), fleet.net.layout.split(after[run]).values(), strict=True
            )
            for old_part, new_part in parts:
                _move_rows(old_part, new_part, moves)
    groups = [replace(group, examples=group.examples.expand(fleet.runs, -1).contiguous()) for group in groups]
    snapshots.restore(fleet, replace(begin, task=len(fleet.stream) - 1, groups=groups))


def _move_rows(old: Tensor, new: Tensor, moves: Sequence[int]) -> None:
    """Write `old` into `new`, which may have grown along one dimension: the one with one row per class."""
    if old.shape == new.shape:
        new.copy_(old)
        return
    grown = [d for d, (was, now) in enumerate(zip(old.shape, new.shape, strict=False)) if was != now]
    if old.ndim != new.ndim or len(grown) != 1 or old.shape[grown[0]] != len(moves):
        raise InputError(
            f"a parameter of the network goes from {list(old.shape)} to {list(new.shape)} as classes arrive, "
            "where only a dimension with one row per class can grow: announce all classes in the first partial_fit"
        )
    new.index_copy_(grown[0], torch.tensor(moves), old)


def check_method(method: Method, past: Knowledge) -> None:
    """The vectors held must be those this method makes, or it would misread them."""
    held = set(past.method)
    theta = torch.zeros(1, 1)
    made = method.start(theta)
    # A task may add vectors (EWC's do): one round more than there are vectors shows all that there can be.
    for _ in range(min(past.tasks, len(held) + 1)):
        method.consolidate(made, theta, theta)
    if held != set(made):
        name = type(method).__name__
        raise InputError(f"{name} is not the method that learned so far: keep that, or call fit anew")


def trained_network(network: str | Factory, shape: tuple[int, ...], classes: int, past: Knowledge) -> nn.Module:
    """The network as it was trained, a plain module with parameters of its own."""
    build = networks.builder(network, shape, classes)
    with seeded(past.seed):
        module = build()
    values = Layout.of(module).split(past.theta[past.best])
    values |= {name: each[past.best] for name, each in past.buffer.items()}
    with torch.no_grad():
        for name, held in (*module.named_parameters(), *module.named_buffers()):
            held.copy_(values[name])
    return module.eval()
