"""Losses that are read without waiting: reading them stalls the device, so it is done rarely, and late."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

import torch
from torch import Tensor

from rwalk.engine.graphs import Arriving

CHUNK = 64  # steps between looks


class LateLosses:
    """Collects the losses [R] of steps and gives them back in chunks.

    On a device they come one chunk late, so that it has work while the host waits; flushing returns all of them.
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
