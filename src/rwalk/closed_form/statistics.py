"""What a least-squares learner needs to know of its data: sums, which add, subtract and merge.

For features φ, targets y and weights w of all examples seen,

    G = Σ w φ φᵀ     s = Σ w φ     X = Σ w φ yᵀ     t = Σ w y     q = Σ w y²     n = Σ w

Sums do not know in which order their terms came, so neither does anything computed from them; and an example is
taken out again by adding it with the weight −w. That is the whole reason why this package forgets nothing, and
forgets exactly what it is told to.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field, fields
from typing import NamedTuple, Self

import torch
from torch import Tensor

BLOCK = 4096  # rows multiplied at a time: float32 products are summed over no more of them than that
WAITING = 512  # rows of small calls kept until they are worth a multiplication
MANY = 200  # classes, beyond which a product with their indicators is mostly zeros
PANELS = 12  # the Gram matrix is symmetric: in twelve panels, little more than half of it is computed


class Centred(NamedTuple):
    """The statistics about the mean, as a least-squares fit with an intercept needs them."""

    gram: Tensor  # [D, D]
    cross: Tensor  # [D, C]
    squares: Tensor  # [C]
    mean: Tensor  # [D], of the features
    target: Tensor  # [C], mean of the targets
    weight: float


@dataclass
class Statistics:
    """Sums over all examples seen, in float64, whatever the features' precision."""

    gram: Tensor  # [D, D]; below the panels of the diagonal it is not filled
    total: Tensor  # [D]
    cross: Tensor  # [D, C]
    targets: Tensor  # [C]
    squares: Tensor  # [C]
    weight: Tensor  # []
    counts: Tensor  # [C], int64: how many examples each target has
    _waiting: list[tuple[Tensor, Tensor, Tensor]] = field(default_factory=list, init=False, repr=False)

    @classmethod
    def empty(cls, features: int, targets: int, device: torch.device | str = "cpu") -> Self:
        def zeros(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=torch.float64, device=device)

        counts = torch.zeros(targets, dtype=torch.int64, device=device)
        gram, cross = zeros(features, features), zeros(features, targets)
        return cls(gram, zeros(features), cross, zeros(targets), zeros(targets), zeros(), counts)

    @property
    def size(self) -> int:
        return len(self.total)

    # ── sums ──────────────────────────────────────────────────────────────────────────────────────────────────

    def add(self, features: Tensor, y: Tensor, weight: Tensor) -> None:
        """Count these in. `y` is a column number per example, or one real number per example and column."""
        self._count(y, 1)
        self._wait(features, y, weight)

    def remove(self, features: Tensor, y: Tensor, weight: Tensor) -> None:
        """Take these out again: exact, if they were counted in with these weights."""
        self._count(y, -1)
        self._wait(features, y, -weight)

    def merge(self, other: Statistics, sign: int = 1) -> None:
        """Count in (or out: −1) all that another has seen with the same features and columns."""
        for name, theirs in other.tensors().items():
            getattr(self, name).add_(theirs.to(self.gram.device), alpha=sign)

    def class_weights(self) -> Tensor:
        """`targets` [C], without adding what is waiting."""
        weights = self.targets
        for _, y, weight in self._waiting:
            own = weight @ y if y.ndim == 2 else torch.zeros_like(weights).index_add_(0, y, weight)
            weights = weights + own
        return weights

    def tensors(self) -> dict[str, Tensor]:
        """All sums by name, with nothing left waiting."""
        self._add_waiting()
        return {each.name: getattr(self, each.name) for each in fields(self) if not each.name.startswith("_")}

    def columns(self, places: list[int], targets: int) -> Self:
        """The same sums, old column i now at places[i] of `targets` columns; it is dropped at −1."""
        tensors = self.tensors()
        moved = type(self).empty(self.size, targets, self.gram.device)
        kept = [old for old, new in enumerate(places) if new >= 0]
        new = [places[old] for old in kept]
        for name in ("cross", "targets", "squares", "counts"):
            getattr(moved, name)[..., new] = tensors[name][..., kept]
        moved.gram, moved.total, moved.weight = self.gram, self.total, self.weight
        return moved

    def _count(self, y: Tensor, sign: int) -> None:
        columns = len(self.counts)
        each = torch.bincount(y, minlength=columns) if y.ndim == 1 else torch.full_like(self.counts, len(y))
        self.counts += sign * each

    def _wait(self, features: Tensor, y: Tensor, weight: Tensor) -> None:
        self._waiting.append((features, y, weight))
        if sum(len(rows) for rows, _, _ in self._waiting) >= WAITING:
            self._add_waiting()

    def _add_waiting(self) -> None:
        waiting, self._waiting = self._waiting, []
        if waiting:
            # A large call waits alone, and is not copied.
            together = waiting[0] if len(waiting) == 1 else map(torch.cat, zip(*waiting, strict=True))
            for block in zip(*(each.split(BLOCK) for each in together), strict=True):
                self._add_block(*block)

    def _add_block(self, phi: Tensor, y: Tensor, weight: Tensor) -> None:
        weighted = phi if (weight == 1).all() else phi * weight.to(phi.dtype)[:, None]
        width = max(1, -(-self.size // PANELS))
        for start in range(0, self.size, width):
            panel = weighted[:, start : start + width].T @ phi[:, start:]
            self.gram[start : start + width, start:] += panel
        self.total += weighted.sum(0, dtype=torch.float64)
        self.weight += weight.sum()
        if y.ndim == 1 and len(self.counts) > MANY:
            present, place = y.unique(return_inverse=True)
            each = weighted.new_zeros(len(present), self.size, dtype=torch.float64)
            self.cross[:, present] += each.index_add_(0, place, weighted.to(torch.float64)).T
            own = torch.zeros_like(self.targets).index_add_(0, y, weight)
            self.targets += own
            self.squares += own
            return
        target = _one_hot(y, len(self.counts)) if y.ndim == 1 else y.to(torch.float64)
        self.cross += weighted.T.to(torch.float64) @ target
        self.targets += weight @ target
        self.squares += weight @ target.square()

    # ── what they say ─────────────────────────────────────────────────────────────────────────────────────────

    def shifted(self, by: Tensor) -> Self:
        """The sums of the same examples with features φ + by."""
        sums = self.tensors()
        moved = copy.deepcopy(self)
        one_way = torch.outer(sums["total"], by)
        moved.gram += one_way + one_way.T + sums["weight"] * torch.outer(by, by)
        moved.total += sums["weight"] * by
        moved.cross += torch.outer(by, sums["targets"])
        return moved

    def scale(self, factor: float) -> None:
        """Multiply all weights, so far, by a factor; counts stay."""
        for name, each in self.tensors().items():
            if name != "counts":
                each.mul_(factor)

    def centred(self, examples: float | None = None) -> Centred:
        """About the mean; if `examples` is given, with weights scaled to sum to this number."""
        tensors = self.tensors()
        if examples is not None and examples != float(self.weight):
            factor = examples / max(float(self.weight), 1e-300)
            tensors = {name: each * factor for name, each in tensors.items() if name != "counts"}
        weight = float(tensors["weight"])
        mean, target = tensors["total"] / weight, tensors["targets"] / weight
        upper = tensors["gram"].triu()
        gram = upper + upper.triu(1).T
        gram -= weight * torch.outer(mean, mean)
        cross = tensors["cross"] - weight * torch.outer(mean, target)
        squares = (tensors["squares"] - weight * target.square()).clamp(min=0)
        return Centred(gram, cross, squares, mean, target, weight)


def _one_hot(y: Tensor, columns: int) -> Tensor:
    target = torch.zeros(len(y), columns, dtype=torch.float64, device=y.device)
    return target.scatter_(1, y[:, None], 1.0)
