"""What is learned from: inputs, targets and weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rwalk.errors import InputError


@dataclass(frozen=True)
class Examples:
    """Inputs [n, *shape] in whatever type they came, targets (column numbers or values) and weights."""

    x: Tensor
    y: Tensor
    weight: Tensor

    def __len__(self) -> int:
        return len(self.x)

    def rows(self, which: Tensor | slice) -> Examples:
        return Examples(self.x[which], self.y[which], self.weight[which])

    def counts(self, columns: int) -> Tensor:
        """How many there are, per column."""
        if self.y.ndim == 1:
            return torch.bincount(self.y, minlength=columns)
        return torch.full((columns,), len(self.y), dtype=torch.int64)


def joined(parts: Sequence[Examples]) -> Examples:
    x, y, weight = zip(*((each.x, each.y, each.weight) for each in parts), strict=True)
    return Examples(torch.cat(x), torch.cat(y), torch.cat(weight))


def without(held: list[Examples], gone: Examples) -> list[Examples]:
    """What is held, less one equal example for each that is to go."""
    together = joined([*held, gone.rows(slice(0))])
    left = list(range(len(together)))
    for index in range(len(gone)):
        x, y, weight = gone.x[index], gone.y[index], gone.weight[index]
        for place in left:
            same = torch.equal(together.x[place], x) and torch.equal(together.y[place], y)
            if same and together.weight[place] == weight:
                left.remove(place)
                break
        else:
            raise InputError("an example is to be forgotten that was not learned: give only what was learned")
    return [together.rows(torch.tensor(left))] if left else []
