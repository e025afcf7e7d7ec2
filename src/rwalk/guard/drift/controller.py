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

AIM = 0.9  # of the budget: where the weight neither rises nor falls
GAIN = 1.0  # change of log weight per reading and per unit of log drift
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


def followed(raised: Tensor, drift: Tensor, budget: float, most: Tensor) -> Tensor:
    """The log of the factor by which the weight is raised, after a reading.

    Args:
        raised: log of the factor so far; 0 is the given weight, below which it never falls.
        drift: the reading, of probes that are not pulled on; ignored if it is not finite.
        budget: the drift that is allowed.
        most: log of the factor beyond which a larger weight changes nothing, so that the rule cannot wind up.

    >>> most = torch.tensor(2.0)
    >>> readings = (0.09, 0.9, 0.01, float("nan"))
    >>> [round(float(followed(torch.tensor(1.5), torch.tensor(each), 0.1, most)), 1) for each in readings]
    [1.5, 2.0, 0.5, 1.5]
    """
    error = (drift.clamp(min=0) / (AIM * budget)).clamp(min=1e-6).log().clamp(-1.0, 1.0)
    error = torch.where(drift.isfinite(), error, torch.zeros_like(error))
    return torch.minimum(raised + GAIN * error, most).clamp(min=0.0)


class Controller:
    """The state of the rule, kept on the device, so that no step waits for a reading."""

    def __init__(self, budget: float | None = None) -> None:
        check_budget(budget)
        self.budget = budget
        self.task = 0
        self._raised = torch.tensor(0.0)
        self._steps: list[tuple[int, int]] = []
        self._readings: list[Tensor] = []  # drift and weight, [2] each

    def begin(self, task: int) -> None:
        """Drift is counted anew from here on, at the given weight."""
        self.task = task
        self._raised = torch.zeros_like(self._raised)

    def weight(self, given: float, device: torch.device) -> Tensor:
        self._raised = self._raised.to(device)
        return given * self._raised.exp()

    def read(self, step: int, drift: Tensor, given: float, bound: Tensor) -> None:
        """Note a reading; with a budget, the next weight follows from it."""
        self._steps.append((self.task, step))
        self._readings.append(torch.stack([drift, self.weight(given, drift.device)]))
        if self.budget is not None:
            most = (bound / given).clamp(1.0, MOST).log()
            self._raised = followed(self._raised, drift, self.budget, most)
        if len(self._steps) > HISTORY:
            older = slice(0, HISTORY // 2, 2)
            self._steps = self._steps[older] + self._steps[HISTORY // 2 :]
            self._readings = self._readings[older] + self._readings[HISTORY // 2 :]

    @property
    def history(self) -> tuple[Reading, ...]:
        """All readings; the device is waited for."""
        if not self._readings:
            return ()
        device = self._raised.device
        numbers = torch.stack([reading.to(device) for reading in self._readings]).tolist()
        return tuple(Reading(*at, *each) for at, each in zip(self._steps, numbers, strict=True))

    def to_dict(self) -> dict[str, Any]:
        return {
            "task": self.task,
            "raised": float(self._raised),
            "history": [list(reading) for reading in self.history],
        }

    def restore(self, state: Any) -> None:
        """From `to_dict`; values that cannot be right are refused."""
        expect(isinstance(state, dict) and state.keys() == self.to_dict().keys(), "its controller")
        history = state["history"]
        numbers = [state["raised"], *(number for reading in history for number in reading)]
        plain = all(type(number) in (int, float) and math.isfinite(number) for number in numbers)
        expect(plain and type(state["task"]) is int, "its controller")
        expect(all(len(reading) == len(Reading._fields) for reading in history), "its readings")
        expect(0 <= state["raised"] <= math.log(MOST) + 1e-3, "its controller")
        self.task = state["task"]
        self._raised = torch.tensor(float(state["raised"]))
        self._steps = [(int(task), int(step)) for task, step, *_ in history]
        self._readings = [torch.tensor([float(drift), float(weight)]) for *_, drift, weight in history]
