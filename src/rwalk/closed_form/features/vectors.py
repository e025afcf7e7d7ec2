"""Features of plain vectors: the inputs themselves, rectified random projections, and random waves.

No single kind is best for all data. Rectified projections follow smooth trends and suit images and text. Waves
(random Fourier features of a Gaussian kernel) resolve small regions and suit tables. Text of many dimensions needs
the inputs alone. Together they are never far from the best of the three.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from rwalk.seeds import generator

LIMIT = 4.0  # standard deviations: what lies far outside is drawn in towards this, and nothing lies beyond
USUAL, FAR, GAP = 0.75, 15.0, 3.0  # see `far`
LOOKED_AT, FEWEST = 2000, 20  # rows, about at most and at least, to see which cells are far
ONE_UNIT = 1.0  # decades between the ranges of columns, leaving out the extreme tenths: less is one unit


@dataclass(frozen=True)
class VectorFeatures:
    """x → (z, relu(zA + a), cos(zB), sin(zB)), z the standardised x with long tails drawn in."""

    centre: Tensor  # [d]
    scale: Tensor  # [d]
    slopes: Tensor  # A [d, r]
    offsets: Tensor  # a [r]
    waves: Tensor  # B [d, f]
    mixing: Tensor  # [d, m]: random mixtures that stand for more inputs than there are to be features; else m = 0

    kind = "vectors"

    @classmethod
    def make(cls, x: Tensor, weight: Tensor, size: int, seed: int, standardize: bool = True) -> Self:
        """A map with `size` random features, scaled by these examples; by none if `standardize` is off."""
        x = x.flatten(1).double()
        d = x.shape[1]
        centre, scale = moments(x, weight, ~far(x)) if standardize else (x.new_zeros(d), x.new_ones(d))
        rectified = size - 2 * (size // 4)
        draw = generator(seed, "closed-form", "vectors", d, size)
        slopes = torch.randn(d, rectified, generator=draw, dtype=torch.float64) / d**0.5
        offsets = torch.randn(rectified, generator=draw, dtype=torch.float64)
        waves = _orthogonal(d, size // 4, draw)
        mixtures = size if d > size else 0
        mixing = torch.randn(d, mixtures, generator=draw, dtype=torch.float64) / d**0.5
        # The kernel's width: half the mean squared distance of two examples, which is the total variance.
        spread = moments(_drawn_in((x - centre) / scale), weight)[1].square().sum() if standardize else d
        return cls(centre, scale, slopes, offsets, waves / max(float(spread), 1e-12) ** 0.5, mixing)

    @classmethod
    def blank(cls, d: int, size: int) -> Self:
        """One that `make` would make of vectors of d numbers, without content."""
        waves, mixtures = size // 4, size if d > size else 0
        rectified = size - 2 * waves
        shapes = ((d, rectified), (rectified,), (d, waves), (d, mixtures))
        return cls(torch.zeros(d), torch.ones(d), *(torch.zeros(shape) for shape in shapes))

    def __call__(self, x: Tensor) -> Tensor:
        z = _drawn_in((x.flatten(1) - self.centre) / self.scale)
        phase = z @ self.waves
        rectified = torch.addmm(self.offsets, z, self.slopes).relu_()
        inputs = z @ self.mixing if self.mixing.shape[1] else z
        return torch.cat([inputs, rectified, phase.cos(), phase.sin_()], dim=1)

    @property
    def blocks(self) -> list[int]:
        return [self.mixing.shape[1] or len(self.centre), len(self.offsets), 2 * self.waves.shape[1]]


def _drawn_in(z: Tensor) -> Tensor:
    return z * (1 + (z / LIMIT).square()).rsqrt()


def far(x: Tensor) -> Tensor:
    """Which cells [n, d] stand apart from their column, as marks such as −999 and mistakes do; long tails do not.

    Their distance from the median is `FAR` times what three quarters of the column keep, and no cell has between
    a third (`GAP`) of it and all of it. Where most of a column is equal, a mark of other columns counts.
    """
    if len(x) < FEWEST:
        return torch.zeros_like(x, dtype=torch.bool)
    step = -(-len(x) // LOOKED_AT)
    apart = (x - x[::step].median(dim=0).values).abs()
    ranked = torch.cat([apart[::step], apart.amax(0, keepdim=True)]).sort(dim=0).values
    usual = ranked[round(USUAL * len(ranked)) - 1]
    begins = (ranked[1:] > GAP * ranked[:-1]) & (ranked[1:] > FAR * usual) & (usual > 0)
    beyond = apart >= ranked[1:].where(begins, torch.inf).amin(0)
    marks, counts = x[beyond].unique(return_counts=True)
    return beyond | (torch.isin(x, marks[counts > 1]) & (usual == 0) & (apart > 0))


def mark(x: Tensor) -> tuple[float, int, int] | None:
    """The most frequent value that stands apart, its count and its first column; None if none occurs twice."""
    beyond = far(x)
    values, counts = x[beyond].unique(return_counts=True)
    if not len(values) or int(counts.max()) < 2:
        return None
    equal = beyond & (x == values[counts.argmax()])
    return float(values[counts.argmax()]), int(counts.max()), int(equal.any(0).int().argmax())


def moments(x: Tensor, weight: Tensor, counted: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The mean and the divisor of every column, of the cells [n, d] that are counted.

    That is its own deviation; but where all columns have about the same range, as pixels have, they are in one
    unit of measurement already, and one deviation serves them all. To blow up a pixel that has hardly varied
    so far would do harm when later classes light it up. One that has not varied at all takes a typical deviation,
    and a few columns of far larger ranges beside others of one unit take their own.
    """
    if counted is None or counted.all():
        total, low, high = weight.sum(), x.amin(0), x.amax(0)
    else:
        low, high = x.where(counted, torch.inf).amin(0), x.where(counted, -torch.inf).amax(0)
        total, x = weight @ counted.to(x.dtype), x.where(counted, 0)
    mean = weight @ x / total
    deviation = (weight @ (x - mean).square() / total).sqrt()
    varies = deviation > 1e-9 * mean.abs().clamp(min=torch.finfo(x.dtype).tiny)
    if not varies.any():
        return mean, torch.ones_like(mean)
    decades = (high - low).log10()
    least, most = decades[varies].quantile(torch.tensor([0.1, 0.9], dtype=x.dtype, device=x.device))
    one_unit = bool(most - least < ONE_UNIT)
    larger = varies & (decades > least + ONE_UNIT)  # with one unit, the few columns in another
    typical = deviation[varies & ~larger if one_unit else varies].square().mean().sqrt()
    return mean, torch.where(larger if one_unit else varies, deviation, typical)


def _orthogonal(d: int, columns: int, draw: torch.Generator) -> Tensor:
    """Gaussian columns, orthogonal within every d of them: as random, and better spread (Yu et al. 2016)."""
    parts = []
    for _ in range(-(-columns // d)):
        directions = torch.linalg.qr(torch.randn(d, d, generator=draw, dtype=torch.float64)).Q
        parts.append(directions * torch.randn(d, d, generator=draw, dtype=torch.float64).norm(dim=0))
    return torch.cat(parts, dim=1)[:, :columns] if parts else torch.zeros(d, 0, dtype=torch.float64)
