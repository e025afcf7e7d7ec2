"""Drift without probes: the inputs of the task under way, through the old model and through the new one.

What this measures is how differently the *new* inputs are seen, which is what learning them changes; of what has
become of old inputs it says something only as far as they are alike.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from rwalk.guard.drift import inputs
from rwalk.guard.drift.divergences import divergence, kept, logits_in
from rwalk.guard.drift.eval_mode import undisturbed
from rwalk.guard.drift.probes import Predict
from rwalk.guard.drift.reference import Old


class CurrentInputs:
    """The last inputs that the model was trained on, which a hook looks at as they go in."""

    def __init__(self, predict: Predict | None = None) -> None:
        self._predict = predict or (lambda model, batch: model(*batch[0], **batch[1]))
        self._last: Any = None
        self._release: Callable[[], None] = lambda: None

    def look_at(self, model: nn.Module) -> None:
        self._release()
        self._release = model.register_forward_pre_hook(self._note, with_kwargs=True).remove

    def _note(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if module.training and torch.is_grad_enabled():
            self._last = inputs.mapped((args, kwargs), torch.Tensor.detach)

    def reading(self, model: nn.Module, old: Old) -> float:
        """Of the last batch; 0 before there is one."""
        if self._last is None:
            return 0.0
        batch = self._last
        with undisturbed(model), torch.no_grad():
            with old.instead(model):
                before = kept(self._logits(model, batch))
            return float(divergence(before, self._logits(model, batch)).mean())

    def _logits(self, model: nn.Module, batch: Any) -> torch.Tensor:
        return logits_in(self._predict(model, batch), batch[1])
