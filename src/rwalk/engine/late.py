"""Losses that are not waited for: a look at them stops the device, so it is taken seldom, and late."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

import torch
from torch import Tensor

from rwalk.engine.graphs import Arriving

CHUNK = 64  # steps between looks


class LateLosses:
    """Collects the losses [R] of steps and gives them back in chunks.

    On a device one chunk late, so that it has work while it is waited for; all of them when flushed.
    """

    def __init__(self, on_device: bool) -> None:
        self._lag = 1 if on_device else 0
        self._collected: list[Tensor] = []
        self._queued: deque[tuple[int, Arriving]] = deque()

    def add(self, losses: Tensor, step: int, flush: bool) -> Iterator[tuple[int, Tensor]]:
        """(the last step of a chunk, its losses [steps, R]) for every chunk that has arrived."""
        self._collected.append(losses)
        if len(self._collected) < CHUNK and not flush:
            return
        self._queued.append((step, Arriving(torch.stack(self._collected))))
        self._collected = []
        while len(self._queued) > (0 if flush else self._lag):
            last, chunk = self._queued.popleft()
            yield last, chunk.arrived()
