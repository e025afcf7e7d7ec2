"""Confidence and novelty: measured on a sample of learned examples, each left out in turn.

Leaving an example out needs no second fit. A regression's score without it follows from its leverage h,

    y − ŷ₋ᵢ = (y − ŷ) / (1 − h)

and a distance without it from the rank-one update of the scatter matrix.

Probabilities are softmax(t · score + a · log share), with the t and a under which the examples left out are most
probable: regression on indicators gives a rare class too low a score, and a corrects that.

Novelty joins two measures: how low the highest score is, and the squared Mahalanobis distance to the nearest
class. Each becomes the share of known inputs that lie beyond it, and the logarithms of both are added (Fisher).

Without a sample, `sharpness` estimates t from the sums alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rwalk.closed_form.solve import Coordinates, Solution, equations, factored
from rwalk.closed_form.sums import Centred
from rwalk.seeds import generator

ENOUGH = 50  # examples left out, to measure anything with
HOLDBACK = 0.03  # λ of distances, relative to a feature's variance
SHARPEST = 150.0
NUMBERS = 1_000_000  # scores that are looked at, at most
DRAWS = 4000
ASTRAY = 0.01, 0.3  # share of draws that look like another class: at least, and per share of wrong ones


@dataclass(frozen=True)
class Certainty:
    """Probabilities are softmax(sharpness · score + prior · log share)."""

    sharpness: float
    prior: float = 0.0


@dataclass(frozen=True)
class Familiar:
    """Measures of the examples left out, [m, 3], each sorted: minus the top score, distance, both joined."""

    known: Tensor

    def novelty(self, top: Tensor, distance: Tensor) -> Tensor:
        """[n]: the share of known inputs that are less novel; beyond all of them it approaches 1."""
        joined = _surprise(self.known[:, 0], -top) + _surprise(self.known[:, 1], distance)
        return 1 - torch.exp(-_surprise(self.known[:, 2], joined))


def familiar(top: Tensor, distance: Tensor) -> Familiar:
    alone = [(-top).sort().values, distance.sort().values]
    joined = _surprise(alone[0], -top) + _surprise(alone[1], distance)
    return Familiar(torch.stack([*alone, joined.sort().values], dim=1))


def _surprise(known: Tensor, now: Tensor) -> Tensor:
    """−log of the share of `known`, sorted, that is larger; beyond all of them it grows with the distance."""
    below = torch.searchsorted(known.contiguous(), now.contiguous()).double()
    middle, high = known.quantile(torch.tensor([0.5, 0.95], dtype=torch.float64)).tolist()
    beyond = ((now - known[-1]) / max(high - middle, 1e-12)).clamp(min=0)
    surprise: Tensor = 3 * beyond - ((len(known) + 1 - below) / (len(known) + 1)).log()
    return surprise


class Distances:
    """Squared distances to the nearest class, by the scatter within classes.

    sums, weights  [D, C] and [C] of the features, every class with some weight
    """

    def __init__(self, centred: Centred, sums: Tensor, weights: Tensor, blocks: Sequence[int]) -> None:
        self.mean, self.count, self.weights = centred.mean, centred.weight, weights
        gram, _, self.coordinates = equations(centred, blocks)
        centres = self.coordinates.of(sums / weights - self.mean[:, None])
        self.root, self.ridge = factored(gram - (centres * weights) @ centres.T, HOLDBACK)
        whitened = torch.linalg.solve_triangular(self.root, centres, upper=False)
        self.centres = torch.cat([whitened, whitened.new_zeros(1, len(weights))])  # they lie in the span

    def of(self, features: Tensor) -> Tensor:
        """[n], of inputs that were not learned."""
        return self.count * _squares(self._whitened(features), self.centres).min(1).values

    def left_out(self, features: Tensor, y: Tensor, weight: Tensor) -> Tensor:
        """[n], of examples that were learned, each left out in turn; their classes have others."""
        own = self._whitened(features)
        squares = _squares(own, self.centres)
        rows = torch.arange(len(y), device=y.device)
        q, share = squares[rows, y], self.weights[y] / (self.weights[y] - weight)
        off = own - self.centres[:, y]
        along = (own * off).sum(0)[:, None] - off.T @ self.centres
        rest = (1 - weight * share * q).clamp(min=1e-9)
        squares = squares + (weight * share / rest)[:, None] * along.square()
        squares[rows, y] = share.square() * q / rest
        nearest: Tensor = squares.min(1).values
        return self.count * nearest

    def _whitened(self, features: Tensor) -> Tensor:
        from_mean = features.double().T - self.mean[:, None]
        inside = self.coordinates.of(from_mean)
        outside = (self.coordinates.outside(from_mean, inside) / self.ridge).sqrt()
        return torch.cat([torch.linalg.solve_triangular(self.root, inside, upper=False), outside[None]])


def left_out_scores(
    centred: Centred,
    root: Tensor,
    coordinates: Coordinates,
    scores: Tensor,
    features: Tensor,
    y: Tensor,
    weight: Tensor,
) -> Tensor:
    """Scores [n, C] of a regression on indicators without the example itself; `root` factors G + λ."""
    from_mean = coordinates.of(features.double().T - centred.mean[:, None])
    leverage = torch.linalg.solve_triangular(root, from_mean, upper=False).square().sum(0) + 1 / centred.weight
    rest = (1 - (weight * leverage).clamp(max=0.999))[:, None]
    target = torch.zeros_like(scores).scatter_(1, y[:, None], 1.0)
    left_out: Tensor = target - (target - scores) / rest
    return left_out


def certainty(scores: Tensor, y: Tensor, weight: Tensor, share: Tensor) -> Certainty:
    """The t and a under which these labels are most probable, by weights that sum to 1."""
    some = slice(max(ENOUGH, NUMBERS // len(share)))
    scores, y, weight, prior = scores[some].cpu(), y[some].cpu(), weight[some].cpu(), share.log().cpu()
    if prior.max() - prior.min() < 1e-9:
        prior = torch.zeros_like(prior)
    at = torch.tensor([2.0, 0.0], dtype=torch.float64, requires_grad=True)
    descent = torch.optim.LBFGS([at], max_iter=40, line_search_fn="strong_wolfe")

    sharpest = torch.tensor(SHARPEST, dtype=torch.float32).log().item()

    def loss() -> Tensor:
        descent.zero_grad()
        sharpness = at[0].clamp(max=sharpest).exp()
        costs = torch.nn.functional.cross_entropy(sharpness * scores + at[1] * prior, y, reduction="none")
        cost = weight @ costs + 1e-3 * at[1].square()
        cost.backward()
        return cost

    descent.step(loss)
    log_t, a = at.detach().tolist()
    t = torch.tensor(log_t, dtype=torch.float32).exp().item()
    return Certainty(float(min(max(t, 1.0), SHARPEST)), float(a))


def _squares(a: Tensor, b: Tensor) -> Tensor:
    """Squared distances [n, C] of columns."""
    squares: Tensor = a.square().sum(0)[:, None] - 2 * a.T @ b + b.square().sum(0)
    return squares.clamp(min=0)


# ── without a sample ─────────────────────────────────────────────────────────────────────────────────────────────


def sharpness(
    centred: Centred, class_sums: Tensor, class_weights: Tensor, solution: Solution, leverage: float
) -> float:
    """The t of softmax(t · score), of nothing but the sums.

    Regression scores are no probabilities: they must be sharpened, softmax(t · score), and the right t is the one
    under which unseen examples are most probable. The sums give the scores' means per class, and their covariance
    within a class. Leaving an example out moves its score by its own leverage. The
    mean leverage stands for it, so both are known for unseen examples, and draws from these Gaussians for them.
    Real scores have heavier tails than Gaussians, so a share of the draws is given another class's scores, the
    more the classes overlap: without them, probabilities come out far too sure.

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
    astray = torch.rand(DRAWS, generator=draw, dtype=torch.float32) < ASTRAY[0] + ASTRAY[1] * wrong
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
    decades = torch.tensor(SHARPEST, dtype=torch.float32).log10().item()
    factors = torch.logspace(0, decades, 100, dtype=torch.float64)
    losses = [torch.nn.functional.cross_entropy(scores * t, truth).item() for t in factors]
    return float(factors[min(range(len(losses)), key=losses.__getitem__)])
