"""The examples of each step: pure functions from pools of example indices to batches [steps, B].

Batches with exemplars "beside" the new examples are wider: [steps, 2B], or [steps, B + beside].
`current` is the task's training data by class, `kept` the exemplars of earlier tasks by class, and of the task too
where exemplars alone are trained on.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Generator, Tensor

from rwalk.data.memory import Replay
from rwalk.training import batch_size, steps_per_epoch


def epoch(
    current: Sequence[Tensor],
    kept: Sequence[Tensor],
    replay: Replay,
    batch: int,
    generator: Generator,
    beside: int | None = None,
) -> Tensor:
    """The batches of one epoch; `beside` exemplars are added to each, by default as many as the new."""
    if replay == "alone":
        current, kept = kept, ()
    examples = sum(len(pool) for pool in current)
    size, steps = batch_size(examples, batch), steps_per_epoch(examples, batch)
    if not kept or replay == "none":
        return shuffled_batches(torch.cat([*current]), steps, size, generator)
    if replay == "concat":
        return shuffled_batches(torch.cat([*current, *kept]), steps, size, generator)
    if replay == "half":
        fresh = shuffled_batches(torch.cat([*current]), steps, size - size // 2, generator)
        return torch.cat([fresh, balanced_batches(kept, steps, size // 2, generator)], dim=1)
    if replay == "beside":
        fresh = shuffled_batches(torch.cat([*current]), steps, size, generator)
        return torch.cat([fresh, uniform_batches(torch.cat([*kept]), steps, beside or size, generator)], dim=1)
    return balanced_batches([*current, *kept], steps, size, generator)


def shuffled_batches(pool: Tensor, steps: int, batch: int, generator: Generator) -> Tensor:
    """A permutation cut into batches; the last one is filled up from the permutation's beginning."""
    order = torch.randperm(len(pool), generator=generator)
    return pool[order[torch.arange(steps * batch) % len(pool)]].view(steps, batch)


def uniform_batches(pool: Tensor, steps: int, batch: int, generator: Generator) -> Tensor:
    """Every place in every batch is drawn independently, so that a pool may be smaller than a batch."""
    return pool[torch.randint(len(pool), (steps, batch), generator=generator)]


def balanced_batches(pools: Sequence[Tensor], steps: int, batch: int, generator: Generator) -> Tensor:
    """Every batch takes from all pools in turn, beginning with a random one; within a pool at random."""
    sizes = torch.tensor([len(pool) for pool in pools])
    starts = sizes.cumsum(0) - sizes
    first = torch.randint(len(pools), (steps, 1), generator=generator)
    pool = (first + torch.arange(batch)) % len(pools)
    within = torch.rand(steps, batch, generator=generator, dtype=torch.float64) * sizes[pool]
    return torch.cat([*pools])[starts[pool] + within.long()]
