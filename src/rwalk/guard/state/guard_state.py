"""What a method has learned of somebody else's model: a piece per parameter, counted in tasks and steps."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from rwalk.errors import InputError
from rwalk.guard import io as files
from rwalk.guard import watch
from rwalk.guard.importance import measure
from rwalk.guard.select import some
from rwalk.guard.state import sharded as shards
from rwalk.guard.state.lora import Target
from rwalk.guard.state.parameter import (
    Form,
    ParameterState,
    Precision,
    is_trained,
    restored,
    successor,
    whole_state,
)
from rwalk.guard.state.quantized import storage_of
from rwalk.guard.state.sharded import Group
from rwalk.guard.step.dispatch import Batches
from rwalk.methods import Method
from rwalk.methods.base import Ranges

ParameterStates = Mapping[nn.Parameter, ParameterState | None]  # None: the optimizer's, but not guarded


class GuardState:
    """The state of a guard, whichever optimizer it follows.

    method  with the λ of this moment
    dtype, offload  see `Form`
    """

    def __init__(
        self,
        method: Method,
        dtype: Precision | None,
        offload: torch.device | None,
    ) -> None:
        self.method = method
        self.pieces: ParameterStates = {}
        self.batches = Batches(lambda: self.guarded)
        self.tasks = 0  # consolidated so far
        self.steps = 0  # observed in the current task
        self._form = Form(dtype, offload, lambda: moment(self.tasks, self.steps))

    @property
    def guarded(self) -> list[ParameterState]:
        return list(dict.fromkeys(piece for piece in self.pieces.values() if piece))

    @property
    def started(self) -> list[ParameterState]:
        """The pieces that ever had a gradient; the others hold no memory."""
        return [piece for piece in self.guarded if piece.started]

    def holds(self) -> bool:
        """Whether anything pulls."""
        return any(self.method.springs(piece.state) for piece in self.started)

    def matched(self, chosen: Mapping[str, Target], optimizer: Optimizer) -> ParameterStates:
        """The pieces of these parameters; they may have been replaced, have grown or be new."""
        held = {parameter for group in optimizer.param_groups for parameter in group["params"]}
        pieces: dict[nn.Parameter, ParameterState | None] = {}
        known = {piece.name: piece for piece in self.guarded}
        for name, target in chosen.items():
            if isinstance(target, Tensor) and target.is_complex():
                raise InputError(f"{name} is complex, and importance is of real numbers: exclude it by params=")
            piece = known.pop(name, None) or ParameterState(name, storage_of(name, target, self._form))
            piece = successor(piece, target, self.method)
            pieces |= dict.fromkeys(piece.storage.trained, piece)
        if held.isdisjoint(pieces):
            raise InputError(
                f"the optimizer holds none of the {len(chosen)} parameters to guard ({some(chosen)}): "
                "make it from the parameters of this very model, then guard.attach(optimizer)"
            )
        self.batches.forget()
        lost = [name for name, piece in known.items() if piece.started]
        if lost:
            watch.warn(
                f"{some(lost)} left the model: its importance is gone; keep the module in the model to keep it"
            )
        return pieces | {parameter: None for parameter in held if parameter not in pieces}

    def follow(self, pieces: ParameterStates) -> bool:
        """Take these parameter states from here on; returns whether adapters were replaced since the last task."""
        before = {piece.name: piece for piece in self.started}
        after = {piece.name: piece for piece in pieces.values() if piece}
        anew = [name for name in before if name in after and _is_adapted_anew(before[name], after[name])]
        if anew and self.steps:
            raise InputError(
                f"the adapter of {some(anew)} was replaced in the middle of a task: guard.consolidate() first"
            )
        self.pieces = pieces
        if anew:
            warn_if_moved(self, "merge an adapter (merge_and_unload) before you make another")
        return bool(anew)

    # ── a step, a task ────────────────────────────────────────────────────────────────────────────────────────

    def stepped(self) -> None:
        """A step was observed, piece by piece."""
        self.steps += 1
        if self.method.window and self.steps % self.method.window == 0:
            self._score()

    def _score(self) -> None:
        if self.method.window:
            for batch in self.batches.of(self.started):
                batch.score(self.method)

    def consolidate(self, fishers: Mapping[ParameterState, Tensor]) -> None:
        """A task ended; `fishers` are those of a pass over its data, or none."""
        self._score()  # what is left of the last window; the ranges must see it
        self.batches.forget()
        ranges = self._ranges(fishers.values())
        # A parameter without a gradient in this task, such as an unused head, keeps the importance it has.
        for piece in fishers or [piece for piece in self.started if piece.used]:
            piece.consolidate(self.method, fishers.get(piece), ranges)
        self.tasks += 1
        self.steps = 0

    def begin(self, fishers: Mapping[ParameterState, Tensor]) -> None:
        """Of a model that was trained elsewhere nothing is known but its Fisher: that is its first task."""
        for piece, fisher in fishers.items():
            if not piece.started:
                piece.start(self.method)
            piece.begin(self.method, fisher)
        for piece in self.started:
            piece.used = True
        self.consolidate(fishers)

    @contextmanager
    def moved(self) -> Iterator[None]:
        """Within this, weights are moved outside of the optimizer's steps: no method counts that as its path."""
        where = {piece: piece.storage.theta().clone() for piece in self.started if "origin" in piece.state}
        yield
        for piece, before in where.items():
            piece.moved(self.method, before)

    def _ranges(self, fishers: Iterable[Tensor]) -> Ranges:
        """Extrema of the vectors to normalise, over the whole network; and a look at all that was measured."""
        measured = measure.all_of_it(self.guarded, self.method, fishers)
        if not measured.finite:
            raise watch.not_finite("a gradient of this task was not finite, so what it measured is not either")
        if measured.penalty == 0 and self.steps and self.holds():
            watch.warn(
                "the penalty stayed exactly 0 through the whole task, so nothing was protected: set lam above 0, "
                "and let params= select parameters that every task trains"
            )
        return measured.ranges

    def penalty(self) -> float:
        """The penalty's value now; where parameters are sharded, all ranks must ask for it."""
        costs: dict[tuple[Group, ...], float] = {}
        for piece in self.started:
            groups = shards.groups(piece.parameter)
            costs[groups] = costs.get(groups, 0.0) + measure.cost(piece, self.method)
        return sum(measure.reduced([cost], groups, "SUM")[0] for groups, cost in costs.items())

    # ── files ─────────────────────────────────────────────────────────────────────────────────────────────────

    def state_dict(self) -> dict[str, Any]:
        tensors = {
            f"{vector}/{piece.name}": tensor
            for piece in self.started
            for vector, tensor in whole_state(piece).items()
        }
        method = files.description(self.method)
        state = {"method": method, "tasks": self.tasks, "steps": self.steps, "tensors": tensors}
        unused = [piece.name for piece in self.started if self.steps and not piece.used]
        return {**state, "unused": unused} if unused else state

    def load(self, state: Mapping[str, Any], vectors: files.Vectors) -> None:
        """Go on from a state whose vectors were checked."""
        self.batches.forget()
        pieces = {piece.name: piece for piece in self.guarded}
        loaded = [
            restored(piece := pieces[name], saved, piece.storage.product or piece.parameter, self.method)
            for name, saved in vectors.items()
        ]
        self.pieces = {**self.pieces, **{each: piece for piece in loaded for each in piece.storage.trained}}
        for piece in loaded:
            piece.used = bool(state["steps"]) and piece.name not in state.get("unused", ())
        self.tasks, self.steps = state["tasks"], state["steps"]
        free = [p.name for p in self.guarded if is_trained(p) and p.name not in vectors]
        if vectors and free:
            watch.warn(f"nothing was saved for {some(free)}: they start free")
        warn_if_moved(
            self, "load its weights before the guard's, or it will be pulled towards weights it never had"
        )


def moment(tasks: int, steps: int) -> int:
    """Another number in every step, the same again in a run that was resumed."""
    return tasks * 1_000_003 + steps


def warn_if_moved(learned: GuardState, otherwise: str) -> None:
    """Between two tasks a model is where the last one left it."""
    moved = [piece.name for piece in learned.started if not measure.is_at_anchor(piece, learned.method)]
    if learned.steps == 0 and moved:
        watch.warn(f"the model is not where its last task left it ({some(moved)}): {otherwise}")


def _is_adapted_anew(before: ParameterState, after: ParameterState) -> bool:
    """Whether a weight has an adapter that it did not have, or lost one."""
    return before is not after and (before.storage.product or after.storage.product) is not None
