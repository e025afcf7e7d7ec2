"""The executor: runs the equations of a guarded step (`equations`) on all parameters that are of a kind.

Backends differ only in how they supply columns and state. A plain state is used where it lies: on a CPU parameter
by parameter, in scratch memory that is kept from step to step; on an accelerator as tensor lists, so that a step
costs a few dozen kernels and not thousands. A quantized or offloaded state is decoded and encoded chunk by chunk.
On CUDA kernels generated from the equations (`generated`) do either in one pass. Nothing in a step waits for the
device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from rwalk import private_torch
from rwalk.errors import InputError
from rwalk.guard.state import codec
from rwalk.guard.state.parameter import ParameterState, Storage
from rwalk.guard.state.quantized import Chunk, ChunkedStorage, Coming, Lazy, chunks_of, transfer_of
from rwalk.guard.state.sharded import is_sharded, like, local
from rwalk.guard.step import generated
from rwalk.guard.step.equations import AFTER, BEFORE, SCORE, TAKE_OUT, Phase, Plan, planned
from rwalk.guard.step.tensor_list import apart, together
from rwalk.methods.base import Method, State

Pulls = Mapping[nn.Parameter, Tensor]


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
        """Let the optimizer read these: of sharded gradients, the part of this rank."""
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

    def give_back(self) -> None:
        if self._given:
            for parameter, task in zip(self._parameters, self.task, strict=True):
                parameter.grad = task
        self._given = ()

    def lost(self) -> list[int]:
        """Which gradients were zeroed, added to or replaced since they were given: those are the user's now."""
        found = []
        for i, given in enumerate(self._given):
            here = self._parameters[i].grad
            there = here is not None and local(here).data_ptr() == given.data_ptr()
            if not there or given._version != self._versions[i]:
                found.append(i)
        return found

    def give_back_unless_lost(self) -> list[int]:
        """The gradients as they were, but for those that are lost, which are returned."""
        lost = self.lost()
        for i in range(len(self._given)):
            if i not in lost:
                self._parameters[i].grad = self.task[i]
        self._given = ()
        return lost


class Scratch:
    """Memory for all numbers of a batch of parameters: a flat vector, and views of it that are like them."""

    def __init__(self, flat: Tensor, shaped: Callable[[Tensor], list[Tensor]]) -> None:
        self.flat, self._shaped = flat, shaped
        self._tensors: list[Tensor] = []

    @property
    def tensors(self) -> list[Tensor]:
        """Made when they are needed: kernels do without."""
        self._tensors = self._tensors or self._shaped(self.flat)
        return self._tensors


Column = list[Tensor] | Scratch


class _InStep(NamedTuple):
    """A batch between the two halves of a step."""

    plan: Plan
    swap: GradientSwap
    columns: dict[str, Column]  # all but θ


