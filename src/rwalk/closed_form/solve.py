"""Statistics → weights, and how strongly to hold them back, chosen from the statistics alone.

No data are held out and none are looked at again, so the choice is as independent of order and batches as the sums
are. Two criteria can be had from them in closed form.

With enough examples per feature, generalised cross-validation (Golub, Heath & Wahba 1979): the squared error of
examples left out one by one, each taken to have the mean leverage,

    GCV(λ) = Σ (y − ŷ)² / (1 − df/n)²        df = tr(G (G + λ)⁻¹)

With fewer, where it would follow every example's noise, the evidence (MacKay 1992): the probability of the targets
under a Gaussian prior on the weights, the noise at its best value,

    −2 log p(Y | λ) = C log |I + G/λ| + C n log(Σ y² − tr(Wᵀ X)) + const

Features come in blocks (say the inputs themselves, and random features of them). A block's
penalty is in proportion to its variance, so units of measurement cancel.

A few examples span few dimensions, and nothing but them matters: with fewer examples than a third of the features
all is solved in an orthonormal basis of their span, n³ operations instead of D³.

Linear discriminants follow from the same sums, and `Updates` learns a few more examples without solving again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from rwalk.closed_form.sums import Centred
from rwalk.errors import InputError
from rwalk.seeds import generator

COARSE = (-6.0, -4.0, -2.0, 0.0, 2.0)  # log₁₀ of λ, relative to the mean variance of a feature
MIDDLE = 1, 4  # of them, from and to: the others are looked at only if the best of these lies at an end
FINE = (1.0, 0.5)  # decades to either side of the best so far
ENOUGH = 4  # examples per feature, for cross-validation to be trusted
NOISE = 1e-4  # of an example's variance, at least: less would make the last digits of the sums matter
PROBES = 32  # random vectors that a trace is estimated with
FOR_CLASSES = 0.1  # of the λ that predicts indicators best: the highest score needs less caution than its value
SHARE, MOST = 0.05, 1000  # of the examples solved for, and at all: more are worth another solution
ROUNDING = 1e-13  # of the mean square of a feature's products with the targets
IMPRECISE = 1e-5  # λ below this needs more digits than float32 has


class Solution(NamedTuple):
    """A linear function of the features."""

    weights: Tensor  # [D, C]
    bias: Tensor  # [C]
    ridge: float  # λ relative to the mean variance of a feature


class Coordinates(NamedTuple):
    """Features scaled so that λ is the penalty of each; of few examples, their coordinates in the span alone."""

    scale: Tensor  # [D]
    basis: Tensor | None = None  # [D, rank], orthonormal columns; None for all features as they are

    def of(self, features: Tensor) -> Tensor:
        """Columns [D, n] of features about their mean in these coordinates."""
        scaled = features * self.scale[:, None]
        return scaled if self.basis is None else self.basis.T @ scaled

    def back(self, weights: Tensor) -> Tensor:
        """The weights [D, C] of features, from those of coordinates."""
        return (weights if self.basis is None else self.basis @ weights) * self.scale[:, None]

    def outside(self, features: Tensor, inside: Tensor) -> Tensor:
        """Squared lengths [n] of what these coordinates leave out."""
        if self.basis is None:
            return features.new_zeros(features.shape[1])
        squares: Tensor = (features * self.scale[:, None]).square().sum(0) - inside.square().sum(0)
        return squares.clamp(min=0)

    def inverse(self, root: Tensor, ridge: float) -> Tensor:
        """(G + λ)⁻¹ [D, D] of the features themselves, by the Cholesky factor in these coordinates."""
        inner = torch.cholesky_inverse(root)
        if self.basis is not None:
            inner.diagonal().sub_(1 / ridge)
            inner = self.basis @ inner @ self.basis.T
            inner.diagonal().add_(1 / ridge)
        return inner * self.scale[:, None] * self.scale


def solve(centred: Centred, blocks: Sequence[int], ridge: float | None = None, share: float = 1.0) -> Solution:
    """Least squares held back by `ridge`, or by this share of the best one for predicting the targets.

    Where rounding leaves no positive definite equations, λ is raised: sums can always be solved.
    """
    gram, cross, coordinates = equations(centred, blocks)
    if ridge is None:
        ridge = _chosen(gram, cross, centred, share)
    factor, ridge = factored(gram, ridge)
    weights = coordinates.back(_by_factor(factor, cross))
    return Solution(weights, centred.target - centred.mean @ weights, ridge)


def penalties(centred: Centred, blocks: Sequence[int]) -> Tensor:
    """What λ = 1 means for every feature: [D], its block's variance, such that all blocks cost the same."""
    variance = centred.gram.diagonal().clamp(min=0)
    each = [block.sum().expand(len(block)) for block in variance.split(list(blocks))]
    penalty = torch.cat(each) * (len(blocks) / len(variance))
    # A block that never varied has no weight to hold back; any penalty keeps the equations solvable.
    return torch.where(penalty > 0, penalty, penalty.max().clamp(min=1.0))


