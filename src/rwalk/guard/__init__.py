"""The methods in the user's own loop, around the user's own model and optimizer: `Guard`."""

from __future__ import annotations

from rwalk.guard.anchors import Anchor
from rwalk.guard.core import Guard
from rwalk.guard.samples import own_samples

__all__ = ["Anchor", "Guard", "own_samples"]