class Batch:
    """Parameters of a kind, whose steps are executed together."""

    def __init__(self, pieces: Sequence[ParameterState], everyone: Iterable[ParameterState] = ()) -> None:
        self._pieces = list(pieces)
        self._parameters = [piece.parameter for piece in pieces]
        self._storages = [piece.storage for piece in pieces]
        self._storage = self._storages[0]  # all are alike in this: where they lie, and how precise they are
        self._sharded = is_sharded(self._parameters[0])
        for storage in self._storages:
            storage.follow()
        self._marks = [storage.mark for storage in self._storages]
        self._home = self._storage.home
        self._stiffest: tuple[Method, float] | None = None
        self._step: _InStep | None = None
        self._thetas: list[Tensor] = []
        self._addresses: list[int] = []
        self._kernels: generated.Kernels | None = None
        self._done = 0  # units or chunks whose results were written, in the phase that ran last
        self._look()

    def is_current(self) -> bool:
        """Whether the state is still that of its parameters, where they are now."""
        if self._home != self._parameters[0].device:
            for storage in self._storages:
                storage.follow()
        for storage, mark in zip(self._storages, self._marks, strict=True):
            if storage.mark is not mark:
                return False
        self._look()
        return True

    # ── a step ────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def steps_late(self) -> bool:
        """Whether the step in progress moves parameters after the optimizer."""
        return self._step is not None and self._step.plan.late

    def before_step(self, method: Method, lr: float, size: float | None, pulls: Pulls, aside: bool) -> None:
        """Run the equations before the optimizer's step, and swap the gradients.

        lr     the learning rate
        size   see `penalty.step_size`
        pulls  gradients from elsewhere to add, shaped [1, *shape]
        aside  the optimizer may change gradients: it gets a copy
        """
        plan = planned(method, self._holds(method), lr, size, self._stiffness(method))
        swap = GradientSwap(self._parameters, self._sharded)
        own = [local(each) for each in swap.task] if self._sharded else swap.task
        if plan.pulls and not aside and not pulls and self._goes_in_place(method, own):
            plan = plan._replace(in_place=True)
        columns: dict[str, Any] = {"grad": own}
        self._step = _InStep(plan, swap, columns)
        remembers = "move" in method.wants
        if remembers:
            columns["before"] = self._scratch("before")
        if plan.pulls and not plan.in_place:
            columns["given"] = self._scratch("given")
        if plan.pulls or remembers:
            self._run(BEFORE, plan, columns)
        given = columns.get("given")
        if isinstance(given, Scratch):
            given = given.tensors
        if pulls:
            given = self._added(own if given is None else given, pulls)
        elif given is None and aside and method.wants:
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
        self._look()
        if plan.in_place:
            self._run(TAKE_OUT, plan, columns)
        swap.give_back()
        if plan.late or plan.method.wants:
            self._run(AFTER, plan, columns)
        for piece in self._pieces:
            piece.used = True

    def abandon(self, at_once: bool) -> None:
        """The step failed: its gradients are given back, and nothing is observed.

        Unless this is done `at_once`, gradients may have been zeroed or added to since: those are left alone.
        """
        step, self._step = self._step, None
        if step is None:
            return
        plan, swap, columns = step
        if plan.in_place:
            unchanged = self._marks == [storage.mark for storage in self._storages]
            if unchanged and (at_once or not swap.lost()):
                self._run(TAKE_OUT, plan, columns, self._done)
        elif at_once:
            swap.give_back()
        else:
            for i in swap.give_back_unless_lost():
                self._pieces[i].free_scratch()

    def score(self, method: Method) -> None:
        """A window of steps ended."""
        self._run(SCORE, Plan(method), {})

    def _run(self, phase: Phase, plan: Plan, columns: Mapping[str, Any], only: int | None = None) -> None:
        """One phase, by a kernel where there is one for it; `only` so many units or chunks."""
        if only is None and self._kernels is not None and self._kernels.run(phase, plan, columns):
            self._done = len(self)
            return
        self._done = 0
        self._eager(phase, plan, columns, len(self) if only is None else only)

    # ── backends ────────────────────────────────────────────────────────────────

    def __len__(self) -> int:
        """The number of units or chunks."""
        raise NotImplementedError

    def _eager(self, phase: Phase, plan: Plan, columns: Mapping[str, Column], count: int) -> None:
        """Run a phase without a kernel, on so many units or chunks; results are kept."""
        raise NotImplementedError

    def _look_again(self) -> None:
        """The parameters' numbers lie elsewhere than before."""

    def _goes_in_place(self, method: Method, own: Sequence[Tensor]) -> bool:
        return False

    # ── shared by the backends ─────────────────────────────────────────────────────────────────────────────────

    def _look(self) -> None:
        """Find the parameters' numbers, which may have been moved, or replaced by the optimizer."""
        addresses = []
        for parameter in self._parameters:
            addresses.append((local(parameter) if self._sharded else parameter).data_ptr())
        if addresses != self._addresses:
            self._addresses = addresses
            self._thetas = [local(parameter.detach()) for parameter in self._parameters]
            self._look_again()

    def _holds(self, method: Method) -> bool:
        return bool(method.springs(self._storage.state))

    def _stiffness(self, method: Method) -> float:
        if self._stiffest is None or self._stiffest[0] is not method:
            self._stiffest = method, max(piece.stiffest(method) for piece in self._pieces)
        return self._stiffest[1]

    def _scratch(self, name: str) -> Column:
        """One flat vector, in which a kernel needs no addresses; without a kernel, a tensor for each parameter."""
        if self._kernels is None:
            return list(map(torch.empty_like, self._thetas))
        first, size = self._thetas[0], sum(each.numel() for each in self._thetas)
        return Scratch(torch.empty(size, dtype=first.dtype, device=first.device), self._shaped)

    def _shaped(self, flat: Tensor) -> list[Tensor]:
        """Parts of a flat vector, each laid out like its parameter."""
        if all(each.is_contiguous() for each in self._thetas):
            return private_torch.unflattened(flat, self._thetas)
        parts = flat.split([each.numel() for each in self._thetas])
        pairs = zip(parts, self._thetas, strict=True)
        return [part.as_strided(each.shape, each.stride()) if generated.is_dense(each) else part.view(each.shape)
                for part, each in pairs]  # fmt: skip

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

    def __init__(self, pieces: Sequence[ParameterState], everyone: Iterable[ParameterState] = ()) -> None:
        most = max((local(piece.parameter.detach()).numel() for piece in everyone), default=0) // 2
        self._units: list[tuple[int, int, Any, State]] = []  # from, to, θ, state
        self._spans = list(_spans(pieces, most if launches(pieces[0].storage.home) else 0))
        self._kept_scratch: dict[str, list[Tensor]] = {}
        super().__init__(pieces)

    def __len__(self) -> int:
        return len(self._units)

    def _look_again(self) -> None:
        self._kept_scratch = {}
        self._units = [
            (
                a,
                b,
                together(self._thetas[a:b]),
                {name: together([each.state[name][0] for each in self._storages[a:b]])
                 for name in self._storage.state},
            )
            for a, b in self._spans
        ]  # fmt: skip
        wide = self._storage.wide
        _, _, theta, state = self._units[0]
        self._is_wide = wide(theta) is theta and all(wide(each) is each for each in state.values())
        self._kernels = generated.plain_kernels(self._storages, self._thetas)

    def _scratch(self, name: str) -> Column:
        if name not in self._kept_scratch:
            if launches(self._home):
                return super()._scratch(name)
            self._kept_scratch[name] = [piece.scratch(name) for piece in self._pieces]
        return self._kept_scratch[name]

    def _eager(self, phase: Phase, plan: Plan, columns: Mapping[str, Column], count: int) -> None:
        lists = {}
        for name, column in columns.items():
            lists[name] = column.tensors if isinstance(column, Scratch) else column
        for a, b, theta, kept in self._units[:count]:
            at = {"theta": theta}
            for name, tensors in lists.items():
                at[name] = tensors[a] if b == a + 1 else together(tensors[a:b])
            state: State = dict(kept)
            if self._is_wide:
                phase.equations(plan, at, state)
            else:
                with self._widened(phase, at, state, self._storages[a:b]) as (wide_at, wide_state):
                    phase.equations(plan, wide_at, wide_state)
            for name, vector in state.items():
                if vector is not kept.get(name):
                    _check_is_known(name, kept)
                    kept[name].copy_(vector)

    @contextmanager
    def _widened(
        self, phase: Phase, at: dict[str, Any], state: State, storages: Sequence[Storage]
    ) -> Iterator[tuple[Lazy, State]]:
        """Numbers that are narrower than the equations need them: copies, which are rounded afterwards."""
        wide = self._storage.wide
        wide_at = Lazy(at, lambda name: wide(at[name]))
        wide_state = Lazy(state, lambda name: wide(state[name]))
        yield wide_at, cast(State, wide_state)
        for name, column in wide_at.changed().items():
            if name == "theta" and name in phase.results:
                for storage, here, new in zip(storages, apart(at[name]), apart(column), strict=True):
                    here.copy_(storage.narrowed(new, here))
            elif name in phase.results:
                at[name].copy_(column)
        for name, vector in wide_state.changed().items():
            _check_is_known(name, state)
            state[name].copy_(vector)


