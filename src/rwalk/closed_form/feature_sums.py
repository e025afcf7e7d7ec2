"""A feature map and the sums of its features: examples are added, removed, and not kept."""

from __future__ import annotations

import copy
import math
from typing import Self

import numpy as np
import torch
from torch import Tensor

from rwalk.closed_form.examples import SIZE, Examples, Sample, keys_of
from rwalk.closed_form.features import FeatureMap, placed
from rwalk.closed_form.sums import Centred, Statistics, rows_at_once
from rwalk.errors import InputError, warn_caller

ROWS = 2048  # of a small call, whose features are kept until they are summed
AT_ONCE = 256, 2048  # rows that go through the map together, on a CPU (where they stay in the cache) and elsewhere
LARGEST = {torch.float32: 1e18, torch.float64: 1e100}  # inputs: the squares of their features must not overflow
WORTH_LIFTING = 2  # examples per feature of a network, to look at more features than its own
SEVERAL, LOOKED_AT = 5, 1000  # examples, at least and about at most, to judge where the inputs of a call lie
FLAT = 0.02  # of the range so far: images with less contrast are in another unit
REBASE = 64  # half-lives: then the sums are scaled down, by a power of two, which rounds nothing
ROUNDED = 1e-10  # of sums of squared weights
NEVER_LEARNED = (
    "these examples are not the ones that were learned: nothing was forgotten; give only learned examples"
)
OTHER_WEIGHTS = (
    "these examples were learned with other weights: nothing was forgotten; give sample_weight as it was then"
)
LOST = (
    "some examples that are left weigh less than the rounding of those forgotten, so predictions may not reflect "
    "them: to keep them, fit again with the examples that are left"
)


