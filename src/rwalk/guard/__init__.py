"""The methods in the user's own loop, around the user's own model and optimizer: `Guard`."""

from __future__ import annotations

from rwalk.guard.core import Guard

__all__ = ["Guard"]
