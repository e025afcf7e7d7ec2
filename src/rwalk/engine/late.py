"""Losses that are read without waiting: reading them stalls the device, so it is done rarely, and late."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

import torch
from torch import Tensor

from rwalk.engine.graphs import Arriving

CHUNK = 64  # steps between looks
POINTS = 32  # of a task's loss curve, about


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


def thinned(last: int, losses: Tensor, steps: int) -> Iterator[tuple[int, float]]:
    """(step, mean loss of the runs) for a few of a chunk's steps, always its last: enough to draw a task's curve.

    >>> list(thinned(2, torch.tensor([[1.0, 3.0], [0.5, torch.nan]]), steps=2))
    [(1, 2.0), (2, 0.5)]
    """
    stride = max(1, steps // POINTS)
    means = losses.nanmean(1).tolist()
    for step, loss in enumerate(means, last - len(means) + 1):
        if step % stride == 0 or step == last:
            yield step, loss
