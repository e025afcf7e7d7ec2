"""The executor: runs the equations of a guarded step (`equations`) on all parameters of a kind.

Batches differ only in how they supply columns and state. A plain state is used where it lies: on a CPU parameter
by parameter, in scratch memory that is kept from step to step. On an accelerator its tensors form tensor lists, so
that a step costs a few dozen kernels and not thousands. An encoded state is decoded and encoded chunk by chunk. On
CUDA generated kernels (`kernels`) do either in one pass. Nothing in a step waits for the device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from rwalk import private_torch
from rwalk.errors import InputError
from rwalk.guard.state import codec
from rwalk.guard.state.parameter import ParameterState
from rwalk.guard.state.quantized import Chunk, Coming, EncodedState, Lazy, chunks_of, transfer_of
from rwalk.guard.state.sharded import is_sharded, like, local
from rwalk.guard.step import kernels
from rwalk.guard.step.equations import AFTER, BEFORE, SCORE, TAKE_OUT, Phase, Plan, planned
from rwalk.guard.step.tensor_list import apart, together
from rwalk.methods.method import Method, State

Pulls = Mapping[nn.Parameter, Tensor]
Columns = Mapping[str, Sequence[Tensor]]  # by name, a tensor for each parameter
REMEMBERED = 16  # divisions into batches: which parameters have gradients may vary from step to step


def launches(device: torch.device) -> bool:
    """Whether operations are kernels to be launched, which takes longer than most of them do."""
    return device.type != "cpu"


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
    """Parameters of a kind, whose steps are executed together."""

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
        self._kernels: kernels.Kernels | None = None
        self._done = 0  # units or chunks whose results were written, in the phase that ran last
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
            pulls: gradients from elsewhere to add, shaped [1, *shape].
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
            given = apart(together(own).clone())
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
        """Run a phase, by a kernel if there is one for it; `only` so many units or chunks."""
        if only is None and self._kernels is not None and self._kernels.run(phase, plan, columns):
            self._done = len(self)
            return
        self._done = 0
        self._eager(phase, plan, columns, len(self) if only is None else only)

    # ── replaced by the two kinds of batches ─────────────────────────────────────────────────────────────────

    def __len__(self) -> int:
        """The number of units or chunks."""
        raise NotImplementedError

    def _eager(self, phase: Phase, plan: Plan, columns: Columns, count: int) -> None:
        """Run a phase without a kernel, on so many units or chunks."""
        raise NotImplementedError

    def _located(self) -> None:
        """The parameters' numbers lie elsewhere than before."""

    def _may_pull_in_place(self, method: Method, own: Sequence[Tensor]) -> bool:
        return False

    # ── shared ────────────────────────────────────────────────────────────────────────────────────────────────

    def _locate(self) -> None:
        """Find the parameters' numbers, which may have been moved, or replaced by the optimizer."""
        addresses = []
        for parameter in self._parameters:
            addresses.append((local(parameter) if self._sharded else parameter).data_ptr())
        if addresses != self._addresses:
            self._addresses = addresses
            self._thetas = [local(parameter.detach()) for parameter in self._parameters]
            self._located()

    def _scratch(self, name: str) -> Sequence[Tensor]:
        """Memory like the parameters'; for kernels, parts of one vector, which takes one allocation."""
        if self._kernels is None:
            return list(map(torch.empty_like, self._thetas))
        flat = torch.empty(
            sum(each.numel() for each in self._thetas), dtype=self._thetas[0].dtype, device=self._home
        )
        if all(each.is_contiguous() for each in self._thetas):
            return private_torch.unflattened(flat, self._thetas)
        parts = flat.split([each.numel() for each in self._thetas])
        return [
            part.as_strided(each.shape, each.stride()) if kernels.is_dense(each) else part.view(each.shape)
            for part, each in zip(parts, self._thetas, strict=True)
        ]

    def _added(self, gradients: Sequence[Tensor], pulls: Pulls) -> list[Tensor]:
        """These gradients, with the pulls from elsewhere added to those that have one."""
        found = list(gradients)
        which = [i for i, parameter in enumerate(self._parameters) if parameter in pulls]
        if which:
            more = [pulls[self._parameters[i]][0].to(gradients[i].dtype) for i in which]
            summed = apart(together([gradients[i] for i in which]) + together(more))
            for i, each in zip(which, summed, strict=True):
                found[i] = each
        return found


