"""A reservoir in a fleet: what is held, what passes, and what is stored beside it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Generator, Tensor

from rwalk import seeds
from rwalk.data import batches, reservoir
from rwalk.data.reservoir import Passing
from rwalk.errors import InputError
from rwalk.methods.base import State
from rwalk.training import batch_size, steps_per_epoch

if TYPE_CHECKING:
    from rwalk.engine.fleet import Fleet


def empty(fleet: Fleet) -> State:
    """A reservoir before the first example; nothing, where the learner has none.

    examples  numbers of those held when the current task began [R, budget]
    seen      how many had passed by then
    logits    of those held now, as they were when each arrived [R, budget + 1, C], where the loss wants them;
              what goes nowhere goes to the last place
    """
    budget = fleet.learner.reservoir
    if budget is None:
        return {}
    if strange := [name for name in fleet.loss.keeps if name != "logits"]:
        raise InputError(f"a reservoir stores logits, not {strange[0]}: take another sampler")
    state = {"examples": torch.zeros(fleet.runs, budget, dtype=torch.int64), "seen": torch.tensor(0)}
    for name in fleet.loss.keeps:
        state[name] = fleet.theta.new_zeros(fleet.runs, budget + 1, fleet.stream.classes)
    return state


def epoch(fleet: Fleet, run: int, number: int) -> list[Tensor]:
    """One run's batches [steps, 2B], and where each example of them goes or comes from."""
    fresh, generator = _shuffled(fleet, run, number)
    held, seen, passing = fleet.held["examples"][run], int(fleet.held["seen"]), _passing(fleet, run)
    if number:  # all have passed
        held, seen = reservoir.after(held, passing), seen + len(passing.places)
        passing = Passing(passing.examples[:0], passing.places[:0])
    return [*reservoir.beside(fresh, passing.places, held, seen, generator)]


def close_task(fleet: Fleet) -> None:
    """The task's examples have passed."""
    passed = [_passing(fleet, run) for run in range(fleet.runs)]
    held = fleet.held["examples"]
    fleet.held["examples"] = torch.stack([reservoir.after(*each) for each in zip(held, passed, strict=True)])
    fleet.held["seen"] = fleet.held["seen"] + len(passed[0].places)


def _passing(fleet: Fleet, run: int) -> Passing:
    """The current task's examples, as far as its first epoch gets."""
    order = _shuffled(fleet, run, 0)[0]
    reached = min(len(fleet.lesson.examples), fleet.lesson.steps * order.shape[1])
    draw = seeds.generator(fleet.seeds[run], "reservoir", fleet.past + fleet.task)
    budget = fleet.held["examples"].shape[1]
    return Passing(order.flatten()[:reached], reservoir.places(reached, int(fleet.held["seen"]), budget, draw))


def _shuffled(fleet: Fleet, run: int, number: int) -> tuple[Tensor, Generator]:
    """The task's own examples in the batches of an epoch, and the generator that goes on from there."""
    examples, batch = fleet.lesson.examples, fleet.training.batch
    generator = seeds.generator(fleet.seeds[run], "order", fleet.past + fleet.task, number)
    steps, size = steps_per_epoch(len(examples), batch), batch_size(len(examples), batch)
    return batches.shuffled(examples, steps, size, generator), generator
