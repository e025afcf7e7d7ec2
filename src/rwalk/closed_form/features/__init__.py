"""Inputs → features: a fixed map, made once. Everything after it is sums."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Protocol, cast

import torch
from torch import Tensor, nn

from rwalk.closed_form.features.backbone import BackboneFeatures
from rwalk.closed_form.features.patches import PatchFeatures
from rwalk.closed_form.features.vectors import VectorFeatures
from rwalk.errors import InputError, unknown

KINDS = {kind.kind: kind for kind in (VectorFeatures, PatchFeatures)}  # those a file can hold
SMALLEST_IMAGE = 16  # pixels along a side; smaller images are taken as vectors
LOOKED_AT = 20_000  # examples a map is made of, at most
RANDOM, PATCHES = 2000, 800  # defaults: features of vectors, patches of images


class FeatureMap(Protocol):
    """A function of inputs [n, …] that never changes."""

    kind: str

    @property
    def blocks(self) -> Sequence[int]:
        """Sizes of the groups of features that share a penalty; their sum is the number of features."""
        ...

    def __call__(self, x: Tensor) -> Tensor: ...


@dataclass(frozen=True)
class Recipe:
    """How a map is to be made.

    size  random features of vectors or of a given network, or patches of images; None for a good number
    """

    features: str | nn.Module = "auto"
    size: int | None = None
    standardize: bool = True
    seed: int = 0
    mirror: bool | None = None

    def kind(self, shape: Sequence[int]) -> str:
        if not isinstance(self.features, str):
            return "backbone"
        if self.features == "auto":
            return "images" if len(shape) == 3 and min(shape[1:]) >= SMALLEST_IMAGE else "vectors"
        if self.features not in KINDS:
            raise unknown("features", str(self.features), ["auto", *KINDS])
        return self.features

    def needs_data(self, shape: Sequence[int]) -> bool:
        """Whether the map depends on the examples it is made of, or on the seed alone."""
        kind = self.kind(shape)
        return kind == "images" or (kind == "vectors" and self.standardize)

    def blank(self, shape: Sequence[int]) -> FeatureMap:
        """A map of inputs of this shape as it is before it is made: of the right form, without content."""
        kind = self.kind(shape)
        if kind == "images":
            _check_images(shape)
            return PatchFeatures.blank(shape, self.size or PATCHES)
        return VectorFeatures.blank(torch.Size(shape).numel(), self.size or RANDOM)

    def make(self, x: Tensor, weight: Tensor) -> FeatureMap:
        """From these examples."""
        kind, shape = self.kind(x.shape[1:]), tuple(x.shape[1:])
        if isinstance(self.features, nn.Module):
            return BackboneFeatures(self.features, x[:1], self.size)
        if kind == "images":
            _check_images(shape)
            return PatchFeatures.make(x, self.size or PATCHES, self.seed, mirror=self.mirror)
        return VectorFeatures.make(x, weight, self.size or RANDOM, self.seed, self.standardize)


def _check_images(shape: Sequence[int]) -> None:
    if len(shape) != 3:
        raise InputError(f"images have shape [channels, height, width], not {list(shape)}: reshape them")


def placed(features: Any, dtype: torch.dtype, device: torch.device) -> FeatureMap:
    """The map on a device, computing in this precision."""
    if isinstance(features, BackboneFeatures):
        return features.to(device)
    return cast(FeatureMap, replace(features, **{n: t.to(device, dtype) for n, t in tensors_of(features).items()}))


def tensors_of(features: Any) -> dict[str, Tensor]:
    """The tensors of a map; none of a network."""
    if isinstance(features, BackboneFeatures):
        return {}
    every = {each.name: getattr(features, each.name) for each in fields(features)}
    return {name: each for name, each in every.items() if each is not None}


def fingerprint(features: FeatureMap) -> str:
    """Two maps of one fingerprint are the same function."""
    first, tensors = features.kind, tensors_of(features)
    if isinstance(features, BackboneFeatures):
        first, tensors = str(features.lift or ""), features.network.state_dict()
    return checksum(tensors, first)


def checksum(tensors: Mapping[str, Tensor], first: str = "") -> str:
    """Of names and contents."""
    digest = hashlib.sha256(first.encode())
    for name, tensor in tensors.items():
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()
