"""Drift: how far a model's predictions on some inputs have gone from what they were, as mean KL(old ‖ new)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from rwalk.guard import inputs
from rwalk.guard.inputs import Batch
from rwalk.guard.predictions import Kept, divergence, kept, logits_in
from rwalk.guard.quiet import undisturbed

Predict = Callable[[Any, Batch], Any]


class Probes:
    """Inputs on which a model's predictions are to stay, with the predictions they had.

    predict  from a model and a batch to its output; calling the model, unless told otherwise
    """

    def __init__(self, given: Any, predict: Predict | None = None, rows: int | None = None) -> None:
        self.batches = inputs.batches(given, rows)
        self.kept: list[Kept] = []
        self.ratios: list[float] = []  # of each batch's drift to the first one's, where it was last measured
        self._predict = predict or inputs.call
        self._next = 0  # the batch to be measured beside the first

    def keep(self, model: nn.Module) -> None:
        """From here on, drift is measured from what the model says now."""
        device = device_of(model)
        self.batches = [inputs.to(batch, device) for batch in self.batches]
        with undisturbed(model), torch.no_grad():
            self.kept = [kept(self._logits(model, number)) for number in range(len(self.batches))]
        self.ratios = [1.0] * len(self.batches)
        self._next = 0

    def drift(self, model: nn.Module) -> float:
        """Of all probes."""
        return self._mean(self._measured(model, range(len(self.batches))))

    def reading(self, model: nn.Module) -> float:
        """An estimate of the drift from two batches: the first, and another each time.

        Batches drift in proportion to each other, so that the first stands for all once the proportions are known.
        """
        if len(self.batches) <= 2:
            return self.drift(model)
        self._next = self._next % (len(self.batches) - 1) + 1
        first, other = self._measured(model, (0, self._next))
        if first > 0:
            self.ratios[self._next] = other / first
        return first * self._mean(self.ratios)

    def pull(self, model: nn.Module, number: int) -> Tensor:
        """The drift of one batch, with its graph: for those who descend it."""
        return divergence(self.kept[number], self._logits(model, number)).mean()

    def _logits(self, model: nn.Module, number: int) -> Tensor:
        batch = inputs.to(self.batches[number], device_of(model))
        return logits_in(self._predict(model, batch), batch)

    def _measured(self, model: nn.Module, numbers: Iterable[int]) -> list[float]:
        """The mean drift of each of these batches; the device is waited for once."""
        with undisturbed(model), torch.no_grad():
            means = [self.pull(model, number).double() for number in numbers]
            measured: list[float] = torch.stack(means).tolist()
        return measured

    def _mean(self, of_batches: list[float]) -> float:
        weights = [len(each) for each in self.kept]
        return sum(map(lambda w, x: w * x, weights, of_batches)) / sum(weights)

    # ── files ─────────────────────────────────────────────────────────────────────────────────────────────────

    def numbers(self) -> dict[str, Any]:
        return {"ratios": self.ratios, "next": self._next}

    def restore(self, predictions: list[Kept], ratios: list[float], following: int) -> None:
        self.kept, self.ratios, self._next = predictions, ratios, following


def device_of(model: nn.Module) -> torch.device:
    return next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
