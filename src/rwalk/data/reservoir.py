"""A reservoir (Vitter 1985, algorithm R): however long a stream, every example seen is equally likely to be held.

The t-th example of the stream, counted from 1, goes to a place drawn from 1..t, and is held if the memory has that
place. Each example is offered once, in the first epoch of its task, and is replayed from the next step on. Orders
and places are drawn by names, so the content at any step is fixed before the task begins. Nothing here changes
step by step, and a task's batches are a function of seeds, as with any other replay.
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
    """The content [budget] once these have passed; if several went to one place, the last stays."""
    now = held.numpy().copy()
    kept = passing.places < len(held)
    now[passing.places[kept].numpy()] = passing.examples[kept].numpy()
    return torch.from_numpy(now)


def beside(
    fresh: Tensor, goes: Tensor, held: Tensor, seen: int, generator: Generator, count: int | None = None
) -> tuple[Tensor, Tensor]:
    """Batches [steps, B + count]: the task's own examples [steps, B], and beside them some that are held by then.

    The second tensor [steps, B + count] has the places that its own examples go to, and the others come from;
    nowhere is `budget`. In the very first step nothing is held yet, and the examples stand beside themselves.

    Args:
        fresh: The task's own examples.
        goes: Places of the first examples [n]; the rest have passed before.
        held: The content before the first step [budget].
        seen: The number of examples that passed before.
        generator: For the draws.
        count: Number of others; by default as many as its own.
    """
    (steps, size), budget = fresh.shape, len(held)
    into = torch.full((steps * size,), budget)
    into[: len(goes)] = goes
    into = _last_alone(into.view(steps, size), budget)
    filled = (seen + (torch.arange(steps) * size).clamp(max=len(goes))).clamp(max=budget)[:, None]
    count = size if count is None else count
    draws = torch.rand(steps, count, generator=generator, dtype=torch.float64)
    origins = torch.where(filled > 0, (draws * filled).long(), budget)

    now = np.append(held.numpy(), -1)  # a place for what goes nowhere
    others = fresh.new_empty(steps, count)
    each = zip(fresh.numpy(), into.numpy(), origins.numpy(), others.numpy(), strict=True)
    for own, to, source, found in each:
        found[:] = now[source]
        now[to] = own
    others = torch.where(filled > 0, others, fresh[:, torch.arange(count) % size])
    return torch.cat([fresh, others], dim=1), torch.cat([into, origins], dim=1)


def _last_alone(into: Tensor, budget: int) -> Tensor:
    """Keep the last of several that go to one place in one step [steps, B], as if they had come one by one."""
    later = (into[:, :, None] == into[:, None, :]).triu(1).any(2)
    return into.masked_fill(later, budget)
