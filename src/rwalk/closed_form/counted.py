"""A feature map and the sums of its features: examples are counted in, counted out, and gone."""

from __future__ import annotations

import copy
from typing import Self

import torch
from torch import Tensor

from rwalk.closed_form.examples import Examples
from rwalk.closed_form.features import FeatureMap, placed
from rwalk.closed_form.statistics import Statistics
from rwalk.errors import InputError

ROWS = 2048  # whose features are computed at a time


class Counted:
    """What a map, computing in one precision on one device, has made of all examples so far."""

    def __init__(self, features: FeatureMap, columns: int, dtype: torch.dtype, device: torch.device) -> None:
        self.map = features
        self.dtype = dtype
        self.device = device
        self.statistics = self._empty(columns)
        self._placed = placed(features, dtype, device)

    def learn(self, examples: Examples) -> None:
        """All of them, or, if something fails, none."""
        if len(examples) <= ROWS:
            self.statistics.add(*self._features_of(examples))
        else:
            self.statistics.merge(self._sums(examples))

    def forget(self, examples: Examples) -> None:
        if len(examples) <= ROWS:
            self.statistics.remove(*self._features_of(examples))
        else:
            self.statistics.merge(self._sums(examples), sign=-1)

    def fresh(self, columns: int) -> Self:
        """The same map with nothing counted in."""
        twin = copy.copy(self)
        twin.statistics = self._empty(columns)
        return twin

    def moved(self, places: list[int], columns: int) -> Self:
        """The same with column i at places[i] of `columns`; it is dropped at −1."""
        twin = copy.copy(self)
        twin.statistics = self.statistics.columns(places, columns)
        return twin

    def features(self, x: Tensor) -> Tensor:
        features = self._placed(x.to(self.device).to(self.dtype)).to(self.dtype)
        # A sum is one look at the features; where it overflows, it takes a closer one.
        if not features.sum().isfinite() and not features.isfinite().all():
            raise InputError(
                "the features of an input are not finite: check the network, or bring inputs to scale"
            )
        return features

    def _features_of(self, examples: Examples) -> tuple[Tensor, Tensor, Tensor]:
        return self.features(examples.x), examples.y.to(self.device), examples.weight.to(self.device)

    def _sums(self, examples: Examples) -> Statistics:
        sums = self._empty(len(self.statistics.counts))
        for start in range(0, len(examples), ROWS):
            sums.add(*self._features_of(examples.rows(slice(start, start + ROWS))))
        return sums

    def _empty(self, columns: int) -> Statistics:
        return Statistics.empty(sum(self.map.blocks), columns, self.device)
