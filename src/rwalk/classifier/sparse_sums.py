"""Sums of sparse inputs with many columns, such as hashed n-grams, without their Gram matrix.

A Gram matrix of 131,072 columns would take 130 GB. Instead, every column x is multiplied with a few hundred common
ones, s, with the class indicators y, and with itself:

    P = Σ w x sᵀ     Q = Σ w s sᵀ     X = Σ w x yᵀ     M = Σ w s yᵀ     d = Σ w x²     f = Σ w [x ≠ 0]

Columns are taken to be uncorrelated given t = (s, y), as in factor analysis, which gives the Gram matrix the form

    G ≈ T R⁻¹ Tᵀ + diag(r)     T = (P, X)     R = (Q, M; Mᵀ, Σ w y yᵀ)     r = d − diag(T R⁻¹ Tᵀ)

so that (G + λ)⁻¹ X follows from a system as small as R (Woodbury). All are sums, so examples are added, removed
and merged in any order. The weights of columns (inverse document frequencies) follow from f when it is solved.
Rows of P and X exist only for columns that have occurred.
"""

from __future__ import annotations

import copy
import math
import zlib
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse
from scipy.linalg import solve_triangular

from rwalk.closed_form.calibration import best_factor
from rwalk.errors import InputError

RIDGE = 0.25  # λ, relative to the mean squared norm of an example
NOISE = 1e-4  # relative to the mean variance of t, added to it: its columns may repeat each other
MOST_CLASSES = 1000  # among t: the system to solve grows with them
DRAWS = 4000
ASTRAY = 0.01  # of examples look like another class
SHARPEST = 1000.0
SAMPLE, ENOUGH = 400, 50  # examples that probabilities are measured on, at most and at least
MOST_LEVERAGE = 0.95
ROWS = ("products", "squares", "present", "cross")  # sums with a row for every column that has occurred
WHOLE = ("common", "mixed", "weights", "counts")  # the others
Array = NDArray[np.float64]


class Solution(NamedTuple):
    """A linear function of the inputs, and the factor of its scores before their softmax is a probability."""

    weights: Array  # [H, C]
    ridge: float
    sharpness: float


class Sample(NamedTuple):
    """Examples that probabilities are measured on, chosen by hashes of their inputs, whatever their order."""

    keys: NDArray[np.uint64]
    x: Any  # [n, H], in CSR
    s: Any  # [n, k], in CSR
    y: NDArray[np.int64]
    weight: Array
    seen: int  # examples it was drawn from

    @classmethod
    def of(cls, x: Any, s: Any, y: NDArray[np.int64], weight: Array) -> Sample:
        rows = zip(x.indptr[:-1], x.indptr[1:], strict=True)
        hashes = [zlib.crc32(x.indices[a:b].tobytes() + x.data[a:b].tobytes()) for a, b in rows]
        return cls(np.array(hashes, dtype=np.uint64), x, s, y, weight, len(y)).first()

    def first(self, most: int = SAMPLE) -> Sample:
        """The same, with at most so many examples."""
        kept = np.argsort(self.keys, kind="stable")[:most]
        return Sample(self.keys[kept], self.x[kept], self.s[kept], self.y[kept], self.weight[kept], self.seen)

    def joined(self, other: Sample) -> Sample:
        """A sample of all examples that either was drawn from."""
        x, s = (sparse.vstack(pair).tocsr() for pair in ((self.x, other.x), (self.s, other.s)))
        keys, y = np.concatenate([self.keys, other.keys]), np.concatenate([self.y, other.y])
        weight = np.concatenate([self.weight, other.weight])
        return Sample(keys, x, s, y, weight, self.seen + other.seen).first()

    def moved(self, places: list[int]) -> Sample:
        """The same with class i at places[i]."""
        return self._replace(y=np.array(places, dtype=np.int64)[self.y])


