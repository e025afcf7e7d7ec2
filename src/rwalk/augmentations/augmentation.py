"""Base of the augmentations: draws, made on the CPU by a named generator, and a pure function of inputs and draws.

A run therefore has the same inputs alone, in a fleet, in a captured graph and after a resume.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Generator, Tensor


@dataclass(frozen=True)
class Augmentation:
    """Base of all augmentations."""

    name: ClassVar[str] = ""
    summary: ClassVar[str] = ""

    def check(self, shape: tuple[int, ...]) -> None:
        """Raise InputError if inputs of this shape cannot be augmented in this way."""

    def draw(self, steps: int, batch: int, generator: Generator) -> Tensor:
        """Random numbers [steps, batch, k] for the steps of an epoch: k for every example in every batch."""
        raise NotImplementedError

    def apply(self, x: Tensor, draws: Tensor) -> Tensor:
        """Inputs [R, B, *shape], changed as their draws [R, B, k] say."""
        raise NotImplementedError
