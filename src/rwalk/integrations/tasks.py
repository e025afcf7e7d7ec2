"""Shared by the callbacks: a guard that outlives the trainers, each of which trains one task."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from copy import copy
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from rwalk.errors import InputError, warn_caller
from rwalk.guard import Anchor, Guard, Probes
from rwalk.guard.options import OLD
from rwalk.guard.select import unwrapped
from rwalk.methods import METHODS, Method

FILE = "guard.safetensors"  # the name of a guard's file in a trainer's folder
OPTIONS = {"budget", "params", "state"}

ModelCall = Callable[[Any, Any], Any]


class TaskGuard:
    """Makes a guard when training begins, follows each task's optimizer, and consolidates at the end of a task.

    Args:
        method: see `rwalk.Guard`.
        probes: see `rwalk.Guard`; "own-samples" are drawn when training begins.
        load: a guard's file, or the folder with its guard.safetensors, to continue from in the next task.
        losses: for EWC, a function from the model to the losses of the task's batches.
        divergence: see `rwalk.Guard`.
        outputs: see `rwalk.Guard`.
        options: `budget`, `params` and `state` of `rwalk.Guard`.
    """

    guard: Guard | None = None

    def __init__(
        self,
        method: Method | Anchor | str | None = None,
        *,
        probes: Any = None,
        load: str | os.PathLike[str] | None = None,
        losses: Callable[[Any], Iterable[Tensor]] | None = None,
        divergence: Any = None,
        outputs: Any = None,
        **options: Any,
    ) -> None:
        if method is None and probes is None and load is None:
            raise InputError(
                "this callback needs something to hold the model by: probes=, inputs of its old task, or "
                "probes='own-samples' for a language model; or method='rwalk'"
            )
        if isinstance(probes, Probes) and (divergence is not None or outputs is not None):
            raise InputError("give divergence= and outputs= to rwalk.Probes(…), not beside it")
        for name in options.keys() - OPTIONS - OLD.keys():
            raise InputError(f"this callback has no option {name!r}: it has {', '.join(sorted(OPTIONS))}")
        known = METHODS.get(method) if isinstance(method, str) else method
        if getattr(known, "data_pass", False) and losses is None:
            raise InputError(
                f"{known.name} measures importance in a pass over the task's data: give "  # type: ignore[union-attr]
                "losses=lambda model: (criterion(model(x), y) for x, y in loader)"
            )
        self._method = method
        self._inputs, self._divergence, self._outputs = probes, divergence, outputs
        self._call = options.pop("predict", None)  # the name of 0.2
        self._file = None if load is None else Path(load)
        self._losses = losses
        self._options = options

    def begin_task(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        state: Path | Mapping[str, Any] | None = None,
        tokenizer: Any = None,
        around: Callable[[ModelCall], ModelCall] = lambda call: call,
    ) -> None:
        """Training begins, or resumes.

        Args:
            model: as it is trained, with its wrappers.
            optimizer: of its parameters.
            state: the guard of the checkpoint that training resumes from.
            tokenizer: for probes that are texts, and for own samples.
            around: makes the function that calls the model fit to be used in this trainer.
        """
        if state is None and self.guard is not None and _is_continued(self.guard.model, model):
            self.guard.attach(optimizer, model)
            return
        if self.guard is not None:
            self.guard.detach()
            if state is None:
                warn_caller(
                    "this is another model, with other weights: a new guard begins. To continue with the old one, "
                    "train the same model, or give a new callback load="
                )
        probes = self._probes(tokenizer, around)
        file = self._file if state is None else state
        if file is None:
            self.guard = Guard(model, optimizer, self._method, probes=probes, **self._options)
            return
        file = file / FILE if isinstance(file, Path) and file.is_dir() else file
        self.guard = Guard.load(file, model, optimizer, self._method, probes=probes, **self._options)
        if state is None and self.guard.steps:
            warn_caller(
                f"{file} was saved within a task, after {self.guard.steps} steps, so that task is not held yet: "
                "give load= the file written when training ended, or resume from the checkpoint"
            )

    def end_task(self, model: nn.Module) -> None:
        """Training is over: hold the model as it is now, and stop following the optimizer."""
        assert self.guard is not None
        if self.guard.steps:  # not of a finished task that was resumed
            self.guard.consolidate(self._losses(model) if self._losses else None)
        self.guard.detach()

    def _probes(self, tokenizer: Any, around: Callable[[ModelCall], ModelCall]) -> Probes | None:
        """New ones for each guard, because they store the outputs of one model."""
        if self._inputs is None:
            return None
        if isinstance(self._inputs, Probes):
            probes = copy(self._inputs)
        else:
            probes = Probes(self._inputs, divergence=self._divergence, outputs=self._outputs, call=self._call)
        probes.tokenizer = probes.tokenizer or tokenizer
        probes._call = around(probes._call)
        return probes


def _is_continued(old: nn.Module, new: nn.Module) -> bool:
    """Whether training continues a model: with some of its very parameters, or with all of their values."""
    before, now = (dict(unwrapped(model).named_parameters()) for model in (old, new))
    if not set(before.values()).isdisjoint(now.values()):
        return True
    if before.keys() != now.keys():
        return False
    pairs = [(parameter.detach(), now[name].detach()) for name, parameter in before.items()]
    return all(a.shape == b.shape and a.dtype == b.dtype and torch.equal(a, b.to(a.device)) for a, b in pairs)
