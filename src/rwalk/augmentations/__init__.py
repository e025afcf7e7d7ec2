"""Inputs changed at random while they are trained on; drawn by named generators, so that a run can be repeated.

One file each. A file that is put here is found by itself, under the name that its augmentation has.
"""

from __future__ import annotations

from rwalk.augmentations.base import Augmentation
from rwalk.registry import discovered, found

AUGMENTATIONS: dict[str, type[Augmentation]] = discovered(__name__, Augmentation)

__all__ = ["AUGMENTATIONS", "Augmentation", "find"]


def find(name: str) -> Augmentation:
    """An augmentation by its name, or by `package.module:Name`."""
    return found("augmentation", name, AUGMENTATIONS, Augmentation)()
