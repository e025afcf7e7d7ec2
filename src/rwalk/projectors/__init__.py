"""Gradients changed before the step so that old tasks are not hurt.

One file each; a new file in this folder is found automatically, by its projector's name.
"""

from __future__ import annotations

from rwalk.projectors.projector import Projector
from rwalk.registry import discovered

PROJECTORS: dict[str, type[Projector]] = discovered(__name__, Projector)

__all__ = ["PROJECTORS", "Projector"]
