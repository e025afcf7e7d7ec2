"""Sums of sparse inputs with many columns, such as hashed n-grams, without their Gram matrix.

A Gram matrix of 32,768 columns would take 8 GB. Instead, every column x is multiplied with a few hundred common
ones, s, and with itself:

    P = Σ w x sᵀ     Q = Σ w s sᵀ     d = Σ w x²     X = Σ w x yᵀ     f = Σ w [x ≠ 0]

Columns are taken to be uncorrelated given s (as in factor analysis), which gives the Gram matrix the form

    G ≈ P Q⁻¹ Pᵀ + diag(r)     r = d − diag(P Q⁻¹ Pᵀ)

so that (G + λ)⁻¹ X follows from a system as small as Q (Woodbury). All are sums, so examples are added, removed
and merged in any order. The weights of columns (inverse document frequencies) follow from f when it is solved.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from rwalk.errors import InputError

RIDGE = 3.0  # λ, relative to the mean squared norm of an example
NOISE = 1e-4  # of the common columns' mean variance, added to it: they may repeat each other
DRAWS = 4000
ASTRAY = 0.01  # of examples look like another class
SHARPEST = 1000.0
Array = NDArray[np.float64]


class Solution(NamedTuple):
    """A linear function of the inputs, and the factor of its scores before their softmax is a probability."""

    weights: Array  # [H, C]
    ridge: float
    sharpness: float


@dataclass
class SparseSums:
    """Sums over all examples, of H columns, k common ones and C classes."""

    products: Array  # P [H, k]
    common: Array  # Q [k, k]
    squares: Array  # d [H]
    present: Array  # f [H]
    cross: Array  # X [H, C]
    weights: Array  # [C]
    counts: NDArray[np.int64]  # [C]

    @classmethod
    def empty(cls, columns: int, common: int, classes: int) -> Self:
        return cls(
            np.zeros((columns, common)), np.zeros((common, common)), np.zeros(columns), np.zeros(columns),
            np.zeros((columns, classes)), np.zeros(classes), np.zeros(classes, dtype=np.int64),
        )  # fmt: skip

    def tensors(self) -> dict[str, NDArray[Any]]:
        return {each.name: getattr(self, each.name) for each in fields(self)}

    def add(self, x: Any, s: Any, y: NDArray[np.int64], weight: Array, sign: int = 1) -> None:
        """Add, or remove (−1), examples: inputs and common columns in CSR, class numbers, weights."""
        seen = np.unique(x.indices)  # work is in proportion to the columns that occur
        own = x[:, seen].multiply(sign * weight[:, None]).tocsc()
        self.products[seen] += (own.T @ s).toarray()
        self.common += (s.multiply(sign * weight[:, None]).T @ s).toarray()
        self.squares[seen] += np.asarray(own.multiply(x[:, seen]).sum(0)).ravel()
        place = np.searchsorted(seen, x.indices)
        rows = np.repeat(np.arange(x.shape[0]), np.diff(x.indptr))
        self.present[seen] += np.bincount(place, sign * weight[rows], len(seen))
        np.add.at(self.cross, (x.indices, y[rows]), sign * weight[rows] * x.data)
        self.weights += sign * np.bincount(y, weight, len(self.weights))
        self.counts += sign * np.bincount(y, minlength=len(self.counts))

    def removed(self, x: Any, s: Any, y: NDArray[np.int64], weight: Array) -> Self:
        """The sums without these examples; refused if what is left could not be sums of examples."""
        left = type(self)(*(each.copy() for each in self.tensors().values()))
        left.add(x, s, y, weight, -1)
        slack = 1e-9 * max(1.0, float(self.weights.sum()))
        gone = left.counts == 0
        sound = bool((left.counts >= 0).all()) and bool((left.weights >= -slack).all())
        sound &= bool((left.squares >= -slack).all()) and bool((left.present >= -slack).all())
        sound &= bool((np.abs(left.cross[:, gone]) <= slack).all())
        if bool((self.cross >= 0).all()):
            sound &= bool((left.cross >= -slack).all())
        if not sound:
            raise InputError(
                "these examples are not the ones that were learned: nothing was forgotten; give only what was "
                "learned"
            )
        absent = left.present <= slack
        for each in (left.products, left.squares, left.present, left.cross):
            each[absent] = 0  # no rounding is left of a column that nobody has
        return left

    def merge(self, other: SparseSums) -> None:
        for name, each in other.tensors().items():
            getattr(self, name)[...] += each

    def moved(self, places: list[int], classes: int) -> Self:
        """The same with class i at places[i] of `classes`; it is dropped at −1."""
        sums = self.tensors()
        kept = [old for old, new in enumerate(places) if new >= 0]
        new = [places[old] for old in kept]
        for name in ("cross", "weights", "counts"):
            before = sums[name]
            sums[name] = np.zeros((*before.shape[:-1], classes), dtype=before.dtype)
            sums[name][..., new] = before[..., kept]
        return type(self)(**sums)

    def solve(self, ridge: float | None, inverse_frequency: bool) -> Solution:
        """Ridge regression on class indicators."""
        count, weight = int(self.counts.sum()), float(self.weights.sum())
        if not count:
            raise InputError("nothing is left to predict from: learn something first")
        unit = weight / count
        seen = np.flatnonzero(self.present > 1e-9 * weight)
        scale = np.ones(len(seen))
        if inverse_frequency:
            often = self.present[seen] / unit
            scale = (1 + np.log((1 + count) / (1 + often))) / (1 + math.log(1 + count))
        diagonal = self.squares[seen] / unit * scale**2
        lam = (RIDGE if ridge is None else ridge) * max(float(diagonal.sum()) / count, 1e-300)
        common = self.common / unit
        common = common + NOISE * max(np.trace(common), 1e-300) / len(common) * np.eye(len(common))
        factor = np.linalg.cholesky(common)
        loadings = np.linalg.solve(factor, (self.products[seen] / unit * scale[:, None]).T).T  # [h, k]
        rest = np.clip(diagonal - np.square(loadings).sum(1), 0, None)
        inverse = 1 / (rest + lam)
        pulled = loadings * inverse[:, None]
        small = np.linalg.inv(np.eye(len(common)) + pulled.T @ loadings)
        classes = self.cross[seen] / unit * scale[:, None]
        target = classes - classes.sum(1, keepdims=True) / max(1, np.count_nonzero(self.counts))
        weights = target * inverse[:, None]
        weights -= pulled @ (small @ (loadings.T @ weights))
        # Effective degrees of freedom: tr(G (G + λ)⁻¹) = h − λ tr((G + λ)⁻¹)
        trace = inverse.sum() - (small * (pulled.T @ pulled)).sum()
        leverage = min(max(len(seen) - lam * trace, 0.0) / count, 0.95)
        there = np.flatnonzero(self.weights > 0)
        share = self.weights[there] / unit
        means = (classes[:, there] / share).T @ weights[:, there]
        sharpness = _sharpness(means, share, leverage)
        full = np.zeros_like(self.cross)
        full[seen] = weights * scale[:, None]
        return Solution(full, lam, sharpness)


def _sharpness(means: Array, share: Array, leverage: float) -> float:
    """The factor t of softmax(t · score), from the mean scores [C, C] of every class.

    The scores of unseen examples lack their own contribution, taken to be the mean leverage. Their scatter cannot
    be had from these sums, so two extremes are drawn: all examples at their class's mean but for a few that look
    like another class, and scores that are probabilities themselves. The result is the factors' geometric mean.
    """
    classes = len(share)
    if classes < 2:
        return 1.0
    draw = np.random.default_rng(0)
    share = share / share.sum()
    unseen = (means - leverage * np.eye(classes)) / (1 - leverage)
    truth, other = (draw.choice(classes, DRAWS, p=share) for _ in range(2))
    alike = unseen[np.where(draw.random(DRAWS) < ASTRAY, other, truth)]
    own = float(np.clip((np.diag(unseen) * share).sum(), 1.1 / classes, 0.99))
    mixed = draw.dirichlet(np.full(classes, (1 - own) / (own * classes - 1)), DRAWS)
    owner = (mixed.cumsum(1) < draw.random((DRAWS, 1))).sum(1).clip(max=classes - 1)
    return math.sqrt(_best_factor(alike, truth) * _best_factor(mixed, owner))


def _best_factor(scores: Array, truth: NDArray[np.int64]) -> float:
    """The t that makes these classes most probable."""

    def loss(t: float) -> float:
        top = (t * scores).max(1, keepdims=True)
        total = top[:, 0] + np.log(np.exp(t * scores - top).sum(1))
        return float((total - t * scores[np.arange(len(truth)), truth]).mean())

    return float(min(np.logspace(0, math.log10(SHARPEST), 60), key=loss))
