"""Random crops of padded images, and horizontal flips: the usual augmentation for CIFAR."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from rwalk.augmentations.augmentation import Augmentation
from rwalk.errors import InputError

PAD = 4


@dataclass(frozen=True)
class CropFlip(Augmentation):
    """A random window, of the image's own size, of the image padded with zeros; flipped half of the time."""

    name: ClassVar[str] = "crop-flip"
    summary: ClassVar[str] = "random crops of images padded by four pixels, flipped horizontally half of the time"

    def check(self, shape: tuple[int, ...]) -> None:
        if len(shape) != 3:
            raise InputError(f"crop-flip needs images [channels, height, width], not {list(shape)}")

    def draw(self, steps: int, batch: int, generator: Generator) -> Tensor:
        """(down, right, mirrored) for every image."""
        window = torch.randint(2 * PAD + 1, (steps, batch, 2), generator=generator)
        mirrored = torch.randint(2, (steps, batch, 1), generator=generator)
        return torch.cat([window, mirrored], dim=-1)

    def apply(self, x: Tensor, draws: Tensor) -> Tensor:
        height, width = x.shape[-2:]
        down, right, mirrored = draws[..., None].unbind(-2)  # each [R, B, 1]
        rows = torch.arange(height, device=x.device) + down
        columns = torch.arange(width, device=x.device)
        columns = torch.where(mirrored == 1, width - 1 - columns, columns) + right
        padded = F.pad(x, (PAD, PAD, PAD, PAD))
        here = padded.gather(-2, rows[:, :, None, :, None].expand(*x.shape[:3], height, width + 2 * PAD))
        return here.gather(-1, columns[:, :, None, None, :].expand(*x.shape[:3], height, width))