class PlainBatch(Batch):
    """A plain state. Units are single parameters on a CPU, tensor lists on an accelerator.

    Tensors have the parameters' own shapes here, without the row of a network: a step goes over hundreds of them,
    and a view of each would cost more than a kernel does.
    """

    def __init__(self, states: Sequence[ParameterState], everyone: Iterable[ParameterState]) -> None:
        most = max(local(state.parameter.detach()).numel() for state in everyone) // 2
        self._units: list[tuple[int, int, Any, State]] = []  # from, to, θ, state
        self._spans = list(_spans(states, most if launches(states[0].home) else 0))
        self._kept_scratch: dict[str, list[Tensor]] = {}
        super().__init__(states)

    def __len__(self) -> int:
        return len(self._units)

    def _located(self) -> None:
        self._kept_scratch, self._units = {}, []
        for a, b in self._spans:
            vectors = {
                name: together([state.vectors[name][0] for state in self._states[a:b]])
                for name in self._first.vectors
            }
            self._units.append((a, b, together(self._thetas[a:b]), vectors))
        wide = self._first.wide
        _, _, theta, vectors = self._units[0]
        self._is_wide = wide(theta) is theta and all(wide(each) is each for each in vectors.values())
        self._kernels = kernels.for_plain(self._states, self._thetas)

    def _scratch(self, name: str) -> Sequence[Tensor]:
        if launches(self._home):
            return super()._scratch(name)
        if name not in self._kept_scratch:
            self._kept_scratch[name] = [state.scratch(name) for state in self._states]
        return self._kept_scratch[name]

    def _eager(self, phase: Phase, plan: Plan, columns: Columns, count: int) -> None:
        for a, b, theta, kept in self._units[:count]:
            at: dict[str, Any] = {"theta": theta}
            for name, tensors in columns.items():
                at[name] = tensors[a] if b == a + 1 else together(tensors[a:b])
            if not self._is_wide:
                self._eager_widened(phase, plan, at, kept, self._states[a:b])
                continue
            state = dict(kept)
            phase.equations(plan, at, state)
            for name, vector in state.items():
                if vector is not kept.get(name):
                    _check_is_known(name, kept)
                    kept[name].copy_(vector)

    def _eager_widened(
        self, phase: Phase, plan: Plan, at: dict[str, Any], kept: State, states: Sequence[ParameterState]
    ) -> None:
        """With copies of numbers that are narrower than the equations need them, which are rounded afterwards."""
        wide = self._first.wide
        wide_at = Lazy(at, lambda name: wide(at[name]))
        wide_state = Lazy(kept, lambda name: wide(kept[name]))
        phase.equations(plan, wide_at, cast(State, wide_state))
        for name, column in wide_at.changed().items():
            if name == "theta" and name in phase.results:
                for state, here, new in zip(states, apart(at[name]), apart(column), strict=True):
                    here.copy_(state.narrowed(new, here))
            elif name in phase.results:
                at[name].copy_(column)
        for name, vector in wide_state.changed().items():
            _check_is_known(name, kept)
            kept[name].copy_(vector)


