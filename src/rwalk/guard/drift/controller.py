"""The weight of an anchor under a budget, and the readings it is based on.

Less drift than a budget allows is no waste: an anchor of the default weight does not slow the new task down. So
the weight never falls below the one that was given. It rises while readings come near the budget or exceed it,
and returns afterwards. The guard's `finish` makes sure of the rest.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rwalk.errors import InputError
from rwalk.sealed import expect

SMOOTHING = 0.3  # the share of a new reading in the smoothed one
AIM = 0.8  # of the budget: where the weight neither rises nor falls
GAIN = 0.3  # change of log weight per reading and per unit of log drift
MOST = 100.0  # times the given weight
HISTORY = 2048  # readings that are remembered; then every other one of the older half is dropped


class Reading(NamedTuple):
    """Drift and weight at one pull."""

    task: int
    step: int
    drift: float
    weight: float


def check_budget(budget: float | None) -> None:
    if budget is not None and (
        isinstance(budget, bool) or not isinstance(budget, int | float) or not 0 < budget < math.inf
    ):
        raise InputError(f"budget must be a number above 0, such as 0.05, not {budget!r}")


def followed(
    raised: Tensor, smoothed: Tensor, drift: Tensor, budget: float, most: Tensor
) -> tuple[Tensor, Tensor]:
    """The log of the factor by which the weight is raised, and the smoothed reading, after another reading.

    Args:
        raised: log of the factor so far; 0 is the given weight.
        smoothed: the smoothed reading so far; negative before the first.
        drift: the reading; ignored if it is not finite.
        budget: the drift that is allowed.
        most: log of the factor beyond which a larger weight changes nothing.

    >>> zero, most = torch.tensor(0.0), torch.tensor(4.0)
    >>> raised, smoothed = followed(zero, torch.tensor(-1.0), torch.tensor(0.1), 0.05, most)
    >>> bool(raised > 0), bool(followed(raised, torch.tensor(0.0), torch.tensor(0.0), 0.05, most)[0] < raised)
    (True, True)
    """
    drift = torch.where(drift.isfinite(), drift.clamp(min=0), smoothed.clamp(min=0))
    smoothed = torch.where(smoothed < 0, drift, torch.lerp(smoothed, drift, SMOOTHING))
    error = (smoothed / (AIM * budget)).clamp(min=1e-6).log().clamp(-1.0, 1.0)
    return torch.minimum(raised + GAIN * error, most).clamp(min=0.0), smoothed


class Controller:
    """The state of the rule, kept on the device, so that no step waits for a reading."""

    def __init__(self, budget: float | None = None) -> None:
        check_budget(budget)
        self.budget = budget
        self.task = 0
        self._raised = torch.tensor(0.0)
        self._smoothed = torch.tensor(-1.0)
        self._steps: list[tuple[int, int]] = []
        self._readings: list[Tensor] = []  # drift and weight, [2] each

    def begin(self, task: int) -> None:
        """Drift is counted anew from here on; the weight stays."""
        self.task = task
        self._smoothed = torch.full_like(self._smoothed, -1.0)

    def weight(self, given: float, device: torch.device) -> Tensor:
        self._raised, self._smoothed = self._raised.to(device), self._smoothed.to(device)
        return given * self._raised.exp()

    def read(self, step: int, drift: Tensor, given: float, bound: Tensor) -> None:
        """Note a reading; with a budget, the next weight follows from it."""
        self._steps.append((self.task, step))
        self._readings.append(torch.stack([drift, self.weight(given, drift.device)]))
        if self.budget is not None:
            most = (bound / given).clamp(1.0, MOST).log()
            self._raised, self._smoothed = followed(self._raised, self._smoothed, drift, self.budget, most)
        if len(self._steps) > HISTORY:
            older = slice(0, HISTORY // 2, 2)
            self._steps = self._steps[older] + self._steps[HISTORY // 2 :]
            self._readings = self._readings[older] + self._readings[HISTORY // 2 :]

    @property
    def history(self) -> tuple[Reading, ...]:
        """All readings; the device is waited for."""
        if not self._readings:
            return ()
        numbers = torch.stack([reading.cpu() for reading in self._readings]).tolist()
        return tuple(Reading(*at, *each) for at, each in zip(self._steps, numbers, strict=True))

    def to_dict(self) -> dict[str, Any]:
        return {
            "task": self.task,
            "raised": float(self._raised),
            "smoothed": float(self._smoothed),
            "history": [list(reading) for reading in self.history],
        }

    def restore(self, state: Any) -> None:
        """From `to_dict`; values that cannot be right are refused."""
        expect(isinstance(state, dict) and state.keys() == self.to_dict().keys(), "its controller")
        history = state["history"]
        numbers = [state["raised"], state["smoothed"], *(number for reading in history for number in reading)]
        plain = all(type(number) in (int, float) and math.isfinite(number) for number in numbers)
        expect(plain and type(state["task"]) is int, "its controller")
        expect(all(len(reading) == len(Reading._fields) for reading in history), "its readings")
        expect(0 <= state["raised"] <= math.log(MOST) + 1e-3, "its controller")
        self.task = state["task"]
        self._raised, self._smoothed = torch.tensor(float(state["raised"])), torch.tensor(float(state["smoothed"]))
        self._steps = [(int(task), int(step)) for task, step, *_ in history]
        self._readings = [torch.tensor([float(drift), float(weight)]) for *_, drift, weight in history]
