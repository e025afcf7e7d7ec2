"""Base of the solvers: a few hyper-parameters, a feature map, and weights from the sums of all examples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from torch import Tensor, nn

from rwalk.closed_form.features import Recipe, tensors_of
from rwalk.closed_form.solve import Solution
from rwalk.closed_form.sums import Statistics
from rwalk.errors import InputError
from rwalk.methods.method import require


@dataclass(frozen=True)
class Solver:
    """Base of all solvers; a subclass is a frozen record of its hyper-parameters.

    The map is made from the first task's inputs, without labels, and never changes. Every example is counted
    once, so the order, the batches and the tasks of the examples make no difference.

    Args:
        features: "vectors": the inputs, rectified random projections and random waves. "images": patches of
            images. "auto": chosen by the inputs' shape.
        size: Number of random features of vectors, or of patches of images; None for a good number.
        ridge: How strongly weights are held back, relative to a feature's variance; None to have it chosen.
    """

    name: ClassVar[str] = ""
    summary: ClassVar[str] = ""
    memoryless: ClassVar[bool] = True  # nothing is forgotten, so exemplars are of no use

    features: Literal["auto", "vectors", "images"] = "auto"
    size: int | None = None
    ridge: float | None = None

    def __post_init__(self) -> None:
        if self.features not in ("auto", "vectors", "images"):
            raise InputError(f"features must be 'auto', 'vectors' or 'images', not {self.features!r}")
        if self.size is not None and (not isinstance(self.size, int) or self.size < 1):
            raise InputError(f"size must be a whole number, at least 1, not {self.size!r}")
        if self.ridge is not None:
            require(self.ridge, "ridge", minimum=0.0, open_=True)

    def solution(self, sums: Statistics, blocks: Sequence[int]) -> Solution:
        """The weights of the features, one column per class."""
        raise NotImplementedError

    def recipe(self, seed: int = 0) -> Recipe:
        """The settings of the feature map."""
        return Recipe(self.features, self.size, seed=seed)

    def network(self, shape: tuple[int, ...], classes: int) -> Mapped:
        """The map, still empty, and a linear layer on it."""
        return Mapped(self.recipe().blank(shape), classes)


class Mapped(nn.Module):
    """A network like any other: buffers, which are the feature map, and a linear layer, which alone is learned."""

    def __init__(self, features: Any, classes: int) -> None:
        super().__init__()
        self.kind = type(features)
        self.fixed = {name: each for name, each in tensors_of(features).items() if not each.is_floating_point()}
        for name, each in tensors_of(features).items():
            if name not in self.fixed:
                self.register_buffer(name, each)
        self.blocks = list(features.blocks)
        self.head = nn.Linear(sum(self.blocks), classes)

    def forward(self, x: Tensor) -> Tensor:
        floating = {name: getattr(self, name) for name, _ in self.named_buffers(recurse=False)}
        features = self.kind(**self.fixed, **floating)
        out: Tensor = self.head(getattr(features, "both_ways", features)(x))
        return out
