"""The methods in the user's own loop, around the user's own model and optimizer: `Guard`."""

from __future__ import annotations

from rwalk.guard.drift.anchor import Anchor
from rwalk.guard.drift.samples import own_samples
from rwalk.guard.guard import Guard

__all__ = ["Anchor", "Guard", "own_samples"]