class ChunkedBatch(Batch):
    """A state that is decoded and encoded chunk by chunk.

    If θ before the step is remembered anyway, the pull is added to the task's own gradients and subtracted
    again after the step: that needs one vector less, and changes gradients by no more than rounding. Gradients
    that are views into a bucket are never written to.
    """

    def __init__(self, pieces: Sequence[ParameterState], everyone: Iterable[ParameterState] = ()) -> None:
        self._asked: dict[str, tuple[str, ...]] = {}  # by phase, which vectors were read the last time
        self._at = {id(piece.storage): i for i, piece in enumerate(pieces)}
        super().__init__(pieces)

    def __len__(self) -> int:
        return len(self._chunks)

    def _look_again(self) -> None:
        storages = cast(list[ChunkedStorage], self._storages)
        self._chunks = list(chunks_of(storages))
        self._transfer = transfer_of(storages[0])
        self._kernels = generated.chunked_kernels(storages, self._thetas)

    def _goes_in_place(self, method: Method, own: Sequence[Tensor]) -> bool:
        if "move" not in method.wants:
            return False
        for grad, theta in zip(own, self._thetas, strict=True):
            alone = self._sharded or grad.untyped_storage().nbytes() == grad.nbytes
            if not (alone and grad.stride() == theta.stride() and grad.dtype.itemsize >= 4):
                return False
        return True

    def _eager(self, phase: Phase, plan: Plan, columns: Mapping[str, Column], count: int) -> None:
        names, asked = self._asked.get(phase.name, ()), set[str]()
        lists = {name: each.tensors if isinstance(each, Scratch) else each for name, each in columns.items()}
        lists["theta"] = self._thetas
        chunks = self._chunks[:count]
        self._transfer.begin()
        coming: Coming | None = self._transfer.ahead(chunks[0], names) if chunks else None
        for chunk, following in zip(chunks, [*chunks[1:], None], strict=bool(chunks)):
            came = coming
            coming = None if following is None else self._transfer.ahead(following, names)
            fetched = self._transfer.arrived(came)
            kept = chunk.storage.kept
            at = Lazy(lists, partial(self._column, chunk, lists))
            state = Lazy(kept, lambda name: chunk.decoded(name, fetched.get(name)))  # noqa: B023 - used at once
            phase.equations(plan, at, cast(State, state))
            asked.update(state.asked)
            for name, vector in at.changed().items():
                if name in phase.results:
                    self._write(chunk, name, vector, self._of(chunk, lists[name]))
            for name, vector in state.changed().items():
                _check_is_known(name, kept)
                self._transfer.back(chunk, name, chunk.encoded(name, vector))
            self._done += 1
        self._transfer.end()
        self._asked[phase.name] = tuple(sorted(asked))

    def _column(self, chunk: Chunk, lists: Mapping[str, Sequence[Tensor]], name: str) -> Tensor:
        return self._storage.wide(chunk.gathered(self._of(chunk, lists[name])))

    def _write(self, chunk: Chunk, name: str, vector: Tensor, tensors: Sequence[Tensor]) -> None:
        if name == "theta" and vector.dtype != tensors[0].dtype:
            vector = codec.rounded(vector, tensors[0].dtype, chunk.draws("theta").view(1, -1))
        chunk.write(vector, tensors)

    def _of(self, chunk: Chunk, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Those of a chunk's spans, of tensors in the order of the parameters."""
        return [tensors[self._at[id(storage)]] for storage, _ in chunk.spans]


def _check_is_known(name: str, kept: Mapping[str, object]) -> None:
    if name not in kept:
        raise InputError(f"a method may make vectors in start and consolidate, not {name!r} in a step")


def _spans(pieces: Sequence[ParameterState], most: int) -> Iterator[tuple[int, int]]:
    """Units of so many numbers at most, if one parameter does not have more by itself.

    With half as many as the largest parameter has, passing copies of a unit are no more than those of that one.
    """
    start, filled = 0, 0
    for i, piece in enumerate(pieces):
        size = local(piece.parameter.detach()).numel()
        if i > start and filled + size > most:
            yield start, i
            start, filled = i, 0
        filled += size
    yield start, len(pieces)
