"""Buffers drift too: batch norm's running statistics go where the new inputs are, and no spring holds them.

Where a budget is to be kept, they are held as parameters are: after every step they go back a little towards what
they were, the more the larger λ has become. Free while λ is small, they are as good as frozen when it is huge.
"""

from __future__ import annotations

import torch
from torch import nn

from rwalk.guard.drift.reference import Old
from rwalk.guard.select import named_buffers


class Buffers:
    """Those buffers of a model that training was seen to move."""

    def __init__(self) -> None:
        self._moving: list[str] = []

    def look(self, model: nn.Module, old: Old) -> None:
        """Which ones move; asked at every reading, for it waits for the device."""
        self._moving = [
            name
            for name, buffer in named_buffers(model).items()
            if buffer.is_floating_point()
            and name in old.tensors
            and not torch.equal(buffer, old.tensors[name].to(buffer))
        ]

    def hold(self, model: nn.Module, old: Old, share: float) -> None:
        """Back by this share of their way, as the parameters are meant to go."""
        if self._moving and share:
            old.approach(model, share, self._moving)
