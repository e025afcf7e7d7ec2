"""Fine-tune a model without forgetting, in your own training loop: `Guard`."""

from __future__ import annotations

from rwalk.guard.drift import divergences
from rwalk.guard.drift.anchor import Anchor
from rwalk.guard.drift.probes import Probes, own_samples
from rwalk.guard.guard import Guard
from rwalk.guard.options import StateOptions

__all__ = ["Anchor", "Guard", "Probes", "StateOptions", "divergences", "own_samples"]
