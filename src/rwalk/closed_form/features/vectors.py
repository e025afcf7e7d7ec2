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
        centre, scale = moments(x, weight) if standardize else (x.new_zeros(d), x.new_ones(d))
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


def moments(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """The mean and the divisor of every column.

    That is its own deviation; but where all columns have about the same range, as pixels have, they are in one
    unit of measurement already, and one deviation serves them all. To blow up a pixel that has hardly varied
    so far would do harm when later classes light it up. One that has not varied at all takes a typical deviation.
    """
    total = weight.sum()
    mean = weight @ x / total
    deviation = (weight @ (x - mean).square() / total).sqrt()
    varies = deviation > 1e-9 * mean.abs().clamp(min=torch.finfo(x.dtype).tiny)
    if not varies.any():
        return mean, torch.ones_like(mean)
    typical = deviation[varies].square().mean().sqrt()
    decades = (x.amax(0) - x.amin(0))[varies].log10()
    if decades.quantile(0.9) - decades.quantile(0.1) < ONE_UNIT:
        return mean, torch.full_like(mean, float(typical))
    return mean, torch.where(varies, deviation, typical)


def _orthogonal(d: int, columns: int, draw: torch.Generator) -> Tensor:
    """Gaussian columns, orthogonal within every d of them: as random, and better spread (Yu et al. 2016)."""
    parts = []
    for _ in range(-(-columns // d)):
        directions = torch.linalg.qr(torch.randn(d, d, generator=draw, dtype=torch.float64)).Q
        parts.append(directions * torch.randn(d, d, generator=draw, dtype=torch.float64).norm(dim=0))
    return torch.cat(parts, dim=1)[:, :columns] if parts else torch.zeros(d, 0, dtype=torch.float64)
