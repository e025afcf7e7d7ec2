"""A pass over probes: it leaves no trace in the model or in random numbers, and rounds as training does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import nn

from rwalk.guard.drift.batches import device_of
from rwalk.seeds import draws_restored


@contextmanager
def eval_mode(model: nn.Module, keep_draws: bool = False) -> Iterator[None]:
    """Evaluation mode, with gradients set aside and random numbers put back afterwards.

    Modules change their mode by their own `train` and `eval`, because some do more there than set a flag.

    Args:
        model: its modes and gradients are the same afterwards.
        keep_draws: random numbers drawn inside belong to the user and stay drawn.
    """
    modes = {module: module.training for module in model.modules()}
    gradients = {parameter: parameter.grad for parameter in model.parameters() if parameter.grad is not None}
    devices = {parameter.device for parameter in model.parameters() if parameter.device.type == "cuda"}
    with nullcontext() if keep_draws else draws_restored(list(devices)):
        try:
            if any(modes.values()):
                model.eval()
            for parameter in gradients:
                parameter.grad = None
            yield
        finally:
            for parameter in model.parameters():
                parameter.grad = gradients.get(parameter)
            _restore(modes)


def _restore(modes: dict[nn.Module, bool]) -> None:
    """Parents first, because `train` of a parent sets the mode of its children."""
    for module, training in modes.items():
        if module.training != training:
            module.train(training)


class TrainingAutocast:
    """The autocast setting of the first training pass.

    An optimizer's step is usually taken outside of `torch.autocast`. A hook notes the setting when the model is
    first called for training, and then removes itself.
    """

    def __init__(self) -> None:
        self.dtype: torch.dtype | None = None  # None: no autocast
        self._release: Callable[[], None] | None = None

    def watch(self, model: nn.Module) -> None:
        self.release()
        self._release = model.register_forward_pre_hook(_Note(self)).remove

    def release(self) -> None:
        if self._release is not None:
            self._release()
            self._release = None

    def context(self, model: nn.Module) -> AbstractContextManager[Any]:
        if self.dtype is None:
            return nullcontext()
        return torch.autocast(device_of(model).type, self.dtype)


class _Note:
    """The hook; a copy of it in a copy of the model does nothing."""

    def __init__(self, owner: TrainingAutocast | None) -> None:
        self._owner = owner

    def __call__(self, module: nn.Module, args: Any) -> None:
        if self._owner is None or not (module.training and torch.is_grad_enabled()):
            return
        device = device_of(module).type
        self._owner.dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
        self._owner.release()

    def __deepcopy__(self, memo: Any) -> _Note:
        return _Note(None)

    def __reduce__(self) -> tuple[type[_Note], tuple[None]]:
        return _Note, (None,)