class Counted:
    """The sums of all examples so far, under a map that computes in one precision on one device.

    The map computes in `dtype`. Products are computed in float64, unless the user sets float32 (`products`):
    rounded products do not cancel when examples are removed. Features are centred by `shift`, the mean of the
    first ones, before they are multiplied: an offset that is large beside the deviations would cancel all digits.

    With a `half_life` h, an example learned at time t (a count of examples) has the weight 2^(t/h), relative to
    2^(origin/h). Only ratios of weights matter, so old examples fade without the sums being touched.
    """

    def __init__(
        self,
        features: FeatureMap,
        columns: int,
        dtype: torch.dtype,
        device: torch.device,
        products: torch.dtype = torch.float64,
        half_life: float | None = None,
    ) -> None:
        self.map = features
        self.dtype = dtype
        self.device = device
        self.products = products
        self.half_life = half_life
        self.clock = 0  # examples learned
        self.origin = 0.0  # the time at which an example has the weight 1
        self.statistics = self._empty(columns)
        self.squared = self.statistics.weight.clone()  # Σ w²
        self.unit = 0  # greatest common divisor of all weights; −1 if they are not all whole numbers
        self.shift: Tensor | None = None  # [D]
        self.range: tuple[Tensor, Tensor] | None = None  # least and largest input of every column, or channel
        self.sample = Sample.empty(self.statistics.size, device)
        self.drift: dict[int, float] = {}  # how far the last call's classes moved, by column
        self._placed = placed(features, dtype, device)

    # ── adding and removing ───────────────────────────────────────────────────────────────────────────────────

    def learn(self, examples: Examples) -> tuple[Tensor, Tensor, Tensor] | None:
        """All of them or, if something fails, none; a small call's features, targets and weights in the sums."""
        check_inputs(examples.x, self.dtype)
        small: tuple[Tensor, Tensor, Tensor] | None = None
        growth = self._growth(len(examples))
        weight = examples.weight.to(self.device) * growth
        if len(examples) <= ROWS:
            phi, y = self.summed(examples.x), examples.y.to(self.device)
            drawn = self._drawn(examples, growth, phi)
            drift = self._drift(phi, y)
            self._rebase(len(examples))
            self.statistics.add(phi, y, weight)
            small = phi, y, weight
        else:
            sums = self._sums(examples, weight)
            drawn = self._drawn(examples, growth)
            several = (sums.counts >= SEVERAL).nonzero()[:, 0] if examples.y.ndim == 1 else sums.counts[:0]
            means = sums.cross[:, several] / sums.targets[several]
            drift = self._drift_of(several, sums.counts[several], means)
            self._rebase(len(examples))
            self.statistics.merge(sums)
        self.sample = self.sample.joined(drawn)
        self.drift = drift
        self.squared += weight.square().sum()
        self.unit = joint_unit(self.unit, unit_of(weight))
        self.clock += len(examples)
        self.range = joint_range(self.range, range_of(examples.x, self.dtype))
        return small

    def forget(self, examples: Examples) -> None:
        """Remove these; refuse, with nothing changed, if no examples could have the remaining sums."""
        if self.half_life is not None:
            raise InputError(
                "with half_life= every example fades by its age, unknown to forget: nothing was forgotten"
            )
        low, high = range_of(examples.x, self.dtype)
        if self.range is not None and ((low < self.range[0]).any() or (high > self.range[1]).any()):
            raise InputError(NEVER_LEARNED)
        weight = examples.weight.to(self.device)
        gone = self._sums(examples, weight)
        left = copy.deepcopy(self.statistics)
        left.merge(gone, sign=-1)
        self._check_left(left, float(weight.sum()))
        squared = self.squared - weight.square().sum()
        if not _could_be_weights(self.statistics, self.squared, left, squared):
            raise InputError(OTHER_WEIGHTS)
        self.statistics = left
        self.sample = Sample.empty(left.size, self.device)  # it may hold the forgotten examples
        self.squared = squared.clamp(min=0)

    def merge(self, other: Counted) -> None:
        """Add the sums of another, which has the same map."""
        if self.half_life != other.half_life:
            raise InputError(
                f"half_life={self.half_life} and {other.half_life} cannot be merged: set one value for both"
            )
        theirs, drawn = copy.deepcopy(other.statistics), other.sample
        if self.shift is None:
            self.shift = other.shift
        elif other.shift is not None:
            apart = other.shift.to(self.device) - self.shift
            theirs = theirs.shifted(apart)
            drawn = drawn._replace(features=(drawn.features.to(self.device) + apart).float())
        squared = other.squared.to(self.device)
        if self.half_life is not None:
            # Both on one axis of time: examples of one time fade together.
            self._rebase(max(0, other.clock - self.clock))
            factor = 2.0 ** ((other.origin - self.origin) / self.half_life)
            theirs.scale(factor)
            drawn = drawn.scaled(factor)
            squared = squared * factor**2
        self.statistics.merge(theirs)
        self.sample = self.sample.joined(drawn)
        self.squared += squared
        self.unit = joint_unit(self.unit, other.unit)
        self.clock = max(self.clock, other.clock) if self.half_life is not None else self.clock + other.clock
        if other.range is not None:
            self.range = joint_range(self.range, other.range)

    def fresh(self, columns: int) -> Self:
        """The same map without examples."""
        twin = copy.copy(self)
        twin.statistics = self._empty(columns)
        twin.squared, twin.range, twin.unit = torch.zeros_like(self.squared), None, 0
        twin.sample = Sample.empty(self.statistics.size, self.device)
        if self.half_life is None:
            twin.clock = 0
        return twin

    def moved(self, places: list[int], columns: int) -> Self:
        """The same with column i at places[i] of `columns`; it is dropped at −1."""
        twin = copy.copy(self)
        twin.statistics = self.statistics.columns(places, columns)
        twin.sample = self.sample.columns(places)
        return twin

    def use_half_life(self, half_life: float | None) -> None:
        """Fade by another half-life from now on."""
        if half_life != self.half_life:
            if self.half_life is not None:
                self._scale(2.0 ** ((self.origin - self.clock) / self.half_life))
            self.half_life, self.origin = half_life, float(self.clock)

    # ── features ──────────────────────────────────────────────────────────────────────────────────────────────

    def features(self, x: Tensor) -> Tensor:
        """The map's, of inputs on any device."""
        return torch.cat([self._computed(part) for part in x.split(AT_ONCE[self.device.type != "cpu"])])

    def summed(self, x: Tensor, room: Tensor | None = None) -> Tensor:
        """The features as they enter the sums, centred, in the precision of products; in `room` if it is given."""
        if self.shift is None:
            self.shift = self.features(x).double().mean(0)
        out = self._room(len(x)) if room is None else room[: len(x)]
        rows = AT_ONCE[self.device.type != "cpu"]
        for part, own in zip(x.split(rows), out.split(rows), strict=True):
            torch.sub(self._computed(part), self.shift, out=own)
        return out

    def _room(self, rows: int) -> Tensor:
        return torch.empty(rows, self.statistics.size, dtype=self.products, device=self.device)

    def _computed(self, x: Tensor) -> Tensor:
        features = self._placed(x.to(self.device).to(self.dtype)).to(self.dtype)
        # A sum is one look at the features; where it overflows, it takes a closer one.
        if not features.sum().isfinite() and not features.isfinite().all():
            raise InputError(
                "the features of an input are not finite: check the network, or bring inputs to scale"
            )
        return features

    # ── readings ──────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def examples(self) -> float:
        """The number of equally weighted examples that the sums are worth; the unit of weight cancels.

        Weights that are multiples of a whole number are repetitions; others are worth (Σ w)² / Σ w² (Kish).
        """
        squared = float(self.squared)
        weight = float(self.statistics.tensors()["weight"])
        if self.unit > 0:
            return weight / self.unit
        return weight**2 / squared if squared > 0 else weight

    @property
    def choices(self) -> list[list[int]]:
        """Sizes of the groups of features to choose from: of a network with enough examples, two."""
        own, *lift = self.map.blocks
        if self.map.kind != "backbone" or not lift:
            return [list(self.map.blocks)]
        lifted = [own, min(lift[0], int(self.examples))]
        return [[own], lifted] if self.examples >= WORTH_LIFTING * own else [[own]]

    def centred(self, used: int) -> Centred:
        """About the means, of the first features. A feature that varies by no more than rounding does not vary."""
        centred = self.statistics.centred(self.examples, used)
        shift = torch.zeros_like(centred.mean) if self.shift is None else self.shift[:used]
        precise = self.dtype == torch.float64
        resolution = (1e-28 if precise else 1e-13) * shift.square()
        resolution += (1e-14 if self.products == torch.float64 else 1e-6) * centred.mean.square()
        constant = centred.gram.diagonal() <= centred.weight * resolution
        if constant.any():
            centred.gram[constant] = 0
            centred.gram[:, constant] = 0
            centred.cross[constant] = 0
        return centred._replace(root=self.statistics.low_rank(centred.gram))

    def outside(self, x: Tensor) -> int | None:
        """The column (or channel) of these inputs that mostly lies far outside the learned range, if any."""
        return None if self.range is None else outside(x, self.range, getattr(self.map, "scale", None))

    def _drift(self, phi: Tensor, y: Tensor) -> dict[int, float]:
        if y.ndim != 1:
            return {}
        classes, place, counts = y.unique(return_inverse=True, return_counts=True)
        if not bool((counts >= SEVERAL).any()):
            return {}
        sums = phi.new_zeros(len(classes), phi.shape[1], dtype=torch.float64)
        return self._drift_of(classes, counts, (sums.index_add_(0, place, phi.double()) / counts[:, None]).T)

    def _drift_of(self, classes: Tensor, counts: Tensor, means: Tensor) -> dict[int, float]:
        """How far the means [D, m] of a call's classes lie from their means so far, in deviations of a feature.

        It is the root of the mean square over features, less what chance alone explains.
        """
        sums = self.statistics.tensors()
        both = (counts >= SEVERAL) & (sums["counts"][classes] >= SEVERAL) & (sums["targets"][classes] > 0)
        if not bool(both.any()):
            return {}
        classes, counts, means = classes[both], counts[both], means[:, both]
        weight = sums["weight"]
        variance = self.statistics.second_moments() / weight - (sums["total"] / weight).square()
        varies = variance > 1e-12 * variance.max()
        apart = (means - sums["cross"][:, classes] / sums["targets"][classes])[varies]
        square = (apart.square() / variance[varies, None]).mean(0)
        chance = 1 / counts + 1 / sums["counts"][classes]
        return dict(zip(classes.tolist(), (square - chance).clamp(min=0).sqrt().tolist(), strict=True))

    def _check_left(self, left: Statistics, removed: float) -> None:
        """Refuse sums that no examples could have: the scatter within classes must be positive semidefinite.

        Where there are more examples than features, foreign rows can pass; a ledger recognises them.
        """
        before, now = self.statistics.tensors(), left.tensors()
        weight = float(before["weight"])
        slack = 1e-9 if self.products == torch.float64 else 1e-4
        if self.dtype != torch.float64:  # an image's features depend, by rounding, on its neighbours in a batch
            slack = max(slack, 1e-5 * min(1.0, removed / weight))
        variance = self.statistics.second_moments().clamp(min=0)
        scale = torch.where(variance > 0, variance, 1.0).rsqrt()
        scatter = left.symmetric().mul_(scale[:, None]).mul_(scale)
        # A sum of n weights is rounded by up to n · eps of itself, so the rest may weigh more than it seems to.
        eps = torch.finfo(torch.float64).eps * before["counts"].double()
        whole = eps.max() * weight
        lost = bool(now["counts"].any() and now["weight"] < whole)
        if _is_indicators(before):
            rounding = eps * before["targets"].clamp(min=0)
            cross = now["cross"] * scale[:, None]
            gone = now["counts"] == 0
            allowed = 1e3 * slack * (len(scale) * before["targets"][gone].clamp(min=0)).sqrt()
            sound = bool((now["targets"] >= -slack * weight).all())
            sound &= bool((now["targets"][gone] <= slack * weight).all())
            sound &= bool((cross[:, gone].norm(dim=0) <= allowed).all())
            own, seems, rounding = cross[:, ~gone], now["targets"][~gone], rounding[~gone]
            scatter -= (own / (seems.clamp(min=0) + rounding).clamp(min=1e-300)) @ own.T
            lost |= bool((seems < rounding).any())
        else:
            total = now["total"] * scale
            scatter -= torch.outer(total, total) / (now["weight"].clamp(min=0) + whole).clamp(min=1e-300)
            sound = float(now["weight"]) >= -slack * weight
        scatter.diagonal().add_(slack * len(scatter) ** 0.5)
        if not sound or torch.linalg.cholesky_ex(scatter)[1]:
            raise InputError(NEVER_LEARNED)
        if lost:
            warn_caller(LOST)

    # ── helpers ───────────────────────────────────────────────────────────────────────────────────────────────

    def _growth(self, count: int) -> Tensor | float:
        """Weights of examples learned now, one time step after the other, once the sums are rebased for them."""
        if self.half_life is None:
            return 1.0
        origin = self._origin_after(count)
        times = torch.arange(1, count + 1, dtype=torch.float64, device=self.device) + (self.clock - origin)
        return torch.exp2(times / self.half_life)

    def _origin_after(self, count: int) -> float:
        assert self.half_life is not None
        age = (self.clock + count - self.origin) / self.half_life
        return self.origin + (math.floor(age) * self.half_life if age > REBASE else 0.0)

    def _rebase(self, count: int) -> None:
        if self.half_life is not None:
            origin = self._origin_after(count)
            self._scale(2.0 ** (-round((origin - self.origin) / self.half_life)))
            self.origin = origin

    def _scale(self, factor: float) -> None:
        if factor != 1:
            self.statistics.scale(factor)
            self.squared = self.squared * factor**2
            self.sample = self.sample.scaled(factor)

    def _drawn(self, examples: Examples, growth: Tensor | float, phi: Tensor | None = None) -> Sample:
        """The sample of a call; `phi` if its features are there already. Numbers need none."""
        if examples.y.ndim != 1:
            return Sample.empty(self.statistics.size, self.device)
        factor = growth.cpu().clamp(min=1e-300) if isinstance(growth, Tensor) else growth
        keys, given = keys_of(examples.x, self.dtype, factor), examples.weight
        kept = keys.argsort(stable=True)[:SIZE]
        features = self.summed(examples.x[kept]) if phi is None else phi[kept.to(self.device)]
        tensors = keys, examples.y, given * factor, given
        keys, y, weight, given = (each[kept].to(self.device) for each in tensors)
        return Sample(keys, features.float(), y, weight, given, float((examples.weight * factor).sum()))

    def _sums(self, examples: Examples, weight: Tensor) -> Statistics:
        sums = self._empty(len(self.statistics.counts))
        together = rows_at_once(sums.size) if self.products == torch.float64 else ROWS
        room = self._room(min(together, len(examples)))  # fresh memory for every part would cost page faults
        for start in range(0, len(examples), together):
            rows = slice(start, start + together)
            part = examples.rows(rows)
            sums.add(self.summed(part.x, room), part.y.to(self.device), weight[rows])
            sums.tensors()  # completes the sums
        return sums

    def _empty(self, columns: int) -> Statistics:
        return Statistics.empty(sum(self.map.blocks), columns, self.device)