def root_of(centred: Centred, blocks: Sequence[int], ridge: float) -> tuple[Tensor, Coordinates]:
    """Cholesky factor of G + λ in these coordinates."""
    gram, _, coordinates = equations(centred, blocks)
    return factored(gram, ridge)[0], coordinates


def freedom(centred: Centred, blocks: Sequence[int], ridge: float) -> float:
    """Effective degrees of freedom of the fit: tr(G (G + λ)⁻¹) = D − λ tr((G + λ)⁻¹)."""
    gram, _, _ = equations(centred, blocks)
    factor, ridge = factored(gram, ridge)
    inverse = torch.linalg.solve_triangular(factor, torch.eye(len(gram)).to(gram), upper=False)
    return len(gram) - ridge * float(inverse.square().sum())


def evidence(centred: Centred, blocks: Sequence[int], ridge: float) -> float:
    """−2 log evidence of these features: the less, the better they explain the targets."""
    gram, cross, _ = equations(centred, blocks)
    return _evidence(gram, cross, centred, ridge)


def _chosen(gram: Tensor, cross: Tensor, centred: Centred, share: float) -> float:
    if not (centred.squares > 0).any():
        return 1.0  # targets that never vary are predicted by their mean
    size = len(centred.mean)
    least = math.log10(NOISE * size / centred.weight)
    criterion = _left_out if centred.weight >= ENOUGH * size else _evidence
    if cross.shape[1] > len(cross):  # criteria see X Xᵀ alone: a factor of it has fewer columns than many classes
        square = cross @ cross.T
        cross, _ = factored(square, ROUNDING * float(square.diagonal().mean()))
    best = _search(lambda at: criterion(gram, cross, centred, 10.0**at), least)
    return math.pow(10, max(best + math.log10(share), least))


def equations(centred: Centred, blocks: Sequence[int]) -> tuple[Tensor, Tensor, Coordinates]:
    """G and X in coordinates of equal penalties, and these coordinates."""
    scale = penalties(centred, blocks).rsqrt()
    if centred.root is None:
        return (centred.gram * scale[:, None]).mul_(scale), centred.cross * scale[:, None], Coordinates(scale)
    basis, triangle = torch.linalg.qr((centred.root * scale).T)
    coordinates = Coordinates(scale, basis)
    return triangle @ triangle.T, coordinates.of(centred.cross), coordinates


def _factor(gram: Tensor, ridge: float) -> tuple[Tensor, bool]:
    held = gram.mT.clone(memory_format=torch.contiguous_format).mT  # columns adjacent: factored where it is
    held.diagonal().add_(ridge)
    info = torch.empty((), dtype=torch.int32, device=held.device)
    factor, failed = torch.linalg.cholesky_ex(held, out=(held, info))
    return factor, bool(failed)


def _by_factor(factor: Tensor, target: Tensor) -> Tensor:
    """(L Lᵀ)⁻¹ of these columns; torch's own function copies the factor."""
    half = torch.linalg.solve_triangular(factor, target, upper=False)
    whole: Tensor = torch.linalg.solve_triangular(factor.mT, half, upper=True)
    return whole


def factored(gram: Tensor, ridge: float) -> tuple[Tensor, float]:
    """Cholesky factor of G + λ, with λ raised as far as rounding makes necessary; and that λ."""
    while True:
        factor, failed = _factor(gram, ridge)
        if not failed:
            return factor, ridge
        if not math.isfinite(ridge):
            raise InputError("the sums are not finite: bring inputs and weights to scale, and learn again")
        ridge *= 10


def _evidence(gram: Tensor, cross: Tensor, centred: Centred, ridge: float) -> float:
    """−2 log evidence per target; infinite where rounding leaves nothing to factor."""
    factor, failed = _factor(gram, ridge)
    if failed:
        return math.inf
    explained = torch.linalg.solve_triangular(factor, cross, upper=False).square().sum()
    volume = 2 * factor.diagonal().log().sum() - len(gram) * math.log(ridge)
    return float(volume + centred.weight * _positive(centred.squares.sum(), explained).log())


def _left_out(gram: Tensor, cross: Tensor, centred: Centred, ridge: float) -> float:
    """Logarithm of the squared error of examples left out, up to a constant."""
    factor, failed = _factor(gram, ridge)
    if failed:
        return math.inf
    draw = generator("closed-form", "trace", len(gram))
    probes = torch.randint(2, (len(gram), PROBES), generator=draw).to(gram) * 2 - 1
    inverse = torch.linalg.solve_triangular(factor, probes, upper=False).square().sum() / PROBES
    weights = _by_factor(factor, cross)
    explained = (weights * cross).sum() + ridge * weights.square().sum()
    error = _positive(centred.squares.sum(), explained).log()
    free = len(gram) - ridge * inverse + 1
    return float(error - 2 * (1 - free / centred.weight).log())


