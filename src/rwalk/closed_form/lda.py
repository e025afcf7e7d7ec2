"""Linear discriminant analysis from the same statistics: an alternative to regression on indicators."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from rwalk.closed_form.ridge import FOR_CLASSES, Solution, factored, penalties, solve
from rwalk.closed_form.statistics import Centred


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
    within = centred.gram - (from_mean * class_weights[seen]) @ from_mean.T
    scale = penalties(centred, blocks).rsqrt()
    factor, ridge = factored(within * scale[:, None] * scale, ridge)
    directions = torch.cholesky_solve(from_mean * scale[:, None], factor) * scale[:, None] * centred.weight
    share = (class_weights[seen] / centred.weight).log()
    weights = torch.zeros_like(class_sums)
    bias = torch.full_like(class_weights, -torch.inf)
    weights[:, seen] = directions
    bias[seen] = share - (from_mean / 2 + centred.mean[:, None]).mul(directions).sum(0)
    return Solution(weights, bias, ridge)
