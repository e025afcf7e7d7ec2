"""Many images made of a few, by distorting them."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from rwalk.errors import InputError


@torch.no_grad()
def distorted(images: Tensor, n: int, seed: int = 0) -> Tensor:
    """Make many probes of a few images, by distorting them.

    A detector's new images alone show few of its old classes. Each probe is a random crop that is turned,
    mirrored and in other colours, a blend of two of these, or four of them side by side.

    Args:
        images: [images, channels, height, width], as the model takes them.
        n: how many to make; they are as large as the images.
        seed: seed of the draws; torch's own random numbers stay as they were.

    Raises:
        InputError: These are no images of decimal numbers, or n is not a whole number of at least 1.

    >>> distorted(torch.rand(4, 3, 32, 48), 10).shape
    torch.Size([10, 3, 32, 48])
    """
    fits = isinstance(images, Tensor) and images.ndim == 4 and images.is_floating_point()
    if not fits or not len(images) or min(images.shape[-2:]) < 2:
        raise InputError(
            "images to distort are a tensor [images, channels, height, width] of decimal numbers, as the model "
            "takes them"
        )
    if type(n) is not int or n < 1:
        raise InputError(f"n must be a whole number, at least 1, not {n!r}")
    draw = torch.Generator().manual_seed(seed)
    height, width = images.shape[-2:]

    def number(below: int) -> int:
        return int(torch.randint(below, (), generator=draw))

    def piece(rows: int, columns: int) -> Tensor:
        image = images[number(len(images)), torch.randperm(images.shape[1], generator=draw)]
        share = 1 - 2 / 3 * float(torch.rand((), generator=draw))
        y, x = (math.ceil(share * side) for side in (height, width))
        top, left = number(height - y + 1), number(width - x + 1)
        cut = image[:, top : top + y, left : left + x].rot90(number(4), (1, 2))
        cut = cut.flip(-1) if number(2) else cut
        return F.interpolate(cut[None], (rows, columns), mode="bilinear", antialias=True)[0]

    def whole() -> Tensor:
        kind = number(3)
        if kind == 0:
            return piece(height, width)
        if kind == 1:
            return (piece(height, width) + piece(height, width)) / 2
        halves = [height // 2, height - height // 2], [width // 2, width - width // 2]
        return torch.cat([torch.cat([piece(rows, columns) for columns in halves[1]], 2) for rows in halves[0]], 1)

    return torch.stack([whole() for _ in range(n)])
