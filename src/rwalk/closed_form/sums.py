"""Sums for least squares, which add, subtract and merge.

For features φ, targets y and weights w of all examples seen,

    G = Σ w φ φᵀ     s = Σ w φ     X = Σ w φ yᵀ     t = Σ w y     q = Σ w y²     n = Σ w

Sums do not depend on the order of their terms, so no result computed from them does. Subtracting the terms of an
example removes it exactly.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import NamedTuple, Self

import torch
from torch import Tensor

BLOCK = 4096  # rows multiplied at a time: float32 products are summed over no more of them than that
WAITING = 512, 2048  # rows of small calls kept until they are worth a multiplication; more where NumPy multiplies
MANY = 200  # classes, beyond which a product with their indicators is mostly zeros
PANELS = 12  # the Gram matrix is symmetric: in twelve panels, little more than half of it is computed and kept
LOW_RANK = 1 / 3  # of the features: a Gram matrix of no higher rank is stored as a factor
AT_ONCE = 1 << 27  # bytes of features that a large call holds: many rows per product, and none of them twice


class Centred(NamedTuple):
    """The statistics about the mean, as a least-squares fit with an intercept needs them."""

    gram: Tensor  # [D, D]
    cross: Tensor  # [D, C]
    squares: Tensor  # [C]
    mean: Tensor  # [D], of the features
    target: Tensor  # [C], mean of the targets
    weight: float
    root: Tensor | None = None  # [rank, D], a factor of the first, if its rank is low


@dataclass
class Statistics:
    """Sums over all examples seen, always in float64."""

    gram: Tensor  # panels of rows, each from the diagonal on, one after the other: see `panels`
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
        gram = zeros(sum(rows * columns for _, rows, columns in _panels(features)))
        cross = zeros(features, targets)
        return cls(gram, zeros(features), cross, zeros(targets), zeros(targets), zeros(), counts)

    @property
    def size(self) -> int:
        return len(self.total)

    def panels(self) -> Iterator[tuple[slice, Tensor]]:
        """Rows of the Gram matrix, and what is kept of them: from the first of these rows' columns on."""
        used = 0
        for start, rows, columns in _panels(self.size):
            panel = self.gram[used : used + rows * columns].view(rows, columns)
            yield slice(start, start + rows), panel
            used += rows * columns

    def symmetric(self, features: int | None = None) -> Tensor:
        """The Gram matrix [D, D] of all features or the first ones."""
        self._add_waiting()
        size = self.size if features is None else features
        whole = self.gram.new_empty(size, size)
        for rows, panel in self.panels():
            part = panel[: max(0, size - rows.start), : max(0, size - rows.start)]
            whole[rows, rows.start :] = part
            whole[rows.start :, rows] = part.T
            own = part[:, : len(part)].triu()
            whole[rows, rows] = own + own.triu(1).T
        return whole

    def second_moments(self) -> Tensor:
        """Σ w φ² [D]: the diagonal of the Gram matrix."""
        self._add_waiting()
        return torch.cat([panel.diagonal() for _, panel in self.panels()])

    # ── sums ──────────────────────────────────────────────────────────────────────────────────────────────────

    def add(self, features: Tensor, y: Tensor, weight: Tensor) -> None:
        """Count these in. `y` is a column number per example, or one real number per example and column."""
        columns = len(self.counts)
        if y.ndim == 1:
            self.counts += torch.bincount(y, minlength=columns)
            own = torch.zeros_like(self.targets).index_add_(0, y, weight)
            self.targets += own
            self.squares += own
        else:
            self.counts += len(y)
            self.targets += weight @ y.double()
            self.squares += weight @ y.double().square()
        self.weight += weight.sum()
        self._waiting.append((features, y, weight))
        if sum(len(rows) for rows, _, _ in self._waiting) >= WAITING[_by_blas(features)]:
            self._add_waiting()

    def merge(self, other: Statistics, sign: int = 1) -> None:
        """Count in (or out: −1) all that another has seen with the same features and columns."""
        for name, theirs in other.tensors().items():
            getattr(self, name).add_(theirs.to(self.gram.device), alpha=sign)

    def tensors(self) -> dict[str, Tensor]:
        """All sums by name, with nothing left waiting."""
        self._add_waiting()
        return {each.name: getattr(self, each.name) for each in fields(self) if not each.name.startswith("_")}

    def columns(self, places: list[int], targets: int) -> Self:
        """The same sums, old column i now at places[i] of `targets` columns; it is dropped at −1."""
        tensors = self.tensors()
        moved = type(self).empty(self.size, targets, self.gram.device)
        kept = [old for old, new in enumerate(places) if new >= 0]
        before, after = _run(kept), _run([places[old] for old in kept])
        for name in ("cross", "targets", "squares", "counts"):
            getattr(moved, name)[..., after] = tensors[name][..., before]
        moved.gram, moved.total, moved.weight = self.gram, self.total, self.weight
        return moved

    def _add_waiting(self) -> None:
        waiting, self._waiting = self._waiting, []
        if not waiting:
            return
        # A large call waits alone, and is not copied.
        features, y, weight = waiting[0] if len(waiting) == 1 else map(torch.cat, zip(*waiting, strict=True))
        rows = len(features) if _by_blas(features) else BLOCK
        for block in zip(*(each.split(rows) for each in (features, y, weight)), strict=True):
            self._add_block(*block)

    def _add_block(self, phi: Tensor, y: Tensor, weight: Tensor) -> None:
        weighted = phi if (weight == 1).all() else phi * weight.to(phi.dtype)[:, None]
        if _by_blas(phi):
            self._add_square(phi if weighted is phi else phi * weight.sqrt()[:, None])
        else:
            for rows, panel in self.panels():
                panel += weighted[:, rows].T @ phi[:, rows.start :]
        if y.ndim == 1 and (_by_blas(phi) or len(self.counts) > MANY):
            present, place = y.unique(return_inverse=True)
            each = weighted.new_zeros(len(present), self.size, dtype=torch.float64)
            self.cross[:, present] += each.index_add_(0, place, weighted.to(torch.float64)).T
            self.total += each.sum(0)
            return
        self.total += weighted.sum(0, dtype=torch.float64)
        if _by_blas(phi):
            self.cross += (y.to(torch.float64).T @ weighted).T
        else:
            target = _one_hot(y, len(self.counts)) if y.ndim == 1 else y.to(torch.float64)
            self.cross += weighted.T.to(torch.float64) @ target

    def _add_square(self, root: Tensor) -> None:
        """Add rootᵀ root; NumPy computes one half of a symmetric product."""
        every = root.numpy()
        for rows, panel in self.panels():
            own = every[:, rows]
            panel[:, : len(panel)] += torch.from_numpy(own.T @ own)
            panel[:, len(panel) :] += torch.from_numpy(own.T @ every[:, rows.stop :])

    # ── results ───────────────────────────────────────────────────────────────────────────────────────────────

    def shifted(self, by: Tensor) -> Self:
        """The sums of the same examples with features φ + by."""
        sums = self.tensors()
        moved = copy.deepcopy(self)
        total, weight = sums["total"], sums["weight"]
        for rows, panel in moved.panels():
            along, after = by[rows, None], slice(rows.start, None)
            panel += total[rows, None] * by[after] + along * total[after] + weight * along * by[after]
        moved.total += sums["weight"] * by
        moved.cross += torch.outer(by, sums["targets"])
        return moved

    def scale(self, factor: float) -> None:
        """Multiply all weights, so far, by a factor; counts stay."""
        for name, each in self.tensors().items():
            if name != "counts":
                each.mul_(factor)

    def centred(self, examples: float | None = None, features: int | None = None) -> Centred:
        """About the mean, of all features or the first ones; weights sum to `examples`, if that is given."""
        tensors, some = self.tensors(), slice(features)
        weight = float(tensors["weight"])
        factor = 1.0 if examples is None else examples / max(weight, 1e-300)
        weight *= factor
        target = tensors["targets"] * factor / weight
        mean = tensors["total"][some] * factor / weight
        gram = self.symmetric(features)
        gram *= factor
        for rows, own in zip(gram.split(WAITING[0]), mean.split(WAITING[0]), strict=True):
            rows -= weight * torch.outer(own, mean)
        cross = tensors["cross"][some] * factor - weight * torch.outer(mean, target)
        squares = (tensors["squares"] * factor - weight * target.square()).clamp(min=0)
        return Centred(gram, cross, squares, mean, target, weight)

    def compact(self) -> dict[str, Tensor]:
        """All sums by name, for a file: of the symmetric matrix the upper half, "gram", or a factor, "root".

        Few examples leave a matrix of low rank, whose factor is far smaller. The sums become those of the factor,
        so that the model and its file continue alike.
        """
        tensors = self.tensors()
        if (root := self.low_rank()) is not None:
            del tensors["gram"]
            self.gram.zero_()
            self._add_square(root)
            return {**tensors, "root": root}
        return {**tensors, "gram": torch.cat([panel[_upper(panel)] for _, panel in self.panels()])}

    def low_rank(self, gram: Tensor | None = None) -> Tensor | None:
        """R [rank, D] of this matrix RᵀR of the features, if few examples leave it a low rank."""
        size = self.size if gram is None else len(gram)
        if int(self.counts.sum()) > LOW_RANK * size or self.gram.device.type != "cpu":
            return None
        root = _factor(self.symmetric() if gram is None else gram)
        return root if 0 < len(root) <= LOW_RANK * size else None

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor], device: torch.device) -> Self:
        """The sums that `compact` gives."""
        parts = dict(tensors)
        root, upper = parts.pop("root", None), parts.pop("gram", None)
        sums = cls.empty(len(parts["total"]), len(parts["counts"]))
        if root is not None:
            sums._add_square(root)
        elif upper is not None:
            used = 0
            for _, panel in sums.panels():
                own = _upper(panel)
                panel[own] = upper[used : used + int(own.sum())]
                used += int(own.sum())
        parts["gram"] = sums.gram
        return cls(**{name: each.to(device) for name, each in parts.items()})


