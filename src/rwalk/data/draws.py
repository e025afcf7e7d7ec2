"""Orders and held-out examples, determined by seeds alone."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from rwalk.data.checks import present, whole
from rwalk.errors import InputError


def hold_out(
    y: Tensor, fraction: float, seed: int, names: Sequence[str], most: int | None = None
) -> tuple[Tensor, Tensor]:
    """Indices kept and held out, ascending: a fraction of every class is held out, at least one example each.

    Of no class are more than `most` held out.
    """
    held = torch.zeros(len(y), dtype=torch.bool)
    for column in present(y):
        members = (y.cpu() == column).nonzero().flatten()
        if len(members) < 2:
            raise InputError(
                f"class {names[column]!r} has one training example, so none can be held out: add examples"
            )
        count = min(max(1, round(fraction * len(members))), len(members) - 1)
        count = count if most is None else min(count, most)
        held[members[shuffled(len(members), seed, column)[:count]]] = True
    held = held.to(y.device)
    return (~held).nonzero().flatten(), held.nonzero().flatten()


def shuffled(count: int, *seed: int) -> list[int]:
    """0..count-1 in an order that depends on the seeds alone."""
    entropy = [whole(part, "the seed", least=0) for part in seed]
    order: list[int] = np.random.default_rng(entropy).permutation(count).tolist()
    return order