class ChunkedBatch(Batch):
    """An encoded state, chunk by chunk.

    If θ before the step is remembered anyway, the pull is added to the task's own gradients and subtracted again
    after the step. That needs one vector less, and changes gradients by no more than rounding. Gradients that are
    views into a bucket are never written to.
    """

    def __init__(self, states: Sequence[EncodedState]) -> None:
        self._asked: dict[str, tuple[str, ...]] = {}  # by phase, which vectors were read the last time
        self._encoded = states
        self._at = {id(state): i for i, state in enumerate(states)}
        super().__init__(states)

    def __len__(self) -> int:
        return len(self._chunks)

    def _located(self) -> None:
        self._chunks = list(chunks_of(self._encoded))
        self._transfer = transfer_of(self._encoded[0])
        self._kernels = kernels.for_encoded(self._encoded, self._thetas)

    def _may_pull_in_place(self, method: Method, own: Sequence[Tensor]) -> bool:
        if "move" not in method.wants:
            return False
        for grad, theta in zip(own, self._thetas, strict=True):
            alone = self._sharded or grad.untyped_storage().nbytes() == grad.nbytes
            if not (alone and grad.stride() == theta.stride() and grad.dtype.itemsize >= 4):
                return False
        return True

    def _eager(self, phase: Phase, plan: Plan, columns: Columns, count: int) -> None:
        names, asked = self._asked.get(phase.name, ()), set[str]()
        lists = {**columns, "theta": self._thetas}
        chunks = self._chunks[:count]
        self._transfer.begin()
        coming: Coming | None = self._transfer.ahead(chunks[0], names) if chunks else None
        for chunk, next_chunk in zip(chunks, [*chunks[1:], None], strict=bool(chunks)):
            came = coming
            coming = None if next_chunk is None else self._transfer.ahead(next_chunk, names)
            at, state = self._opened(chunk, lists, self._transfer.arrived(came))
            phase.equations(plan, at, cast(State, state))
            asked.update(state.asked)
            for name, vector in at.changed().items():
                if name in phase.results:
                    if name == "theta" and vector.dtype != self._thetas[0].dtype:
                        vector = codec.rounded(vector, self._thetas[0].dtype, chunk.draws("theta").view(1, -1))
                    chunk.write(vector, self._of(chunk, lists[name]))
            for name, vector in state.changed().items():
                _check_is_known(name, chunk.first.kept)
                self._transfer.back(chunk, name, chunk.encoded(name, vector))
            self._done += 1
        self._transfer.end()
        self._asked[phase.name] = tuple(sorted(asked))

    def _opened(self, chunk: Chunk, lists: Columns, fetched: Mapping[str, Any]) -> tuple[Lazy, Lazy]:
        """The columns and the state of a chunk, each decoded when it is read."""
        columns = Lazy(lists, lambda name: self._first.wide(chunk.gathered(self._of(chunk, lists[name]))))
        return columns, Lazy(chunk.first.kept, lambda name: chunk.decoded(name, fetched.get(name)))

    def _of(self, chunk: Chunk, tensors: Sequence[Tensor]) -> list[Tensor]:
        """The tensors of a chunk's spans, of tensors in the order of the parameters."""
        return [tensors[self._at[id(state)]] for state, _ in chunk.spans]


def _check_is_known(name: str, kept: Mapping[str, object]) -> None:
    if name not in kept:
        raise InputError(f"a method may make vectors in start and consolidate, not {name!r} in a step")


def _spans(states: Sequence[ParameterState], most: int) -> Iterator[tuple[int, int]]:
    """Units of at most so many numbers; a larger parameter is a unit of its own.

    With half as many as the largest parameter has, passing copies of a unit are no more than those of that one.
    """
    start, filled = 0, 0
    for i, state in enumerate(states):
        size = local(state.parameter.detach()).numel()
        if i > start and filled + size > most:
            yield start, i
            start, filled = i, 0
        filled += size
    yield start, len(states)


class Batches:
    """The parameters of a guard, divided into batches: once, and again when any of them has changed.

    Args:
        everyone: lists all that are guarded; the largest decides how many others go together.
    """

    def __init__(self, everyone: Callable[[], Iterable[ParameterState]]) -> None:
        self._everyone = everyone
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
            known = self._known[key] = self._divided(states)
        return known

    def forget(self) -> None:
        """Hold no memory until the next step."""
        for state in {state for key in self._known for state in key}:
            state.free_scratch()
        self._known.clear()

    def _divided(self, states: Sequence[ParameterState]) -> list[Batch]:
        kinds: dict[object, list[Any]] = {}
        for state in states:
            parameter = state.parameter
            kind = (parameter.dtype, parameter.device, is_sharded(parameter), tuple(state.vectors))
            kinds.setdefault(kind, []).append(state)
        return [
            ChunkedBatch(alike) if isinstance(alike[0], EncodedState) else PlainBatch(alike, self._everyone())
            for alike in kinds.values()
        ]
