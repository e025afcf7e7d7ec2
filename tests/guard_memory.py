"""The peak of a guard's memory in training, passing copies included."""

from __future__ import annotations

from typing import Any

import torch
from benchmarks.meter import meter
from torch import nn
from torch.optim import SGD

from rwalk.guard import Guard
from rwalk.methods import Method


def extra(
    method: Method, layers: int, width: int, outputs: int, steps: int, **options: Any
) -> tuple[int, list[int]]:
    """Its bytes in two tasks, and those of each parameter of a model in which they take more than all else."""
    peaks = []
    for guarded in (False, True):
        with meter("cpu") as readings:
            torch.manual_seed(0)
            model = nn.Sequential(*(nn.Linear(width, width) for _ in range(layers)), nn.Linear(width, outputs))
            optimizer = SGD(model.parameters(), lr=0.01)
            guard = Guard(model, optimizer, method, **options) if guarded else None
            for _ in range(2):
                for _ in range(steps):
                    model(torch.ones(1, width)).square().mean().backward()
                    optimizer.step()
                    optimizer.zero_grad()
                if guard is not None:
                    guard.consolidate()
            readings.mark("all")
        peaks.append(readings.readings["all"].peak)
        del guard, optimizer
    return peaks[1] - peaks[0], [parameter.nbytes for parameter in model.parameters()]
