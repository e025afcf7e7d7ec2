"""Parts of a user's own, one of each kind, outside the package: named `own_parts:Name`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

from rwalk import Augmentation, Batch, Loss, Method, Projector, Sampler
from rwalk.data.replay_batches import Replay
from rwalk.methods.method import Number, Ranges, State, normalized, require


@dataclass(frozen=True)
class MAS(Method):
    """Springs as stiff as the mean length of the gradients was, over the whole network at most 1."""

    name: ClassVar[str] = "mas"
    summary: ClassVar[str] = "importance from the mean absolute gradient"
    wants: ClassVar[frozenset[str]] = frozenset({"square"})

    lam: Number = 2.0
    decay: Number = 0.9
    floor: Number = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.decay, "decay", minimum=0.0, maximum=1.0)

    @property
    def scales(self) -> tuple[str, ...]:
        return ("length",)

    def start(self, theta: Tensor) -> State:
        return {"length": torch.zeros_like(theta)}

    def observe(self, state: State, grad: Tensor, move: Tensor, square: Tensor) -> None:
        state["length"].mul_(self.decay).add_(square.sqrt())

    def consolidate(
        self, state: State, theta: Tensor, fisher: Tensor | None = None, ranges: Ranges | None = None
    ) -> None:
        found = normalized(state["length"], None if ranges is None else ranges["length"])
        state["importance"] = found + self.floor + state.get("importance", 0)
        state["anchor"] = theta.clone()


@dataclass(frozen=True)
class DERpp(Loss):
    """Cross entropy on the new, on the kept, and a pull to the logits kept with them (Buzzega et al. 2020)."""

    replay: ClassVar[Replay | None] = "beside"
    needs_memory: ClassVar[bool] = True
    keeps: ClassVar[tuple[str, ...]] = ("logits",)

    alpha: Number = 0.1
    beta: Number = 0.5

    def __call__(self, logits: Tensor, batch: Batch) -> Tensor:
        each = F.cross_entropy((logits + batch.head).transpose(1, 2), batch.y, reduction="none")
        if batch.is_kept is None:
            return each.mean(1)
        apart = (logits - batch.kept["logits"]).square().mean(-1)
        old = batch.is_kept.to(logits.dtype)
        return _mean(each, 1 - old) + self.alpha * _mean(apart, old) + self.beta * _mean(each, old)


def _mean(each: Tensor, weight: Tensor) -> Tensor:
    return (each * weight).sum(1) / weight.sum(1)


@dataclass(frozen=True)
class Orthogonal(Projector):
    """The gradient without what it has in common with any old task's."""

    share: float = 1.0

    def project(self, grad: Tensor, memories: Tensor) -> Tensor:
        along = torch.linalg.pinv(memories) @ (memories @ grad[..., None])
        return grad - self.share * along[..., 0]


def farthest(n: int, m: int, generators: Sequence[Generator], features: Tensor) -> Tensor:
    """The examples farthest from their class's mean."""
    distance = (features - features.mean(1, keepdim=True)).norm(dim=-1)
    return distance.nan_to_num(-1).argsort(dim=1, descending=True, stable=True)[:, :m]


FARTHEST = Sampler("those farthest from the class mean", ("features",), farthest)


@dataclass(frozen=True)
class Noise(Augmentation):
    """Every input a little brighter or darker."""

    def draw(self, steps: int, batch: int, generator: Generator) -> Tensor:
        return torch.randn(steps, batch, 1, generator=generator)

    def apply(self, x: Tensor, draws: Tensor) -> Tensor:
        return x + 0.1 * draws.to(x.dtype).reshape(*x.shape[:2], *(1 for _ in x.shape[2:]))


class Convolutions(nn.Module):
    """With batch norm and dropout."""

    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(shape[0], 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout2d(0.2), nn.Flatten()
        )
        self.head = nn.Linear(4 * (shape[1] - 2) * (shape[2] - 2), classes)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.body(x))
        return out
