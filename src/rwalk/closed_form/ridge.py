"""Statistics → weights, and how strongly to hold them back, chosen by the evidence.

With a Gaussian prior of precision α on the weights and noise of precision β on the targets, ridge regression with
λ = α/β is the posterior mean, and the probability of all targets given λ, the noise integrated out at its best
value, is known in closed form from the statistics alone:

    −2 log p(Y | λ) = C log |I + Λ⁻½ G Λ⁻½| + C n log(Σ y² − tr(Wᵀ X)) + const

(MacKay 1992, "Bayesian interpolation"; G, X and y² about their means). No data are held out and none are looked
at again, so the choice is as independent of order and batches as the statistics are. Unlike generalised
cross-validation it stays sound with fewer examples than features.

Features come in blocks (say the inputs themselves, and random features of them). What is held back is a block's
share of the fit, so a block's penalty is in proportion to its variance, and units of measurement cancel.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from rwalk.closed_form.statistics import Centred
from rwalk.errors import InputError

COARSE = (-6.0, -4.0, -2.0, 0.0, 2.0)  # log₁₀ of λ, relative to the mean variance of a feature
FINE = (1.0, 0.5)  # decades to either side of the best so far
NOISE = 1e-4  # of an example's variance, at least: less would make the last digits of the sums matter


class Solution(NamedTuple):
    """A linear function of the features, and what it cost."""

    weights: Tensor  # [D, C]
    bias: Tensor  # [C]
    ridge: float  # λ relative to the mean variance of a feature


def penalties(centred: Centred, blocks: Sequence[int]) -> Tensor:
    """What λ = 1 means for every feature: [D], its block's variance shared by all features."""
    variance = centred.gram.diagonal().clamp(min=0)
    each = [block.sum().expand(len(block)) for block in variance.split(list(blocks))]
    penalty = torch.cat(each) / len(variance)
    # A block that never varied has no weight to hold back; any penalty keeps the equations solvable.
    return torch.where(penalty > 0, penalty, penalty.max().clamp(min=1.0))


def solve(centred: Centred, blocks: Sequence[int], ridge: float | None = None) -> Solution:
    """Least squares held back by `ridge`, or by the one with the most evidence."""
    gram, cross, scale = _with_equal_penalties(centred, blocks)
    if ridge is None:
        varies = bool((centred.squares > 0).any())
        least = math.log10(NOISE * len(gram) / centred.weight)
        ridge = 10.0 ** _search(lambda at: _evidence(gram, cross, centred, 10.0**at), least) if varies else 1.0
    factor, failed = _factor(gram, ridge)
    if failed:
        raise InputError(f"ridge={ridge:g} is too small for these features: give a larger one, or None")
    weights = torch.cholesky_solve(cross, factor) * scale[:, None]
    return Solution(weights, centred.target - centred.mean @ weights, ridge)


def freedom(centred: Centred, blocks: Sequence[int], ridge: float) -> float:
    """Effective degrees of freedom of the fit: tr(G (G + λ)⁻¹) = D − λ tr((G + λ)⁻¹)."""
    gram, _, _ = _with_equal_penalties(centred, blocks)
    factor, _ = _factor(gram, ridge)
    inverse = torch.linalg.solve_triangular(factor, torch.eye(len(gram)).to(gram), upper=False)
    return len(gram) - ridge * float(inverse.square().sum())


def _with_equal_penalties(centred: Centred, blocks: Sequence[int]) -> tuple[Tensor, Tensor, Tensor]:
    """G and X of features scaled (by the third) so that λ is the penalty of every one."""
    scale = penalties(centred, blocks).rsqrt()
    return centred.gram * scale[:, None] * scale, centred.cross * scale[:, None], scale


def _factor(gram: Tensor, ridge: float) -> tuple[Tensor, bool]:
    held = gram.clone()
    held.diagonal().add_(ridge)
    factor, failed = torch.linalg.cholesky_ex(held)
    return factor, bool(failed)


def _evidence(gram: Tensor, cross: Tensor, centred: Centred, ridge: float) -> float:
    """−2 log evidence, for features whose penalty is λ; infinite where rounding leaves nothing to factor."""
    factor, failed = _factor(gram, ridge)
    if failed:
        return math.inf
    explained = torch.linalg.solve_triangular(factor, cross, upper=False).square().sum()
    total = centred.squares.sum()
    rest = (total - explained).clamp(min=1e-12 * float(total))
    volume = 2 * factor.diagonal().log().sum() - len(gram) * math.log(ridge)
    return float(cross.shape[1] * (volume + centred.weight * rest.log()))


def _search(cost: Callable[[float], float], least: float) -> float:
    """The argument of least cost: on a coarse grid, then ever closer about the best; the larger of equals."""
    known: dict[float, float] = {}

    def look(places: Sequence[float]) -> None:
        known.update({at: cost(at) for at in {max(at, least) for at in places} - known.keys()})

    look(COARSE)
    for step in FINE:
        best = min(known, key=lambda at: (known[at], -at))
        look([best - step, best + step])
    return min(known, key=lambda at: (known[at], -at))
