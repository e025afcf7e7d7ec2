"""Drift: how far a model's predictions on some inputs have gone from what they were, as mean KL(old ‖ new)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from rwalk.guard.drift import inputs
from rwalk.guard.drift.divergences import Kept, divergence, kept, logits_in, loss_in
from rwalk.guard.drift.eval_mode import undisturbed
from rwalk.guard.drift.inputs import Batch

Predict = Callable[[Any, Batch], Any]
WATCHED = 1 / 4  # of the batches, where others are pulled on


class Probes:
    """Inputs on which a model's predictions are to stay, with the predictions they had.

    predict  from a model and a batch to its output; calling the model, unless told otherwise
    apart    some are only watched, the others only pulled on: whoever descends the drift of probes sees less of it
             there than elsewhere
    """

    def __init__(
        self, given: Any, predict: Predict | None = None, rows: int | None = None, apart: bool = False
    ) -> None:
        self.batches = inputs.batches(given, rows)
        if apart and rows is None and len(self.batches) == 1:
            self.batches = inputs.batches(self.batches, math.ceil(inputs.length_of(self.batches[0]) / 4))
        watched = math.ceil(WATCHED * len(self.batches)) if apart else len(self.batches)
        self.watched = range(watched)
        self.pulled = range(watched if watched < len(self.batches) else 0, len(self.batches))
        self.kept: list[Kept] = []
        self.loss_before: float | None = None  # where the probes have labels, which the model makes a loss of
        self.ratios: list[float] = []  # of each batch's drift to the first one's, where it was last measured
        self._predict = predict or inputs.call
        self._next = 0  # the batch to be measured beside the first

    def keep(self, model: nn.Module) -> None:
        """From here on, drift is measured from what the model says now."""
        device = device_of(model)
        self.batches = [inputs.to(batch, device) for batch in self.batches]
        with undisturbed(model), torch.no_grad():
            self.kept = [kept(self._logits(model, number)) for number in range(len(self.batches))]
        self.loss_before = self.loss(model)
        self.ratios = [1.0] * len(self.watched)
        self._next = 0

    @property
    def examples(self) -> int:
        return sum(map(inputs.length_of, self.batches))

    def loss(self, model: nn.Module) -> float | None:
        """The mean of the losses that the model makes of the probes' own labels; None where they have none."""
        if not all(isinstance(batch, Mapping) and "labels" in batch for batch in self.batches):
            return None
        device = device_of(model)
        with undisturbed(model), torch.no_grad():
            losses = [loss_in(self._predict(model, inputs.to(batch, device))) for batch in self.batches]
        told = [float(loss) for loss in losses if loss is not None]
        if len(told) < len(losses):
            return None
        return weighted_mean(told, [inputs.length_of(batch) for batch in self.batches])

    def drift(self, model: nn.Module) -> float:
        """Of all probes that are watched."""
        return self._mean(self._measured(model, self.watched))

    def reading(self, model: nn.Module) -> float:
        """An estimate of the drift from two batches: the first, and another each time.

        Batches drift in proportion to each other, so that the first stands for all once the proportions are known.
        """
        if len(self.watched) <= 2:
            return self.drift(model)
        self._next = self._next % (len(self.watched) - 1) + 1
        first, other = self._measured(model, (0, self._next))
        if first > 0:
            self.ratios[self._next] = other / first
        return first * self._mean(self.ratios)

    def again(self, model: nn.Module) -> float:
        """The last reading's estimate, after a change to the model: from the first batch alone."""
        if len(self.watched) <= 2:
            return self.drift(model)
        return self._measured(model, (0,))[0] * self._mean(self.ratios)

    def pull(self, model: nn.Module, number: int) -> Tensor:
        """The drift of one batch, with its graph: for those who descend it."""
        logits = self._logits(model, number)
        self.kept[number] = self.kept[number].to(logits.device)  # those from a file, or of a model that was moved
        return divergence(self.kept[number], logits).mean()

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
        return weighted_mean(of_batches, [len(self.kept[number]) for number in self.watched])

    # ── files ─────────────────────────────────────────────────────────────────────────────────────────────────

    def numbers(self) -> dict[str, Any]:
        return {"ratios": self.ratios, "next": self._next, "loss": self.loss_before}

    def restore(self, predictions: list[Kept], ratios: list[float], following: int, loss: float | None) -> None:
        self.kept, self.ratios, self._next, self.loss_before = predictions, ratios, following, loss


def device_of(model: nn.Module) -> torch.device:
    return next((parameter.device for parameter in model.parameters()), torch.device("cpu"))


def weighted_mean(values: Sequence[float], weights: Sequence[int]) -> float:
    return sum(w * value for w, value in zip(weights, values, strict=True)) / sum(weights)
