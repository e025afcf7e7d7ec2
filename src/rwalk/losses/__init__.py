"""Losses that a step minimises: cross entropy, or an algorithm's own.

One file each; a new file in this folder is found automatically, by its loss's name.
"""

from __future__ import annotations

from rwalk.losses.cross_entropy import CrossEntropy
from rwalk.losses.loss import Batch, Loss, Taught, spread
from rwalk.registry import discovered

LOSSES: dict[str, type[Loss]] = discovered(__name__, Loss)

__all__ = ["LOSSES", "Batch", "CrossEntropy", "Loss", "Taught", "spread"]
