"""The precision of training passes, so that passes over probes are as fast and round alike."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn

from rwalk.guard.drift.batches import device_of


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
