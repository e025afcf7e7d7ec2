"""Reports of a fleet in training: losses, read without stalling the device."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

CHUNK = 64  # steps between two reads of the losses
POINTS = 32  # of a task's loss curve, about


class Progress(NamedTuple):
    """Where a fleet is: `step` of `steps` done in a task (from 0) of `tasks`, and the mean loss of its runs."""

    task: int
    tasks: int
    step: int
    steps: int
    loss: float


Tell = Callable[[Progress], None]


class LateLosses:
    """Collects the losses [R] of steps and returns them in chunks.

    On a device they come one chunk late, so that the device has work while the host waits.
    """

    def __init__(self, on_device: bool) -> None:
        self._lag = 1 if on_device else 0
        self._collected: list[Tensor] = []
        self._queued: deque[tuple[int, Tensor, torch.cuda.Event | None]] = deque()

    def add(self, losses: Tensor, step: int, flush: bool) -> Iterator[tuple[int, Tensor]]:
        """Yield (last step, losses [steps, R]) of every chunk that has arrived; all chunks if `flush`."""
        self._collected.append(losses)
        if len(self._collected) < CHUNK and not flush:
            return
        self._queued.append((step, *_sent(torch.stack(self._collected))))
        self._collected = []
        while len(self._queued) > (0 if flush else self._lag):
            last, chunk, event = self._queued.popleft()
            if event is not None:
                event.synchronize()
            yield last, chunk


def _sent(tensor: Tensor) -> tuple[Tensor, torch.cuda.Event | None]:
    """A copy on the CPU, and the event that it is complete after: waiting for it does not wait for later work."""
    if not tensor.is_cuda:
        return tensor, None
    copy = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    copy.copy_(tensor, non_blocking=True)
    event = torch.cuda.Event()
    event.record()
    return copy, event


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
