"""Random changes of training inputs, drawn by named generators so that a run can be repeated.

One file each; a new file in this folder is found automatically, by its augmentation's name.
"""

from __future__ import annotations

from rwalk.augmentations.augmentation import Augmentation
from rwalk.registry import discovered, found

AUGMENTATIONS: dict[str, type[Augmentation]] = discovered(__name__, Augmentation)

__all__ = ["AUGMENTATIONS", "Augmentation", "find"]


def find(name: str) -> Augmentation:
    """An augmentation by its name, or by `package.module:Name`."""
    return found("augmentation", name, AUGMENTATIONS, Augmentation)()
