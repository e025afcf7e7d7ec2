"""Features of images: how strongly, and in which part of the image, each patch of a dictionary occurs.

Coates & Ng ("The importance of encoding versus training with sparse coding and vector quantization", 2011): small
patches, normalised in contrast and whitened; a dictionary of their most common directions by spherical k-means;
the answer to each direction beyond a threshold, on either side, averaged over parts of the image.
The dictionary is learned without labels, from the images the map is made of.

Features are the square roots of these averages, so that a frequent patch does not outweigh all others (Perronnin
et al., "Improving the Fisher kernel for large-scale image classification", 2010).

Photographs are as likely as their mirror images; writing is not. If a classifier cannot separate images from
their mirror images, the features are the mean over both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor

from rwalk.seeds import generator

SIDE = 6  # of a patch, in pixels
SAMPLED = 100_000  # patches the dictionary is learned from
ROUNDS = 10  # of k-means
FAINT = 0.0025  # of the images' variance: contrast far below it is noise, and is not amplified
WHITENING = 0.1  # variance added before whitening, for directions that hardly occur
THRESHOLD = 0.25
LOOKED_AT, LOOKED_WITH, FEWEST = 600, 100, 50  # images, patches, and images at least, to see whether to mirror
TOLD_APART = 0.65  # of the images, from their mirror images: writing is, photographs are not
FLOOR = 1e-3  # added before the root, whose slope would otherwise magnify rounding
AT_ONCE = {"cpu": 1 << 20, "cuda": 1 << 28}  # numbers in the largest intermediate result: caches are small
REUSED = 31 << 20  # bytes of a block of memory, below glibc's limit for this


@dataclass(frozen=True)
class PatchFeatures:
    """Images [n, c, h, w] → [n, 2 · patches · grid²]."""

    filters: Tensor  # [patches, c, side, side]: dictionary and whitening in one, blind to a patch's mean
    offsets: Tensor  # [patches]: the answers to the mean of all normalised patches
    faint: Tensor  # []: variance added to a patch's
    grid: Tensor  # []: parts of the image along each side
    mirrored: Tensor  # []: the mirror image's share of the features, 0 or ½
    floor: Tensor | None = None  # []: added to averages before the root; None: averages, as in earlier files

    kind = "images"

    @classmethod
    def make(cls, x: Tensor, patches: int, seed: int, grid: int = 2, mirror: bool | None = None) -> Self:
        """A dictionary of so many patches of these images; without `mirror`, they decide whether to mirror."""
        draw = generator(seed, "closed-form", "patches", *x.shape[1:], patches)
        x = x.double()
        faint = FAINT * x.var(dim=(0, 2, 3), correction=0).mean().clamp(min=1e-12)
        sampled = _normalised(_sample(x, draw), faint)
        mean, whiten = _whitening(sampled)
        dictionary = _spherical_k_means((sampled - mean) @ whiten, patches, draw)
        filters = dictionary @ whiten
        offsets = filters @ mean
        filters = filters - filters.mean(1, keepdim=True)  # a patch's own mean is taken out here
        c, side = x.shape[1], SIDE
        share = x.new_zeros(())
        plain = cls(filters.reshape(-1, c, side, side), offsets, faint, torch.tensor(grid), share)
        mirror = looks_mirrored(plain, x) if mirror is None else mirror
        return replace(plain, mirrored=share + 0.5 if mirror else share, floor=share + FLOOR)

    @classmethod
    def blank(cls, shape: Sequence[int], patches: int, grid: int = 2) -> Self:
        """One of averages of such images, without content."""
        filters = torch.zeros(patches, shape[0], SIDE, SIDE)
        return cls(filters, torch.zeros(patches), torch.ones(()), torch.tensor(grid), torch.zeros(()))

    def __call__(self, x: Tensor) -> Tensor:
        if x.device.type == "cpu":  # sums over places take a third of the time
            x = x.contiguous(memory_format=torch.channels_last)
        averages = self.both_ways(x) if self.mirrored else self._averages(x)
        return averages if self.floor is None else averages.clamp_(min=0).add_(self.floor).sqrt_()

    def both_ways(self, x: Tensor) -> Tensor:
        """Averages without a look at the share: for maps of several runs at once."""
        return self._averages(x).lerp(self._averages(x.flip(-1)), self.mirrored)

    def _averages(self, x: Tensor) -> Tensor:
        _reuse_memory()
        positions = (x.shape[2] - SIDE + 1) * (x.shape[3] - SIDE + 1)
        at_once = AT_ONCE.get(x.device.type, AT_ONCE["cpu"])
        images = max(1, at_once // (positions * len(self.filters)))
        return torch.cat([self._pooled(part) for part in x.split(images)])

    def _pooled(self, x: Tensor) -> Tensor:
        answers = F.conv2d(x, self.filters).div_(_contrast(x.contiguous(), self.faint))
        answers.sub_(self.offsets[:, None, None])
        beyond = F.softshrink(answers, THRESHOLD)
        grid = int(self.grid)
        difference = F.adaptive_avg_pool2d(beyond, grid)
        above = F.adaptive_avg_pool2d(beyond.relu_(), grid)
        return torch.cat([above, above - difference], dim=1).flatten(1)

    @property
    def blocks(self) -> list[int]:
        """Every feature is a block of its own: a rare patch has the same penalty as a common one."""
        return [1] * (2 * len(self.filters) * int(self.grid) ** 2)


@cache
def _reuse_memory() -> None:
    """Free a large block of memory once: from then on, glibc keeps freed blocks up to its size.

    Otherwise it may return every intermediate result to the system. Page faults then cost more than convolutions.
    """
    torch.empty(REUSED, dtype=torch.uint8, device="cpu")


def looks_mirrored(features: PatchFeatures, x: Tensor) -> bool:
    """Whether these images could as well be their mirror images.

    A linear classifier learns on one half of them to separate the two, and is tested on the other half.
    """
    some = x[:: -(-len(x) // LOOKED_AT)]
    if len(some) < FEWEST:
        return False
    few = replace(features, filters=features.filters[:LOOKED_WITH], offsets=features.offsets[:LOOKED_WITH])
    difference = few._averages(some) - few._averages(some.flip(-1))
    halves = difference[::2], difference[1::2]
    right = 0
    for learned, asked in (halves, halves[::-1]):
        # Copies of one image do not vary at all.
        scale = learned.std(0).clamp(min=max(1e-12, 1e-6 * float(learned.square().mean().sqrt())))
        learned, asked = learned / scale, asked / scale
        kernel = learned @ learned.T / learned.shape[1]
        kernel.diagonal().add_(0.1)
        weights = torch.linalg.solve(kernel, torch.ones(len(learned), 1, dtype=kernel.dtype, device=kernel.device))
        right += int((asked @ (learned.T @ weights) > 0).sum())
    return right < TOLD_APART * len(difference)


def _contrast(x: Tensor, faint: Tensor) -> Tensor:
    """Standard deviation within the patch at every position: [n, 1, h', w']."""
    mean = F.avg_pool2d(x, SIDE, 1).mean(1, keepdim=True)
    square = F.avg_pool2d(x.square(), SIDE, 1).mean(1, keepdim=True)
    return ((square - mean.square()).clamp(min=0) + faint).sqrt()


def _normalised(patches: Tensor, faint: Tensor) -> Tensor:
    centred = patches - patches.mean(1, keepdim=True)
    return centred / (centred.square().mean(1, keepdim=True) + faint).sqrt()


def _sample(x: Tensor, draw: torch.Generator) -> Tensor:
    """Patches [m, c · side²] at random places of random images."""
    n, _, h, w = x.shape
    image = torch.randint(n, (SAMPLED,), generator=draw)
    row = torch.randint(h - SIDE + 1, (SAMPLED,), generator=draw)
    column = torch.randint(w - SIDE + 1, (SAMPLED,), generator=draw)
    rows = (row[:, None] + torch.arange(SIDE))[:, :, None]
    columns = (column[:, None] + torch.arange(SIDE))[:, None, :]
    patches = x[image.to(x.device)[:, None, None], :, rows.to(x.device), columns.to(x.device)]
    return patches.permute(0, 3, 1, 2).flatten(1)


def _whitening(patches: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and symmetric whitening matrix."""
    mean = patches.mean(0)
    values, vectors = torch.linalg.eigh((patches - mean).T @ (patches - mean) / len(patches))
    return mean, vectors @ torch.diag((values.clamp(min=0) + WHITENING).rsqrt()) @ vectors.T


def _spherical_k_means(x: Tensor, clusters: int, draw: torch.Generator) -> Tensor:
    """Unit vectors [clusters, d]: each the direction of the sum of what answers it most, by how much it does."""
    start = torch.randn(clusters, x.shape[1], generator=draw, dtype=torch.float64).to(x)
    directions = F.normalize(start)
    spare = F.normalize(x[torch.randint(len(x), (clusters,), generator=draw).to(x.device)])
    for _ in range(ROUNDS):
        sums = torch.zeros_like(directions)
        for part in x.split(8192):
            answer = part @ directions.T
            best = answer.abs().argmax(1)
            sums.index_add_(0, best, part * answer.gather(1, best[:, None]))
        empty = sums.norm(dim=1, keepdim=True) < 1e-9
        directions = F.normalize(torch.where(empty, spare, sums))
    return directions
