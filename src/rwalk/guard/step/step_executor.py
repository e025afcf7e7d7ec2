"""The executor: runs the equations of a guarded step (`equations`) on all parameters of a kind.

A plain state is used where it lies, parameter by parameter. Parameters that are narrower than the equations are
widened, and an encoded state is decoded and encoded chunk by chunk. On CUDA generated kernels (`kernels`) do all
of it in one pass. Nothing in a step waits for the device.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from rwalk import private_torch
from rwalk.errors import InputError
from rwalk.guard.state.parameter import ParameterState, Piece
from rwalk.guard.state.quantized import EncodedState, Lazy
from rwalk.guard.state.sharded import is_sharded, like, local
from rwalk.guard.step import kernels
from rwalk.guard.step.equations import AFTER, BEFORE, SCORE, TAKE_OUT, Phase, Plan, planned
from rwalk.methods.method import Method

Pulls = Mapping[nn.Parameter, Tensor]
Columns = Mapping[str, Sequence[Tensor]]  # by name, a tensor for each parameter
REMEMBERED = 16  # divisions into batches: which parameters have gradients may vary from step to step


class GradientSwap:
    """For the length of a step, the optimizer reads other gradients than the task's.

    The task's own are put aside untouched, because they may be views into DistributedDataParallel's buckets.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], sharded: bool = False) -> None:
        self._parameters, self._sharded = parameters, sharded
        self.task: list[Any] = []
        for parameter in parameters:
            self.task.append(parameter.grad)
        self._given: Sequence[Tensor] = ()
        self._versions: list[int] = []  # torch's counts of changes

    def give(self, given: Sequence[Tensor]) -> None:
        """Let the optimizer read these; if gradients are sharded, the part of this rank."""
        for parameter, task, new in zip(self._parameters, self.task, given, strict=True):
            if self._sharded:
                parameter.grad = like(new, task)
            elif new is not task:
                parameter.grad = new
        self.watch(given)

    def watch(self, given: Sequence[Tensor]) -> None:
        """Remember that these were given, and how often each was changed so far."""
        self._given = given
        for each in given:
            self._versions.append(each._version)

    def changed(self) -> list[int]:
        """Which gradients were zeroed, added to or replaced since they were given: those are the user's now."""
        found = []
        for i, given in enumerate(self._given):
            here = self._parameters[i].grad
            there = here is not None and local(here).data_ptr() == given.data_ptr()
            if not there or given._version != self._versions[i]:
                found.append(i)
        return found

    def give_back(self, but: Sequence[int] = ()) -> None:
        """Restore the task's gradients."""
        if self._given:
            for i, task in enumerate(self.task):
                if i not in but:
                    self._parameters[i].grad = task
        self._given = ()


class _InStep(NamedTuple):
    """A batch between the two halves of a step."""

    plan: Plan
    swap: GradientSwap
    columns: dict[str, Sequence[Tensor]]  # all but θ


