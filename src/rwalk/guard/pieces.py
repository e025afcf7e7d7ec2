"""One parameter of somebody else's model: what a method keeps for it, and how numbers get in and out.

The methods work on [R, P], elementwise. A piece is the one row of a network cut at a parameter's borders: all its
vectors are [1, *shape]. Here and in `shards`, and nowhere else, it is known that a parameter may be the shard of a
larger one (FSDP2), lie on another device than its state, be narrower than float32, have grown, or get sparse
gradients.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import Tensor, nn

from rwalk.errors import InputError
from rwalk.guard import shards
from rwalk.guard.shards import Group, is_sharded, local
from rwalk.methods.base import Method, Ranges, State


class Piece:
    """A parameter and its state.

    The equations are worked out where the state lies, in float32 at least; `storage` is the precision it is
    kept in, `offload` where, if not with the parameter. Every tensor here that is as large as the parameter
    is in `state`, `_gradient` or `_before`.
    """

    def __init__(
        self, name: str, parameter: nn.Parameter, storage: torch.dtype | None, offload: torch.device | None
    ) -> None:
        self.name = name
        self.parameter = parameter
        self.state: State = {}
        self.started = False
        self._storage = storage
        self._offload = offload
        self._stiffness: float | None = None  # of its stiffest spring; None until it is asked for
        self._rows: Tensor | None = None  # of a sparse gradient: which rows take part in the step
        self._seen: Tensor | None = None  # the optimizer's own gradient, while the pull is in it
        self._seen_version = 0  # torch's count of changes to it, right after the pull
        self._gradient: Tensor | None = None  # that of the task's loss alone
        self._before: Tensor | None = None  # θ before the step

    # ── a step ────────────────────────────────────────────────────────────────────────────────────────────────

    def before_step(self, method: Method) -> None:
        """Remember what `observe` will want, and add the pull to the gradient the optimizer is about to use."""
        if not self.started:
            self.start(method)
        self._follow()
        seen = self._optimizer_gradient()
        theta = self._theta()
        pulls = method.penalty == "gradient" and bool(method.springs(self.state))
        if method.wants or pulls:
            self._gradient = self._copied(seen, self._gradient)
        if "move" in method.wants:
            self._before = self._copied(theta, self._before)
        if pulls:
            assert self._gradient is not None
            self._seen = seen  # from here on it has to be given back, whatever happens
            alone = self._wide(self._gradient)
            # Straight into the optimizer's gradient where that lies at home, in the right precision.
            out = seen if (seen.device, seen.dtype) == (alone.device, alone.dtype) else torch.empty_like(alone)
            with self._borrowed() as state:
                pulled = method.pull(state, self._wide(theta), alone, out=out)
            if pulled is not seen:
                seen.copy_(pulled)
            self._seen_version = seen._version

    def after_step(self, method: Method, lr: float) -> None:
        """Give the gradient back as it was, take the proximal step, and observe."""
        self._give_back()
        if method.penalty == "proximal" and method.springs(self.state):
            self._take_proximal_step(method, lr)
        if not method.wants:
            return
        assert self._gradient is not None
        gradient = move = square = self._wide(self._gradient)
        if "move" in method.wants:
            assert self._before is not None
            move = self._wide(self._before)
            torch.sub(self._wide(self._theta()), move, out=move)
        if "square" in method.wants:
            square = gradient.square()
        with self._borrowed(write=True) as state:
            method.observe(state, gradient, move, square)

    def abandon(self, at_once: bool) -> None:
        """The step failed: its gradient is given back, and nothing is observed.

        Unless this is done `at_once`, the gradient may have been zeroed or added to since; then it is left alone.
        """
        if at_once or (self._seen is not None and self._seen._version == self._seen_version):
            self._give_back()
        self._seen = self._rows = None

    def _give_back(self) -> None:
        if self._seen is not None:
            assert self._gradient is not None
            self._seen.copy_(self._gradient)
            self._seen = None

    def _take_proximal_step(self, method: Method, lr: float) -> None:
        theta = self._theta()
        near = self._wide(theta)
        with self._borrowed() as state:
            method.proximal_step(state, near, lr)
        if self._rows is not None:
            local(self.parameter.detach()).index_copy_(0, self._rows, near[0].to(theta))
        elif near is not theta:
            theta.copy_(near)

    # ── a window, a task ──────────────────────────────────────────────────────────────────────────────────────

    def start(self, method: Method) -> None:
        self._store(method.start(self._wide(self._theta())))
        self.started = True

    def score(self, method: Method) -> None:
        with self._whole(write=True) as (state, theta):
            method.score(state, theta)

    def consolidate(self, method: Method, fisher: Tensor | None, ranges: Ranges) -> None:
        with self._whole(write=True) as (state, theta):
            method.consolidate(state, theta, fisher, ranges)
        self._stiffness = None

    def stiffness(self, method: Method) -> float:
        """The largest second derivative of the penalty; worked out once per task."""
        if self._stiffness is None:
            with self._whole() as (state, theta):
                stiffness = torch.zeros_like(theta)
                for strength, importance, _ in method.springs(state):
                    stiffness += 2.0 * strength * importance
                self._stiffness = float(stiffness.amax()) if stiffness.numel() else 0.0
        return self._stiffness

    def sum(self) -> Tensor:
        """Of the parameter's numbers: not finite where one of them is not."""
        return local(self.parameter.detach()).sum(dtype=self._worked_in)

    def is_finite(self) -> bool:
        """Whether the parameter and all that is held for it are numbers."""
        return all(bool(each.isfinite().all()) for each in (local(self.parameter.detach()), *self.state.values()))

    def cost(self, method: Method) -> float:
        """This piece's part of the penalty."""
        with self._whole() as (state, theta):
            return float(method.cost(state, theta))

    def extrema(self, name: str) -> tuple[float, float]:
        """The smallest and largest value of a state vector; of nothing, those that change no other's."""
        vector = self.state[name]
        if not vector.numel():
            return math.inf, -math.inf
        low, high = vector.aminmax()
        return float(low), float(high)

    def square_of_gradient(self) -> Tensor | None:
        """g² at the parameter's `.grad`, where and as precise as the equations want it."""
        gradient = self.parameter.grad
        if gradient is None:
            return None
        dense = gradient.to_dense() if gradient.is_sparse else gradient
        return self._wide(local(dense)[None]).square()

    def is_at_anchor(self, method: Method) -> bool:
        """Whether what is held lies where the last task left it, give or take what rounding to bfloat16 costs."""
        with self._whole() as (state, theta):
            springs = method.springs(state)
            if not springs:
                return True
            _, importance, anchor = springs[-1]
            there = torch.isclose(theta, anchor, rtol=1e-2, atol=1e-6)
            return bool((there | (importance == 0)).all())

    # ── files, and parameters that have grown ─────────────────────────────────────────────────────────────────

    def whole_state(self) -> dict[str, Tensor]:
        """The state vectors in the parameter's full shape; from all ranks where it is sharded."""
        return {name: shards.gathered(vector[0], self.parameter) for name, vector in self.state.items()}

    def restored(self, vectors: Mapping[str, Tensor], parameter: nn.Parameter, method: Method) -> Piece:
        """A piece for a parameter, with state vectors of its shape, or of a smaller one if it has grown since.

        What is new starts free: as `start` begins it, and with zeros (no importance) in all other vectors. This
        piece stays as it is.
        """
        piece = Piece(self.name, parameter, self._storage, self._offload)
        theta = piece._wide(piece._theta())
        fresh = method.start(theta)
        state = {}
        for name, vector in vectors.items():
            vector = vector.to(theta.dtype, copy=True)
            state[name] = shards.fitted(vector, parameter).to(theta.device)[None]
            if vector.shape != parameter.shape:
                known = shards.fitted(torch.ones(vector.shape, dtype=torch.bool), parameter).to(theta.device)[None]
                state[name] = torch.where(known, state[name], fresh.get(name, torch.zeros_like(theta)))
        piece._store(state)
        piece.started = True
        return piece

    def of(self, parameter: nn.Parameter, method: Method) -> Piece:
        """The piece for the tensor that the model has under this name now; what was learned goes with it."""
        if parameter is self.parameter:
            return self
        if not self.started:
            return Piece(self.name, parameter, self._storage, self._offload)
        if is_sharded(parameter) != is_sharded(self.parameter):
            raise InputError(f"{self.name} was sharded after its Guard was made: make the Guard after fully_shard")
        vectors = self.whole_state()
        self.check_fits(vectors, parameter)
        return self.restored(vectors, parameter, method)

    def check_fits(self, vectors: Mapping[str, Tensor], parameter: nn.Parameter) -> None:
        for vector in vectors.values():
            smaller = all(a <= b for a, b in zip(vector.shape, parameter.shape, strict=False))
            if vector.ndim != parameter.ndim or not smaller:
                raise InputError(
                    f"{self.name} has shape {tuple(parameter.shape)} but its importance {tuple(vector.shape)}: "
                    "a parameter may grow, not shrink or change: give it its old shape, or exclude it by params="
                )

    @property
    def groups(self) -> tuple[Group, ...]:
        """The process groups that share this parameter out among them, and the device they talk on."""
        return shards.groups(self.parameter)

    @property
    def nbytes(self) -> int:
        buffers = [*self.state.values(), self._gradient, self._before]
        return sum(buffer.nbytes for buffer in buffers if buffer is not None)

    # ── where numbers lie ─────────────────────────────────────────────────────────────────────────────────────

    @property
    def _home(self) -> torch.device:
        return self._offload or self.parameter.device

    @property
    def _worked_in(self) -> torch.dtype:
        return torch.float64 if self.parameter.dtype == torch.float64 else torch.float32

    @property
    def _stored_as(self) -> torch.dtype:
        return self._storage or self._worked_in

    def in_working_precision(self, tensor: Tensor) -> Tensor:
        return tensor.to(self._worked_in)

    def _wide(self, tensor: Tensor) -> Tensor:
        """The tensor itself where it already is as the equations want it."""
        return tensor.to(self._home, self._worked_in)

    def _copied(self, source: Tensor, room: Tensor | None) -> Tensor:
        """A copy at home, in the source's own precision, in the room of the last one if there is any."""
        home = self._home
        if room is None or (room.shape, room.dtype, room.device) != (source.shape, source.dtype, home):
            room = torch.empty_like(source, device=home)
        return room.copy_(source)

    def _follow(self) -> None:
        """The model may have been moved to another device since the last step."""
        home = self._home
        if any(vector.device != home for vector in self.state.values()):
            self._store(self.state)

    def _theta(self) -> Tensor:
        theta = local(self.parameter.detach())[None]
        return theta if self._rows is None else theta[:, self._rows]

    def _optimizer_gradient(self) -> Tensor:
        """The numbers the optimizer is about to read, to be changed in place; of a sparse gradient, its rows."""
        gradient = self.parameter.grad
        assert gradient is not None
        if not gradient.is_sparse:
            self._rows = None
            return local(gradient)[None]
        if gradient.sparse_dim() != 1:
            raise InputError(f"{self.name}: sparse gradients are understood by rows only; exclude it by params=")
        if not gradient.is_coalesced():
            self.parameter.grad = gradient = gradient.coalesce()
        self._rows = gradient._indices()[0]
        return gradient._values()[None]

    def _store(self, state: State) -> None:
        self.state = {name: vector.to(self._home, self._stored_as) for name, vector in state.items()}

    def _borrowed(self, write: bool = False) -> AbstractContextManager[State]:
        """The state as the equations want it; with `write`, what they change is kept, once they are done."""
        if self._rows is None and self._stored_as == self._worked_in:
            return nullcontext(self.state)
        return self._copied_state(write)

    @contextmanager
    def _copied_state(self, write: bool) -> Iterator[State]:
        rows = None if self._rows is None else self._rows.to(self._home)
        picked = {name: vector if rows is None else vector[:, rows] for name, vector in self.state.items()}
        state = {name: vector.to(self._worked_in) for name, vector in picked.items()}
        yield state
        if not write:
            return
        if rows is None:
            self._store(state)
            return
        narrow = {name: vector.to(self._stored_as) for name, vector in state.items()}
        for name, vector in narrow.items():
            self.state[name].index_copy_(1, rows, vector)

    @contextmanager
    def _whole(self, write: bool = False) -> Iterator[tuple[State, Tensor]]:
        """State and θ of all rows, whichever take part in a step."""
        rows, self._rows = self._rows, None
        try:
            self._follow()
            with self._borrowed(write) as state:
                yield state, self._wide(self._theta())
        finally:
            self._rows = rows
