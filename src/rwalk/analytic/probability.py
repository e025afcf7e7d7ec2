"""Scores → probabilities, with nothing but the statistics to go by.

Regression scores are no probabilities: they must be sharpened, softmax(t · score), and the right t is the one
under which unseen examples are most probable. The statistics know how the scores of each class scatter: their
means, and their covariance within a class. Leaving an example out moves its score by its own leverage, here taken
to be the mean one, so both are known for unseen examples. Draws from these Gaussians stand in for the examples.
Real scores have heavier tails than Gaussians, so a share of the draws is given another class's scores, the
more the classes overlap: without them, probabilities come out far too sure.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rwalk.analytic.ridge import Solution
from rwalk.analytic.statistics import Centred
from rwalk.seeds import generator

DRAWS = 4000
ASTRAY = 0.01, 0.3  # share of draws that look like another class: at least, and per share of wrong ones
SHARPEST = 150.0


def sharpness(
    centred: Centred, class_sums: Tensor, class_weights: Tensor, solution: Solution, leverage: float
) -> float:
    """The t of softmax(t · score).

    class_sums     [D, C] of the features, every class with some weight
    class_weights  [C]
    leverage       how much of an example's score is its own doing, in the mean
    """
    means, covariance = unseen_scores(centred, class_sums, class_weights, solution, leverage)
    classes = len(class_weights)
    draw = generator("closed-form", "probability", classes)
    share = (class_weights / class_weights.sum()).cpu()
    truth = torch.multinomial(share, DRAWS, replacement=True, generator=draw)
    other = torch.multinomial(share, DRAWS, replacement=True, generator=draw)
    noise = torch.randn(DRAWS, classes, generator=draw, dtype=torch.float64)
    values, vectors = torch.linalg.eigh(covariance.cpu())
    scatter, means = (noise * values.clamp(min=0).sqrt()) @ vectors.T, means.cpu()
    wrong = ((means[truth] + scatter).argmax(1) != truth).double().mean().item()
    astray = torch.rand(DRAWS, generator=draw) < ASTRAY[0] + ASTRAY[1] * wrong
    return _most_likely(means[torch.where(astray, other, truth)] + scatter, truth)


def unseen_scores(
    centred: Centred, class_sums: Tensor, class_weights: Tensor, solution: Solution, leverage: float
) -> tuple[Tensor, Tensor]:
    """Mean scores [C, C] of every class's unseen examples, and their covariance [C, C] within a class."""
    seen = (class_sums / class_weights).T @ solution.weights + solution.bias
    overall = centred.mean @ solution.weights + solution.bias
    between = (seen - overall).T @ ((seen - overall) * class_weights[:, None])
    within = solution.weights.T @ centred.gram @ solution.weights - between
    own = torch.eye(len(seen), dtype=seen.dtype, device=seen.device)
    means = (seen - leverage * own) / (1 - leverage)
    return means, within / centred.weight / (1 - leverage) ** 2


def _most_likely(scores: Tensor, truth: Tensor) -> float:
    """The best of a hundred factors between 1 and the sharpest."""
    factors = torch.logspace(0, torch.tensor(SHARPEST).log10().item(), 100, dtype=torch.float64)
    losses = [torch.nn.functional.cross_entropy(scores * t, truth).item() for t in factors]
    return float(factors[min(range(len(losses)), key=losses.__getitem__)])
