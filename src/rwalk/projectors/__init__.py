"""Gradients changed before the step so that old tasks are not hurt.

One file each. A file that is put here is found by itself, under the name that its projector has.
"""

from __future__ import annotations

from rwalk.projectors.base import Projector
from rwalk.registry import discovered

PROJECTORS: dict[str, type[Projector]] = discovered(__name__, Projector)

__all__ = ["PROJECTORS", "Projector"]
