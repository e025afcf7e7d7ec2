"""A parameter with a sparse gradient on its way through a step: only the rows that have one take part."""

from __future__ import annotations

from torch import Tensor

from rwalk.errors import InputError
from rwalk.guard.state.parameter import Piece
from rwalk.guard.state.sharded import local
from rwalk.guard.step import penalty as stiffness
from rwalk.methods.base import Method


class Rows:
    """Rows of a parameter, from before a step to after it."""

    def __init__(self, piece: Piece) -> None:
        self._storage = piece.storage
        gradient = piece.parameter.grad
        assert gradient is not None
        if gradient.sparse_dim() != 1:
            raise InputError(f"{piece.name}: sparse gradients are understood by rows only; exclude it by params=")
        if not gradient.is_coalesced():
            piece.parameter.grad = gradient = gradient.coalesce()
        self._rows = gradient._indices()[0]
        self._seen = gradient._values()[None]  # what the optimizer is about to read, to be changed in place
        self._alone = self._storage.wide(self._seen.clone())  # of the task's loss alone
        self._before: Tensor | None = None  # θ before the step
        self._pulled = False
        self._version = 0  # torch's count of changes to the gradient, right after the pull
        self._beyond: float | None = None  # the stiffness beyond which springs pull after the step

    def enter(self, method: Method, followed: float | None, pull: Tensor | None) -> None:
        """Remember what `observe` will want, and add the pull to the gradient the optimizer is about to use.

        followed  the stiffness that the optimizer can follow; None where no spring is stiffer
        pull      from elsewhere, shaped like the parameter
        """
        self._storage.follow()
        springs = method.penalty == "gradient" and bool(method.springs(self._storage.state))
        self._beyond = followed if springs else None
        if "move" in method.wants:
            self._before = self._storage.wide(self._storage.theta(self._rows).clone())
        self._pulled = springs or pull is not None
        if springs:
            self._add_springs(method)
        if pull is not None:
            self._seen += pull[:, self._rows]
        self._version = self._seen._version

    def leave(self, method: Method, lr: float) -> None:
        """Give the gradient back as it was, pull after the step where that is due, and observe."""
        self.abandon(at_once=True)
        if method.penalty == "proximal" and method.springs(self._storage.state):
            self._take_proximal_step(method, lr, beyond=None)
        elif self._beyond is not None:
            self._take_proximal_step(method, lr, self._beyond)
        if not method.wants:
            return
        move = square = self._alone
        if "move" in method.wants:
            assert self._before is not None
            move = self._storage.wide(self._storage.theta(self._rows)) - self._before
        if "square" in method.wants:
            square = self._alone.square()
        with self._storage.borrowed(self._rows, write=True) as state:
            method.observe(state, self._alone, move, square)

    def abandon(self, at_once: bool) -> None:
        """Give the gradient back; left alone, unless `at_once`, if it was zeroed or added to since."""
        if self._pulled and (at_once or self._seen._version == self._version):
            self._seen.copy_(self._alone)
        self._pulled = False

    def _add_springs(self, method: Method) -> None:
        theta = self._storage.wide(self._storage.theta(self._rows))
        with self._storage.borrowed(self._rows) as state:
            pulled = stiffness.pulled(method, self._beyond, state, theta, self._alone)
        self._seen.copy_(pulled)

    def _take_proximal_step(self, method: Method, lr: float, beyond: float | None) -> None:
        theta = self._storage.theta(self._rows)
        near = self._storage.wide(theta)
        with self._storage.borrowed(self._rows) as state:
            stiffness.step_late(method, beyond, state, near, lr)
        local(self._storage.parameter.detach()).index_copy_(0, self._rows, near[0].to(theta))
