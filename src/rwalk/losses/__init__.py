"""What a step descends: cross entropy, or a loss of an algorithm's own.

One file each. A file that is put here is found by itself, under the name that its loss has.
"""

from __future__ import annotations

from rwalk.losses.base import Batch, Loss, Taught, spread
from rwalk.losses.cross_entropy import CrossEntropy
from rwalk.registry import discovered

LOSSES: dict[str, type[Loss]] = discovered(__name__, Loss)

__all__ = ["LOSSES", "Batch", "CrossEntropy", "Loss", "Taught", "spread"]
