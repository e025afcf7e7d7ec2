"""What the callbacks have in common: a guard that outlives the trainers, each of which trains one task."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from rwalk.errors import InputError
from rwalk.guard import Anchor, Guard
from rwalk.methods import Method, RWalk


class TaskGuard:
    """Makes its guard when the first task begins, attaches it to each task's optimizer, consolidates at its end.

    method   any method on vectors
    load     a file written by `Guard.save` to continue from
    losses   for EWC: from the model to the losses of the task's batches
    options  those of `Guard`: budget, probes, every, params, dtype, offload and so on
    """

    guard: Guard | None = None

    def __init__(
        self,
        method: Method | Anchor = RWalk(),  # noqa: B008 - frozen
        *,
        load: str | os.PathLike[str] | None = None,
        losses: Callable[[Any], Iterable[Tensor]] | None = None,
        **options: Any,
    ) -> None:
        if isinstance(method, Method) and method.data_pass and losses is None:
            raise InputError(
                f"{method.name} measures importance in a pass over the task's data: give "
                "losses=lambda model: (criterion(model(x), y) for x, y in loader)"
            )
        self._method = method
        self._file = load
        self._losses = losses
        self._options = options
        self._checkpoint: Mapping[str, Any] | None = None

    def begin_task(self, model: nn.Module, optimizer: Optimizer) -> None:
        if self.guard is not None:
            self.guard.attach(optimizer, model)
        elif self._file is not None:
            self.guard = Guard.load(self._file, model, optimizer, self._method, **self._options)
        else:
            self.guard = Guard(model, optimizer, self._method, **self._options)
        if self._checkpoint is not None:
            self.guard.load_state_dict(self._checkpoint)
            self._checkpoint = None

    def end_task(self, model: nn.Module) -> None:
        assert self.guard is not None
        self.guard.consolidate(self._losses(model) if self._losses else None)