class Batch:
    """Parameters of a kind, whose steps are executed together.

    An encoded state can do with one vector less: if θ before the step is remembered anyway, the pull is added to
    the task's own gradients and subtracted again after the step. That changes gradients by no more than rounding.
    Gradients that are views into a bucket are never written to.
    """

    def __init__(self, states: Sequence[ParameterState]) -> None:
        self._states = list(states)
        self._first = self._states[0]  # all are alike in this: where they lie, and how precise they are
        self._parameters = [state.parameter for state in states]
        self._sharded = is_sharded(self._parameters[0])
        for state in self._states:
            state.relocate()
        self._marks = [state.mark for state in self._states]
        self._home = self._first.home
        self._stiffest: tuple[Method, float] | None = None
        self._step: _InStep | None = None
        self._thetas: list[Tensor] = []
        self._addresses: list[int] = []
        self._kept_scratch: dict[str, Sequence[Tensor]] = {}
        self._done = 0  # pieces whose results were written, in the phase that ran last
        self._locate()

    def is_current(self) -> bool:
        """Whether the state is still that of its parameters, where they are now."""
        if self._home != self._parameters[0].device:
            for state in self._states:
                state.relocate()
        for state, mark in zip(self._states, self._marks, strict=True):
            if state.mark is not mark:
                return False
        self._locate()
        return True

    # ── a step ────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def steps_late(self) -> bool:
        """Whether the step in progress moves parameters after the optimizer."""
        return self._step is not None and self._step.plan.late

    def before_step(self, method: Method, lr: float, size: float | None, pulls: Pulls, copies: bool) -> None:
        """Run the equations before the optimizer's step, and swap the gradients.

        Args:
            lr: the learning rate.
            size: see `penalty.step_size`.
            pulls: gradients from elsewhere to add.
            copies: whether the optimizer needs gradients of its own, because it may change them.
        """
        if self._stiffest is None or self._stiffest[0] is not method:
            self._stiffest = method, max(state.stiffest(method) for state in self._states)
        plan = planned(method, bool(method.springs(self._first.vectors)), lr, size, self._stiffest[1])
        swap = GradientSwap(self._parameters, self._sharded)
        own: Sequence[Tensor] = [local(each) for each in swap.task] if self._sharded else swap.task
        if plan.pulls and not copies and not pulls and self._may_pull_in_place(method, own):
            plan = plan._replace(in_place=True)
        columns = {"grad": own}
        self._step = _InStep(plan, swap, columns)
        remembers = "move" in method.wants
        if remembers:
            columns["before"] = self._scratch("before")
        if plan.pulls and not plan.in_place:
            columns["given"] = self._scratch("given")
        if plan.pulls or remembers:
            self._run(BEFORE, plan, columns)
        given = columns.get("given")
        if pulls:
            given = self._added(own if given is None else given, pulls)
        elif given is None and copies and method.wants:
            given = [each.clone() for each in own]
        if given is not None:
            swap.give(given)
        elif plan.in_place:
            swap.watch(own)

    def after_step(self) -> None:
        """Give the gradients back, and run the equations after the optimizer's step."""
        assert self._step is not None
        plan, swap, columns = self._step
        self._step = None
        self._locate()
        if plan.in_place:
            self._run(TAKE_OUT, plan, columns)
        swap.give_back()
        if plan.late or plan.method.wants:
            self._run(AFTER, plan, columns)
        for state in self._states:
            state.used = True

    def abandon(self, at_once: bool) -> None:
        """The step failed: give its gradients back, and observe nothing.

        Unless this is done `at_once`, gradients may have been zeroed or added to since: those are left alone.
        """
        step, self._step = self._step, None
        if step is None:
            return
        plan, swap, columns = step
        changed = [] if at_once else swap.changed()
        if not plan.in_place:
            swap.give_back(but=changed)
            for i in changed:
                self._states[i].free_scratch()
        elif not changed and self._marks == [state.mark for state in self._states]:
            self._run(TAKE_OUT, plan, columns, self._done)

    def score(self, method: Method) -> None:
        """End a window of steps."""
        self._run(SCORE, Plan(method), {})

    def _run(self, phase: Phase, plan: Plan, columns: Columns, only: int | None = None) -> None:
        """Run a phase, by a kernel if there is one for it; `only` so many pieces."""
        if only is None and self._kernels is not None and self._kernels.run(phase, plan, columns):
            self._done = len(self._pieces)
            return
        self._done = 0
        self._run_eagerly(phase, plan, columns, only)

    def _run_eagerly(self, phase: Phase, plan: Plan, columns: Columns, only: int | None) -> None:
        lists = {**columns, "theta": self._thetas}
        for i, piece in self._pieces[:only]:
            if self._is_direct:
                state = dict(self._vectors[i])
                phase.equations(plan, {name: tensors[i] for name, tensors in lists.items()}, state)
                for name, vector in state.items():
                    if vector is not self._vectors[i].get(name):
                        _check_is_known(name, self._vectors[i])
                        self._vectors[i][name].copy_(vector)
            else:
                self._run_widened(phase, plan, lists, i, piece)
            self._done += 1

    def _run_widened(self, phase: Phase, plan: Plan, lists: Columns, i: int, piece: Piece) -> None:
        """With copies of numbers that are narrower than the equations need them, or encoded."""
        at = Lazy(lists, lambda name: self._first.wide(piece.of(lists[name][i])))
        state = piece.opened()
        phase.equations(plan, at, state)
        for name, column in at.changed().items():
            if name in phase.results:
                there = lists[name][i]
                piece.put(piece.narrowed(column, there.dtype) if name == "theta" else column, there)
        for name in state:
            _check_is_known(name, self._states[i].vectors)
        piece.close(state)

    # ── where everything lies ─────────────────────────────────────────────────────────────────────────────────

    def _locate(self) -> None:
        """Find the parameters' numbers, which may have been moved, or replaced by the optimizer."""
        addresses = []
        for parameter in self._parameters:
            addresses.append((local(parameter) if self._sharded else parameter).data_ptr())
        if addresses == self._addresses:
            return
        self._addresses, self._kept_scratch = addresses, {}
        self._thetas = thetas = [local(parameter.detach()) for parameter in self._parameters]
        encoded = isinstance(self._first, EncodedState)
        total = sum(each.numel() for each in thetas)
        self._pieces = [(i, piece) for i, state in enumerate(self._states) for piece in state.pieces(total)]
        self._is_direct = not encoded and self._first.wide(thetas[0]) is thetas[0]
        self._vectors = [] if encoded else [piece.opened() for _, piece in self._pieces]
        self._kernels = kernels.of_batch(self._states, thetas)

    def _scratch(self, name: str) -> Sequence[Tensor]:
        """Memory like the parameters'; for kernels, parts of one vector, which is a single allocation."""
        thetas = self._thetas
        if self._home.type == "cpu" and not isinstance(self._first, EncodedState):  # kept from step to step
            if name not in self._kept_scratch:
                self._kept_scratch[name] = [state.scratch(name) for state in self._states]
            return self._kept_scratch[name]
        if self._kernels is None:
            return list(map(torch.empty_like, thetas))
        flat = torch.empty(sum(each.numel() for each in thetas), dtype=thetas[0].dtype, device=self._home)
        if all(each.is_contiguous() for each in thetas):
            return private_torch.unflattened(flat, thetas)
        parts = flat.split([each.numel() for each in thetas])
        return [
            part.as_strided(each.shape, each.stride()) if kernels.is_dense(each) else part.view(each.shape)
            for part, each in zip(parts, thetas, strict=True)
        ]

    def _may_pull_in_place(self, method: Method, own: Sequence[Tensor]) -> bool:
        if "move" not in method.wants or not isinstance(self._first, EncodedState):
            return False
        for grad, theta in zip(own, self._thetas, strict=True):
            alone = self._sharded or grad.untyped_storage().nbytes() == grad.nbytes
            if not (alone and grad.stride() == theta.stride() and grad.dtype.itemsize >= 4):
                return False
        return True

    def _added(self, gradients: Sequence[Tensor], pulls: Pulls) -> list[Tensor]:
        """These gradients, with the pulls from elsewhere added to those that have one."""
        found = list(gradients)
        which = [i for i, parameter in enumerate(self._parameters) if parameter in pulls]
        if which:
            more = [pulls[self._parameters[i]].to(gradients[i].dtype) for i in which]
            summed = private_torch.foreach("add", [gradients[i] for i in which], more)
            for i, each in zip(which, summed, strict=True):
                found[i] = each
        return found


def _check_is_known(name: str, kept: Mapping[str, object]) -> None:
    if name not in kept:
        raise InputError(f"a method may make vectors in start and consolidate, not {name!r} in a step")


class Batches:
    """The parameters of a guard, divided into batches: once, and again when any of them has changed."""

    def __init__(self) -> None:
        self._known: dict[tuple[ParameterState, ...], list[Batch]] = {}

    def of(self, states: Sequence[ParameterState]) -> list[Batch]:
        key = tuple(states)
        known = self._known.get(key)
        stale = False
        for batch in known or ():
            stale = stale or not batch.is_current()
        if stale or len(self._known) > REMEMBERED:
            self._known.clear()  # along with vectors that nothing else may hold
        if known is None or stale:
            kinds: dict[object, list[ParameterState]] = {}
            for state in states:
                parameter = state.parameter
                kind = (parameter.dtype, parameter.device, is_sharded(parameter), tuple(state.vectors))
                kinds.setdefault(kind, []).append(state)
            known = self._known[key] = [Batch(alike) for alike in kinds.values()]
        return known

    def forget(self) -> None:
        """Hold no memory until the next step."""
        for state in {state for key in self._known for state in key}:
            state.free_scratch()
        self._known.clear()