def _positive(total: Tensor, explained: Tensor) -> Tensor:
    """The unexplained rest; at least a rounding error."""
    return torch.clamp(total - explained, min=1e-12 * float(total))


def _search(cost: Callable[[float], float], least: float) -> float:
    """The argument of least cost: on a coarse grid, then ever closer about the best; the larger of equals.

    Every look costs a factorisation, so the grid is looked at from its middle outwards, as far as it gets better.
    """
    known: dict[float, float] = {}

    def look(places: Sequence[float]) -> None:
        known.update({at: cost(at) for at in {max(at, least) for at in places} - known.keys()})

    def best() -> float:
        return min(known, key=lambda at: (known[at], -at))

    first, end = MIDDLE
    look(COARSE[first:end])
    if best() == max(known):
        look(COARSE[end:])
    elif best() == min(known):
        look(COARSE[:first])
    for step in FINE:
        look([best() - step, best() + step])
    return best()


# ── discriminants ────────────────────────────────────────────────────────────────────────────────────────────────


def discriminants(
    centred: Centred, class_sums: Tensor, class_weights: Tensor, blocks: Sequence[int], ridge: float | None = None
) -> Solution:
    """Gaussian classes of one covariance, held back as the regression is: log-probabilities up to a constant.

    class_sums     [D, C] of the features
    class_weights  [C]; a class without weight gets the score −∞
    """
    if ridge is None:
        ridge = solve(centred, blocks, share=FOR_CLASSES).ridge
    seen = class_weights > 0
    from_mean = class_sums[:, seen] / class_weights[seen] - centred.mean[:, None]
    gram, _, coordinates = equations(centred, blocks)
    centres = coordinates.of(from_mean)
    factor, ridge = factored(gram - (centres * class_weights[seen]) @ centres.T, ridge)
    directions = coordinates.back(_by_factor(factor, centres)) * centred.weight
    share = (class_weights[seen] / centred.weight).log()
    weights = torch.zeros_like(class_sums)
    bias = torch.full_like(class_weights, -torch.inf)
    weights[:, seen] = directions
    bias[seen] = share - (from_mean / 2 + centred.mean[:, None]).mul(directions).sum(0)
    return Solution(weights, bias, ridge)


# ── a few more examples ──────────────────────────────────────────────────────────────────────────────────────────


class Updates:
    """A solution, and the examples learned since, by recursive least squares.

    With P = (G + λ)⁻¹ over the features and a constant, an example u with weight w and target y changes

        g = P u     c = 1 / (1/w + uᵀ g)     W ← W + c g (y − uᵀ W)     P ← P − c g gᵀ

    P stays as it was; the g are kept, and subtracted from P u. λ and the penalty of each feature stay too. The
    next solution is exact, and differs by their change alone.
    """

    def __init__(
        self, centred: Centred, solution: Solution, root: Tensor, coordinates: Coordinates, per_weight: float
    ) -> None:
        self.weights = torch.cat([solution.weights, solution.bias[None]])  # of the features and the constant
        self.ridge = solution.ridge
        self.per_weight = per_weight
        self.limit = min(int(SHARE * centred.weight), MOST)
        precision = torch.float64 if solution.ridge < IMPRECISE else torch.float32
        self._inverse = coordinates.inverse(root, solution.ridge).to(precision)
        self._mean, self._count = centred.mean, centred.weight
        self._gains = root.new_zeros(self.limit, len(self.weights))
        self._factors = root.new_zeros(self.limit)
        self.done = 0

    def learn(self, features: Tensor, y: Tensor, weight: Tensor) -> bool:
        """Whether there was room for these examples; their features are centred as in the sums."""
        if self.done + len(features) > self.limit:
            return False
        for u, target, w in zip(features[:, : len(self._mean)].double(), y, weight.tolist(), strict=True):
            if y.ndim == 1:
                target = torch.zeros_like(self.weights[0]).index_fill_(0, target, 1.0)
            self._learn_one(torch.cat([u, u.new_ones(1)]), target, w * self.per_weight)
        return True

    def _learn_one(self, u: Tensor, target: Tensor, weight: float) -> None:
        along = (self._inverse @ (u[:-1] - self._mean).to(self._inverse.dtype)).double()
        gain = torch.cat([along, (1 / self._count - self._mean @ along)[None]])
        gains, factors = self._gains[: self.done], self._factors[: self.done]
        gain -= (factors * (gains @ u)) @ gains
        factor = 1 / (1 / weight + u @ gain)
        self.weights += torch.outer(factor * gain, target - u @ self.weights)
        self._gains[self.done], self._factors[self.done] = gain, factor
        self.done += 1

    @property
    def solution(self) -> Solution:
        return Solution(self.weights[:-1], self.weights[-1], self.ridge)
