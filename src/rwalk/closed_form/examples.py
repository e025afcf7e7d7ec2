"""Examples: inputs, targets and weights; and a small random sample of them, the same in any order.

How sure to be of a score, and how far known inputs lie from their class, are properties of single examples, which
sums do not keep. So a sample of their features is kept in memory until this is measured. A file holds the measures
and not the sample.

Every example has a random number u, a hash of its input, and the key −log(u) / f, with the factor f by which later
examples outweigh earlier ones. The examples with the smallest keys are a random sample, and the smallest keys of
several parts are those of the whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rwalk.errors import InputError

SIZE = 1000
ROWS = 1024  # hashed at a time


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
    """The held examples, less one equal example for each of `gone`, the latest: the map depends on their order."""
    together = joined([*held, gone.rows(slice(0))])
    left = list(range(len(together)))
    for index in range(len(gone)):
        x, y, weight = gone.x[index], gone.y[index], gone.weight[index]
        for place in reversed(left):
            same = torch.equal(together.x[place], x) and torch.equal(together.y[place], y)
            if same and together.weight[place] == weight:
                left.remove(place)
                break
        else:
            raise InputError("an example is to be forgotten that was not learned: give only learned examples")
    return [together.rows(torch.tensor(left))] if left else []


# ── the sample ───────────────────────────────────────────────────────────────────────────────────────────────────


class Sample(NamedTuple):
    """The examples with the smallest keys."""

    keys: Tensor  # [m]
    features: Tensor  # [m, D], centred
    y: Tensor  # [m]
    weight: Tensor  # [m], in the sums
    given: Tensor  # [m], the weight that the example came with
    seen: float  # weight of all that the sample was drawn from

    @classmethod
    def empty(cls, size: int, device: torch.device) -> Sample:
        zero = torch.zeros(0, dtype=torch.float64, device=device)
        rows = torch.zeros(0, size, device=device)
        return cls(zero, rows, torch.zeros(0, dtype=torch.int64, device=device), zero, zero, 0.0)

    def rows(self, which: Tensor) -> Sample:
        parts = (self.keys, self.features, self.y, self.weight, self.given)
        keys, features, y, weight, given = (each[which] for each in parts)
        return Sample(keys, features, y, weight, given, self.seen)

    def joined(self, other: Sample) -> Sample:
        """The sample of all that the two were drawn from."""
        device = self.keys.device
        if len(self.keys) == SIZE and len(other.keys) and float(other.keys.min()) >= float(self.keys[-1]):
            return self._replace(seen=self.seen + other.seen)
        pairs = zip(self[:5], other[:5], strict=True)
        keys, features, y, weight, given = (torch.cat([mine, theirs.to(device)]) for mine, theirs in pairs)
        both = Sample(keys, features, y, weight, given, self.seen + other.seen)
        return both.rows(keys.argsort(stable=True)[:SIZE])

    def scaled(self, factor: float) -> Sample:
        """With all weights in the sums multiplied by a factor."""
        return self._replace(keys=self.keys / factor, weight=self.weight * factor, seen=self.seen * factor)

    def columns(self, places: list[int]) -> Sample:
        """With column i at places[i]; examples of those at −1 are dropped."""
        if not len(self.y):
            return self
        moved = self._replace(y=torch.tensor(places, device=self.y.device)[self.y])
        return moved.rows(moved.y >= 0)


@lru_cache(maxsize=8)
def _multipliers(count: int) -> NDArray[np.uint64]:
    numbers: NDArray[np.uint64] = np.random.default_rng(0).integers(0, 2**63, size=count, dtype=np.uint64)
    return numbers * np.uint64(2) + np.uint64(1)


def keys_of(x: Tensor, dtype: torch.dtype, factor: Tensor | float) -> Tensor:
    """[n]: equal for inputs equal in this precision, exponentially distributed at a rate of the factor."""
    hashed = np.empty(len(x), dtype=np.uint64)
    for start in range(0, len(x), ROWS):  # in the cache
        rows = x[start : start + ROWS].detach().cpu().flatten(1).to(dtype).contiguous().numpy()
        words = rows.view(np.uint32 if rows.itemsize == 4 else np.uint64).astype(np.uint64)
        words *= _multipliers(words.shape[1])
        hashed[start : start + ROWS] = words.sum(axis=1, dtype=np.uint64)
    hashed = (hashed ^ (hashed >> np.uint64(31))) * np.uint64(0x9E3779B97F4A7C15)
    hashed ^= hashed >> np.uint64(29)
    uniform = torch.from_numpy((hashed >> np.uint64(11)).astype(np.float64) + 0.5) / 2**53
    return -uniform.log() / factor
