"""One parameter on its way through a step of the optimizer: pulled before it, observed after it."""

from __future__ import annotations

import torch
from torch import Tensor

from rwalk.errors import InputError
from rwalk.guard import stiffness
from rwalk.guard.shards import local
from rwalk.guard.storage import Storage
from rwalk.methods.base import Method


class Passage:
    """What is remembered of a parameter from before the step, and the pull while that is in its gradient.

    Gradients may be sparse, by rows: then only those rows take part.
    """

    def __init__(self, name: str, storage: Storage) -> None:
        self._name = name
        self.gradient: Tensor | None = None  # that of the task's loss alone
        self._storage = storage
        self._before: Tensor | None = None  # θ before the step
        self._rows: Tensor | None = None  # those of a sparse gradient
        self._seen: Tensor | None = None  # the optimizer's own gradient, while the pull is in it
        self._seen_version = 0  # torch's count of changes to it, right after the pull
        self._beyond: float | None = None  # the stiffness beyond which springs pull after the step

    def enter(self, method: Method, followed: float | None, extra: Tensor | None = None) -> None:
        """Remember what `observe` will want, and add the pull to the gradient the optimizer is about to use.

        followed  the stiffness that the optimizer can follow; None where no spring is stiffer
        extra     a pull from elsewhere, shaped like the gradient
        """
        self._storage.follow()
        seen = self._optimizer_gradient()
        springs = method.penalty == "gradient" and bool(method.springs(self._storage.state))
        self._beyond = followed if springs else None
        if method.wants or springs or extra is not None:
            self.gradient = self._storage.copied(seen, self.gradient)
        if "move" in method.wants:
            self._before = self._storage.copied(self._storage.theta(self._rows), self._before)
        if springs or extra is not None:
            self._seen = seen  # from here on it has to be given back, whatever happens
            if springs:
                self._add_springs(method, seen)
            if extra is not None:
                seen += extra if self._rows is None else extra[:, self._rows]
            self._seen_version = seen._version

    def leave(self, method: Method, lr: float) -> None:
        """Give the gradient back as it was, pull after the step where that is due, and observe."""
        self._give_back()
        if method.penalty == "proximal" and method.springs(self._storage.state):
            self._take_proximal_step(method, lr, beyond=None)
        elif self._beyond is not None:
            self._take_proximal_step(method, lr, self._beyond)
        if not method.wants:
            return
        assert self.gradient is not None
        gradient = move = square = self._storage.wide(self.gradient)
        if "move" in method.wants:
            assert self._before is not None
            move = self._storage.wide(self._before)
            torch.sub(self._storage.wide(self._storage.theta(self._rows)), move, out=move)
        if "square" in method.wants:
            square = gradient.square()
        with self._storage.borrowed(self._rows, write=True) as state:
            method.observe(state, gradient, move, square)

    def abandon(self, at_once: bool) -> None:
        """The step failed: its gradient is given back, and nothing is observed.

        Unless this is done `at_once`, the gradient may have been zeroed or added to since; then it is left alone.
        """
        if at_once or (self._seen is not None and self._seen._version == self._seen_version):
            self._give_back()
        self._seen = self._rows = None

    @property
    def nbytes(self) -> int:
        return sum(buffer.nbytes for buffer in (self.gradient, self._before) if buffer is not None)

    def _optimizer_gradient(self) -> Tensor:
        """The numbers the optimizer is about to read, to be changed in place; of a sparse gradient, its rows."""
        gradient = self._storage.parameter.grad
        assert gradient is not None
        if not gradient.is_sparse:
            self._rows = None
            return local(gradient)[None]
        if gradient.sparse_dim() != 1:
            raise InputError(f"{self._name}: sparse gradients are understood by rows only; exclude it by params=")
        if not gradient.is_coalesced():
            self._storage.parameter.grad = gradient = gradient.coalesce()
        self._rows = gradient._indices()[0]
        return gradient._values()[None]

    def _add_springs(self, method: Method, seen: Tensor) -> None:
        assert self.gradient is not None
        alone = self._storage.wide(self.gradient)
        theta = self._storage.wide(self._storage.theta(self._rows))
        # Straight into the optimizer's gradient where that lies at home, in the right precision.
        out = seen if (seen.device, seen.dtype) == (alone.device, alone.dtype) else torch.empty_like(alone)
        with self._storage.borrowed(self._rows) as state:
            if self._beyond is None:
                pulled = method.pull(state, theta, alone, out=out)
            else:
                pulled = stiffness.soft_pull(method.springs(state), theta, alone, self._beyond, out=out)
        if pulled is not seen:
            seen.copy_(pulled)

    def _give_back(self) -> None:
        if self._seen is not None:
            assert self.gradient is not None
            self._seen.copy_(self.gradient)
            self._seen = None

    def _take_proximal_step(self, method: Method, lr: float, beyond: float | None) -> None:
        theta = self._storage.theta(self._rows)
        near = self._storage.wide(theta)
        with self._storage.borrowed(self._rows) as state:
            if beyond is None:
                method.proximal_step(state, near, lr)
            else:
                stiffness.proximal_step(method.springs(state), near, lr, beyond)
        if self._rows is not None:
            local(self._storage.parameter.detach()).index_copy_(0, self._rows, near[0].to(theta))
        elif near is not theta:
            theta.copy_(near)