def _panels(size: int) -> Iterator[tuple[int, int, int]]:
    """First row, rows and columns of the panels of a symmetric matrix."""
    width = max(1, -(-size // PANELS))
    for start in range(0, size, width):
        yield start, min(width, size - start), size - start


def _run(places: list[int]) -> slice | list[int]:
    """The same places, as a slice if they are adjacent, which moves whole rows of memory."""
    first, after = (places[0], places[0] + len(places)) if places else (0, 0)
    return slice(first, after) if places == list(range(first, after)) else places


def _upper(panel: Tensor) -> Tensor:
    """Which of its numbers lie in the upper triangle."""
    return torch.ones(panel.shape, dtype=torch.bool, device=panel.device).triu()


def _factor(gram: Tensor) -> Tensor:
    """R [rank, D] of G = RᵀR: a Cholesky factor with pivots, of features scaled alike."""
    from scipy.linalg.lapack import dpstrf

    upper = gram.triu()
    scale = upper.diagonal().clamp(min=0).sqrt()
    inverse = torch.where(scale > 0, 1 / scale, 0.0)
    factor, pivots, rank, _ = dpstrf((upper * inverse[:, None] * inverse).numpy(), tol=1e-14)
    root = torch.zeros(rank, len(gram), dtype=torch.float64)
    root[:, torch.from_numpy(pivots).long() - 1] = torch.from_numpy(factor).triu()[:rank]
    return root * scale


def rows_at_once(features: int) -> int:
    """Rows of so many features that a large call computes before it multiplies them."""
    return max(512, AT_ONCE // (8 * features))


def _by_blas(phi: Tensor) -> bool:
    """Whether NumPy computes the product: it computes half of a symmetric one, and torch all of it."""
    return phi.dtype == torch.float64 and phi.device.type == "cpu"


def _one_hot(y: Tensor, columns: int) -> Tensor:
    target = torch.zeros(len(y), columns, dtype=torch.float64, device=y.device)
    return target.scatter_(1, y[:, None], 1.0)