class SparseSums:
    """Sums over all examples, of H columns, k common ones and C classes; h columns have occurred.

    products  P [h, k]     common  Q [k, k]     cross  X [h, C]     mixed  M [k, C]
    squares   d [h]        present f [h]        weights, counts [C] of the classes
    """

    def __init__(self, columns: int, common: int, classes: int) -> None:
        self.columns = columns
        self.place = np.full(columns, -1, dtype=np.int32)  # of every column among those that have occurred
        self.occurred = 0
        # Room for more rows than there are, so that a new column seldom copies all.
        self.room: dict[str, NDArray[Any]] = {
            "products": np.zeros((0, common)),
            "squares": np.zeros(0),
            "present": np.zeros(0),
            "cross": np.zeros((0, classes)),
        }
        self.common = np.zeros((common, common))
        self.mixed = np.zeros((common, classes))
        self.weights = np.zeros(classes)
        self.counts = np.zeros(classes, dtype=np.int64)

    @property
    def shape(self) -> tuple[int, int]:
        """All columns, and the common ones."""
        return self.columns, len(self.common)

    def row(self, name: str) -> NDArray[Any]:
        """One of the sums with rows, for the columns that have occurred."""
        return self.room[name][: self.occurred]

    def tensors(self) -> dict[str, NDArray[Any]]:
        """All sums by name; `seen` names the columns of the rows, in ascending order."""
        found = np.flatnonzero(self.place >= 0)
        found = found[self.row("present")[self.place[found]] > 0]
        sums = {name: self.row(name)[self.place[found]] for name in ROWS}
        return {**sums, "seen": found, **{name: getattr(self, name) for name in WHOLE}}

    def take(self, sums: dict[str, NDArray[Any]]) -> None:
        """Add sums that `tensors` gave."""
        rows = self._rows(sums["seen"])
        for name in ROWS:
            self.room[name][rows] += sums[name]
        for name in WHOLE:
            setattr(self, name, getattr(self, name) + sums[name])

    def _rows(self, columns: NDArray[np.int64]) -> NDArray[np.int32]:
        """The places of these columns; new ones get a row."""
        new = columns[self.place[columns] < 0]
        if len(new):
            before, self.occurred = self.occurred, self.occurred + len(new)
            self.place[new] = np.arange(before, self.occurred)
            if self.occurred > len(self.room["squares"]):
                rows = min(self.columns, self.occurred + self.occurred // 2)
                for name, old in self.room.items():
                    wide = np.zeros((rows, *old.shape[1:]))
                    wide[:before] = old[:before]
                    self.room[name] = wide
        return self.place[columns]

    def add(self, x: Any, s: Any, y: NDArray[np.int64], weight: Array, sign: int = 1) -> None:
        """Add, or remove (−1), examples: inputs and common columns in CSR, class numbers, weights."""
        seen = np.unique(x.indices)  # work is in proportion to the columns that occur
        rows = self._rows(seen)
        own = x[:, seen].multiply(sign * weight[:, None]).tocsc()
        self.room["products"][rows] += (own.T @ s).toarray()
        self.room["squares"][rows] += np.asarray(own.multiply(x[:, seen]).sum(0)).ravel()
        weighted = s.multiply(sign * weight[:, None]).tocsr()
        self.common += (weighted.T @ s).toarray()
        examples = np.repeat(np.arange(x.shape[0]), np.diff(x.indptr))
        each = sign * weight[examples]
        self.room["present"][rows] += np.bincount(np.searchsorted(seen, x.indices), each, len(seen))
        np.add.at(self.room["cross"], (self.place[x.indices], y[examples]), each * x.data)
        which = np.repeat(np.arange(s.shape[0]), np.diff(weighted.indptr))
        np.add.at(self.mixed, (weighted.indices, y[which]), weighted.data)
        self.weights += sign * np.bincount(y, weight, len(self.weights))
        self.counts += sign * np.bincount(y, minlength=len(self.counts))

    def removed(self, x: Any, s: Any, y: NDArray[np.int64], weight: Array) -> SparseSums:
        """The sums without these examples; refused if the rest could not be sums of examples."""
        left = copy.deepcopy(self)
        left.add(x, s, y, weight, -1)
        slack = 1e-9 * max(1.0, float(self.weights.sum()))
        gone, cross, present = left.counts == 0, left.row("cross"), left.row("present")
        sound = bool((left.counts >= 0).all()) and bool((left.weights >= -slack).all())
        sound &= bool((left.row("squares") >= -slack).all()) and bool((present >= -slack).all())
        sound &= bool((np.abs(cross[:, gone]) <= slack).all())
        if bool((self.row("cross") >= 0).all()):
            sound &= bool((cross >= -slack).all())
        if not sound:
            raise InputError(
                "these examples are not the ones that were learned: nothing was forgotten; give only learned "
                "examples"
            )
        absent = present <= slack
        for name in ROWS:
            left.row(name)[absent] = 0  # no rounding is left of a column that no example has
        return left

    def moved(self, places: list[int], classes: int) -> SparseSums:
        """The same with class i at places[i] of `classes`; it is dropped at −1."""
        kept = [old for old, new in enumerate(places) if new >= 0]
        new = [places[old] for old in kept]

        def move(before: NDArray[Any]) -> NDArray[Any]:
            after = np.zeros((*before.shape[:-1], classes), dtype=before.dtype)
            after[..., new] = before[..., kept]
            return after

        twin = copy.copy(self)
        if places == list(range(classes)):
            return twin
        twin.room = {**self.room, "cross": move(self.room["cross"])}
        twin.mixed, twin.weights, twin.counts = (move(each) for each in (self.mixed, self.weights, self.counts))
        return twin

    def measured(self, ridge: float | None, inverse_frequency: bool, sample: Sample) -> float | None:
        """The factor of scores, measured on a sample that a second solution lacks; None if it is too small."""
        sample = sample.first(min(SAMPLE, int(self.counts.sum()) // 5))
        if len(sample.y) < ENOUGH or 2 * sample.seen < self.counts.sum():
            return None
        rest = copy.deepcopy(self)
        rest.add(sample.x, sample.s, sample.y, sample.weight, -1)
        there = np.flatnonzero(rest.counts > 0)
        known = np.isin(sample.y, there)
        scores = (sample.x @ rest.solve(ridge, inverse_frequency).weights)[known][:, there]
        return _best_factor(scores, np.searchsorted(there, sample.y[known])) if known.any() else None

    def solve(self, ridge: float | None, inverse_frequency: bool) -> Solution:
        """Ridge regression on class indicators."""
        count, weight = int(self.counts.sum()), float(self.weights.sum())
        if not count:
            raise InputError("nothing is left to predict from: learn something first")
        unit = weight / count
        present = self.row("present")
        seen = np.flatnonzero(present > 1e-9 * weight)
        scale = np.ones(len(seen))
        if inverse_frequency:
            often = present[seen] / unit
            scale = (1 + np.log((1 + count) / (1 + often))) / (1 + math.log(1 + count))
        diagonal = self.row("squares")[seen] / unit * scale**2
        lam = (RIDGE if ridge is None else ridge) * max(float(diagonal.sum()) / count, 1e-300)
        classes = self.row("cross")[seen] / unit * scale[:, None]
        loadings, common = self.row("products")[seen] / unit * scale[:, None], self.common / unit
        there = np.flatnonzero(self.weights > 0)
        if len(there) <= MOST_CLASSES:
            loadings = np.concatenate([loadings, classes[:, there]], axis=1)
            mixed = self.mixed[:, there] / unit
            common = np.block([[common, mixed], [mixed.T, np.diag(self.weights[there] / unit)]])
        common = common + NOISE * max(np.trace(common), 1e-300) / len(common) * np.eye(len(common))
        loadings = solve_triangular(np.linalg.cholesky(common), loadings.T, lower=True, overwrite_b=True).T
        rest = np.clip(diagonal - np.square(loadings).sum(1), 0, None)
        inverse = 1 / (rest + lam)
        pulled = loadings * inverse[:, None]
        small = np.linalg.inv(np.eye(len(common)) + pulled.T @ loadings)
        target = classes - classes.sum(1, keepdims=True) / max(1, np.count_nonzero(self.counts))
        weights = target * inverse[:, None]
        weights -= pulled @ (small @ (loadings.T @ weights))
        full = np.zeros((self.columns, len(self.counts)))
        found = np.flatnonzero(self.place >= 0)
        found = found[np.argsort(self.place[found])][seen]
        full[found] = weights * scale[:, None]
        # Effective degrees of freedom: tr(G (G + λ)⁻¹) = h − λ tr((G + λ)⁻¹)
        trace = inverse.sum() - (small * (pulled.T @ pulled)).sum()
        leverage = min(max(len(seen) - lam * trace, 0.0) / count, MOST_LEVERAGE)
        share = self.weights[there] / unit
        means = (classes[:, there] / share).T @ weights[:, there]
        return Solution(full, lam, _sharpness(means, share, leverage))


def _sharpness(means: Array, share: Array, leverage: float) -> float:
    """The factor t of softmax(t · score), from the mean scores [C, C] of every class.

    The scores of unseen examples lack their own contribution, taken to be the mean leverage. The sums do not
    contain the scatter of scores, so two extremes are drawn. In one, all examples are at their class's mean, but
    a few look like another class. In the other, scores are probabilities. The result is their geometric
    mean.
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
    return best_factor(torch.from_numpy(scores), torch.from_numpy(truth), SHARPEST, 60)
