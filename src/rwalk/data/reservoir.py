"""A reservoir (Vitter 1985, algorithm R): however long a stream, every example seen is equally likely to be held.

The t-th example of the stream, counted from 1, goes to a place drawn from 1..t, and is held if the memory has that
place. Each example is offered once, in the first epoch of its task, and is replayed from the next step on. Orders
and places are drawn by names, so what is held at any step is known before the task begins: nothing here is changed
step by step, and a task's batches are as much a function of seeds as those of any other replay.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Generator, Tensor


class Passing(NamedTuple):
    """The examples of a task in the order in which they pass [n], and where each goes [n]; `budget`: nowhere."""

    examples: Tensor
    places: Tensor


def places(count: int, seen: int, budget: int, generator: Generator) -> Tensor:
    """Where each of `count` examples goes that come after `seen` others; `budget` is nowhere.

    >>> places(5, seen=0, budget=3, generator=torch.Generator())[:3].tolist()
    [0, 1, 2]
    """
    before = torch.arange(seen, seen + count)
    drawn = (torch.rand(count, generator=generator, dtype=torch.float64) * (before + 1)).long()
    return torch.where(before < budget, before, drawn).clamp(max=budget)


def after(held: Tensor, passing: Passing) -> Tensor:
    """What is held [budget] once these have passed: where several went to one place, the last."""
    now = held.numpy().copy()
    kept = passing.places < len(held)
    now[passing.places[kept].numpy()] = passing.examples[kept].numpy()
    return torch.from_numpy(now)


def beside(fresh: Tensor, goes: Tensor, held: Tensor, seen: int, generator: Generator) -> tuple[Tensor, Tensor]:
    """Batches [steps, 2B]: the task's own examples [steps, B], and beside them as many that are held by then.

    The second tensor [steps, 2B] says where each of its own goes, and where each of the others comes from; nowhere
    is `budget`. In the first step of all nothing is held yet, and the examples stand beside themselves.

    goes  where the first examples go [n]; the rest have passed before
    held  what is held before the first step [budget], of `seen` examples
    """
    (steps, size), budget = fresh.shape, len(held)
    into = torch.full((steps * size,), budget)
    into[: len(goes)] = goes
    into = _last_alone(into.view(steps, size), budget)
    filled = (seen + (torch.arange(steps) * size).clamp(max=len(goes))).clamp(max=budget)[:, None]
    draws = torch.rand(steps, size, generator=generator, dtype=torch.float64)
    origins = torch.where(filled > 0, (draws * filled).long(), budget)

    now = np.append(held.numpy(), -1)  # a place for what goes nowhere
    others = torch.empty_like(fresh)
    each = zip(fresh.numpy(), into.numpy(), origins.numpy(), others.numpy(), strict=True)
    for own, to, source, found in each:
        found[:] = now[source]
        now[to] = own
    others = torch.where(filled > 0, others, fresh)
    return torch.cat([fresh, others], dim=1), torch.cat([into, origins], dim=1)


def _last_alone(into: Tensor, budget: int) -> Tensor:
    """Of several that go to one place in one step [steps, B] the last does, as if they had come one by one."""
    later = (into[:, :, None] == into[:, None, :]).triu(1).any(2)
    return into.masked_fill(later, budget)