def check_inputs(x: Tensor, dtype: torch.dtype) -> None:
    """Refuse numbers so large that sums of their squares would overflow, or all so small that they are lost."""
    if not (x.is_floating_point() and x.numel()):
        return
    largest = max(map(abs, map(float, x.aminmax())))
    if largest > LARGEST[dtype]:
        raise InputError(f"an input is larger than {LARGEST[dtype]:g}: bring inputs to scale")
    if 0 < largest < 1 / LARGEST[dtype]:
        raise InputError(f"all inputs are smaller than {1 / LARGEST[dtype]:g}: bring inputs to scale")


def columns_of(x: Tensor) -> Tensor:
    """[m, columns] of vectors and matrices, [m, channels] of images."""
    return x.flatten(2).movedim(1, 2).flatten(0, 1) if x.ndim > 3 else x.flatten(1)


def range_of(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Least and largest value of every column, or channel, as a map of this precision reads them."""
    low, high = columns_of(x).aminmax(dim=0)
    return low.to(dtype).double().cpu(), high.to(dtype).double().cpu()


def outside(x: Tensor, known: tuple[Tensor, Tensor], scale: Tensor | None) -> int | None:
    """The column (or channel) whose median lies furthest outside a range, if by 4 deviations or a whole range.

    Also a channel of images, if all have almost no contrast beside the range: 0 to 1 where it was 0 to 255.
    """
    if len(x) < SEVERAL:
        return None
    low, high = (each.to(torch.float64) for each in known)
    columns = columns_of(x[:: -(-len(x) // LOOKED_AT)]).to(torch.float64)
    if x.ndim > 3 and bool(((columns.amax(0) - columns.amin(0)).cpu() < FLAT * (high - low)).all()):
        return 0
    middle = columns.median(dim=0).values.cpu()
    unit, far = high - low, 1.0
    if scale is not None and scale.shape == middle.shape:  # it has others if images are learned as columns
        unit, far = scale.double().cpu(), 4.0
    beyond = torch.maximum(middle - high, low - middle) / unit.clamp(min=1e-300)
    return int(beyond.argmax()) if float(beyond.max()) > far else None


def joint_range(one: tuple[Tensor, Tensor] | None, other: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    return other if one is None else (torch.minimum(one[0], other[0]), torch.maximum(one[1], other[1]))


def unit_of(weight: Tensor) -> int:
    """The greatest common divisor of whole weights; −1 if they are not all whole."""
    if (weight == 1).all():
        return 1
    if not bool(((weight == weight.round()) & (weight < 2**53)).all()):
        return -1
    return int(np.gcd.reduce(weight.long().cpu().numpy()))


def joint_unit(one: int, other: int) -> int:
    return -1 if min(one, other) < 0 else math.gcd(one, other)


def _could_be_weights(before: Statistics, squared: Tensor, left: Statistics, left_squared: Tensor) -> bool:
    """Whether n Σ w² ≥ (Σ w)² for what is left, as for any weights; if equal ones were learned, it decides."""
    spreads, scale = [], 0.0
    for statistics, squares in ((before, squared), (left, left_squared)):
        sums = statistics.tensors()
        n = int(sums["counts"].sum() if _is_indicators(before.tensors()) else sums["counts"].max())
        spreads.append(n * float(squares) - float(sums["weight"]) ** 2)
        scale = max(scale, n * float(squares))
    return spreads[0] < -ROUNDED * scale or spreads[1] >= -ROUNDED * scale


def _is_indicators(sums: dict[str, Tensor]) -> bool:
    """Whether targets were class indicators, whose squares are themselves."""
    return bool(torch.equal(sums["targets"], sums["squares"])) and math.isclose(
        float(sums["targets"].sum()), float(sums["weight"]), rel_tol=1e-6
    )
