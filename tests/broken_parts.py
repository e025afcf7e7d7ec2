"""Parts that break a promise each, and what the checks must say of them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Generator, Tensor, nn

from own_parts import MAS, Noise, Orthogonal, farthest
from rwalk import Batch, Sampler
from rwalk.losses import CrossEntropy
from rwalk.methods.method import Ranges, State


class AllRunsTogether(MAS):
    def consolidate(
        self, state: State, theta: Tensor, fisher: Tensor | None = None, ranges: Ranges | None = None
    ) -> None:
        super().consolidate(state, theta, fisher, ranges)
        state["importance"] = state["importance"].mean(0, keepdim=True).expand_as(theta).clone()  # of all runs


class HoldsFromTheStart(MAS):
    def start(self, theta: Tensor) -> State:
        return {**super().start(theta), "importance": torch.ones_like(theta), "anchor": theta.clone()}


class PullsTooHard(MAS):
    def pull(self, state: State, theta: Tensor, grad: Tensor, out: Tensor | None = None) -> Tensor:
        pulled = super().pull(state, theta, grad, out)
        return pulled + (pulled - grad)


class OvershootsTheMiddle(MAS):
    def proximal_step(self, state: State, theta: Tensor, lr: float) -> None:
        super().proximal_step(state, theta, 2 * lr)


class ForgetsItIsAPiece(MAS):
    def consolidate(
        self, state: State, theta: Tensor, fisher: Tensor | None = None, ranges: Ranges | None = None
    ) -> None:
        flat = state["length"].flatten(1)
        state["importance"] = state["length"] / flat.amax(1).reshape(-1, *(1 for _ in theta.shape[1:])).clamp(1e-9)
        state["anchor"] = theta.clone()


class AlwaysDouble(MAS):
    def consolidate(
        self, state: State, theta: Tensor, fisher: Tensor | None = None, ranges: Ranges | None = None
    ) -> None:
        super().consolidate(state, theta, fisher, ranges)
        state["importance"] = state["importance"].double()


class ForgetsWhenPickled(MAS):
    def __reduce__(self) -> tuple[type[MAS], tuple[()]]:
        return ForgetsWhenPickled, ()  # without its hyper-parameters


class CountsForAllOfItsKind(MAS):
    """Right as long as a fleet has one group of runs of this method."""

    tasks: ClassVar[int] = 0

    def start(self, theta: Tensor) -> State:
        CountsForAllOfItsKind.tasks = 0
        return super().start(theta)

    def consolidate(
        self, state: State, theta: Tensor, fisher: Tensor | None = None, ranges: Ranges | None = None
    ) -> None:
        super().consolidate(state, theta, fisher, ranges)
        CountsForAllOfItsKind.tasks += 1
        state["importance"] = state["importance"] * self.tasks


class HoldsMoreWhenPickled(MAS):
    def __reduce__(self) -> tuple[Any, ...]:
        return HoldsMoreWhenPickled, (500.0,)


class WrongShape(MAS):
    def start(self, theta: Tensor) -> State:
        return {**super().start(theta), "one": theta.new_zeros(len(theta), 1).expand(-1, 2).clone()}


@dataclass(frozen=True)
class ChecksItself(MAS):
    """Its validation cannot read the numbers of several runs."""

    rate: float | Tensor = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rate < 0:
            raise ValueError("rate")


class DrawsGlobally(CrossEntropy):
    def __call__(self, logits: Tensor, batch: Batch) -> Tensor:
        return super().__call__(logits + 1e-3 * random.random(), batch)


class OneForAll(CrossEntropy):
    def __call__(self, logits: Tensor, batch: Batch) -> Tensor:
        return super().__call__(logits, batch).mean()


class MeanOfTheFleet(CrossEntropy):
    def __call__(self, logits: Tensor, batch: Batch) -> Tensor:
        losses = super().__call__(logits, batch)
        return 0.5 * (losses + losses.mean())


class LooksAtValues(CrossEntropy):
    def __call__(self, logits: Tensor, batch: Batch) -> Tensor:
        losses = super().__call__(logits, batch)
        return losses * 2 if float(losses.detach().max()) > 1 else losses


class CannotBeRecorded(CrossEntropy):
    def __call__(self, logits: Tensor, batch: Batch) -> Tensor:
        losses = super().__call__(logits, batch)
        return losses.clamp(max=1e9) if bool((losses > 1e9).any()) else losses


class Climbs(CrossEntropy):
    def __call__(self, logits: Tensor, batch: Batch) -> Tensor:
        return (logits + batch.head).softmax(-1).gather(-1, batch.y[..., None]).mean((1, 2))


class CountsInDoubles(CrossEntropy):
    def begin_task(self, state: State, theta: Tensor, task: int) -> None:
        state["tasks"] = torch.full((len(theta),), float(task), dtype=torch.float64)


class Against(Orthogonal):
    def project(self, grad: Tensor, memories: Tensor) -> Tensor:
        return grad - 0.5 * (grad - super().project(grad, memories))


class ScalesByTheFleet(Orthogonal):
    def project(self, grad: Tensor, memories: Tensor) -> Tensor:
        return super().project(grad, memories) / grad.norm()  # of all runs


def repeats(n: int, m: int, generators: Sequence[Generator], features: Tensor) -> Tensor:
    return farthest(n, m, generators, features).clamp(max=n - 2)


def unordered(n: int, m: int, generators: Sequence[Generator], features: Tensor) -> Tensor:
    return farthest(n, m, generators, features).sort(1).values


def globally(n: int, m: int, generators: Sequence[Generator]) -> Tensor:
    return torch.stack([torch.randperm(n)[:m] for _ in generators])


REPEATS, UNORDERED = Sampler("", ("features",), repeats), Sampler("", ("features",), unordered)
GLOBALLY = Sampler("", (), globally)


class OneDrawForAll(Noise):
    def apply(self, x: Tensor, draws: Tensor) -> Tensor:
        return super().apply(x, draws[:1, :1].expand_as(draws))


class WritesOverInputs(Noise):
    def apply(self, x: Tensor, draws: Tensor) -> Tensor:
        return x.mul_(1.1)


class ByTheStep(Noise):
    def draw(self, steps: int, batch: int, generator: Generator) -> Tensor:
        return torch.randn(steps, 1, generator=generator)


class VectorMadeLate(MAS):
    def observe(self, state: State, grad: Tensor, move: Tensor, square: Tensor) -> None:
        super().observe(state, grad, move, square)
        state["moved"] = state.get("moved", 0) + move


class NotDecorated(MAS):
    power: float = 2.0


class OneNumber(CrossEntropy):
    """Takes its hyper-parameter for a number."""

    def __call__(self, logits: Tensor, batch: Batch) -> Tensor:
        return super().__call__(logits, batch) * float(self.weight)


@dataclass(frozen=True)
class TakesANumber(OneNumber):
    weight: float = 1.0


class AlwaysTheSame(nn.Module):
    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.head = nn.Linear(torch.Size(shape).numel(), classes)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(x.flatten(1))
        return out


class CountsBesideBuffers(nn.Module):
    """How often it was called is in no buffer, so that no checkpoint knows."""

    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.head = nn.Linear(torch.Size(shape).numel(), classes)
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += self.training
        out: Tensor = self.head(x.flatten(1)) * (1 + 0.01 * self.calls)
        return out


class LooksAround(AlwaysTheSame):
    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        super().__init__(shape, classes)
        nn.init.normal_(self.head.weight)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x - x.mean(0))


BROKEN = {  # and what is said of them
    "AllRunsTogether": "run . ends differently in a fleet than alone",
    "HoldsFromTheStart": "before the first consolidate",
    "PullsTooHard": "pull is not the gradient plus the gradient of cost",
    "OvershootsTheMiddle": "the proximal step does not minimise",
    "ForgetsItIsAPiece": "pieces",
    "AlwaysDouble": "the pull on torch.float32 is torch.float64",
    "ForgetsWhenPickled": "it trains differently after it was pickled",
    "WrongShape": "its vector 'one' is",
    "ChecksItself": "RuntimeError in .* ambiguous",
    "DrawsGlobally": "global random state of random",
    "OneForAll": r"is \[\], not \[3\]: one per run",
    "MeanOfTheFleet": "depends on the logits of other runs",
    "LooksAtValues": "run . ends differently in a fleet than alone",
    "CannotBeRecorded": "its step cannot be compiled",
    "Climbs": "it does not learn",
    "Against": "a constraint is violated",
    "ScalesByTheFleet": "projected differently than alone",
    "REPEATS": "contain one twice",
    "UNORDERED": "are not the first",
    "GLOBALLY": "second time",
    "OneDrawForAll": "changed differently alone",
    "WritesOverInputs": "changes the inputs",
    "ByTheStep": r"not \[3, 5, k\]",
    "VectorMadeLate": "observe makes the vector 'moved': make it in start",
    "NotDecorated": r"power cannot be set: decorate NotDecorated with @dataclass",
    "TakesANumber": r"a hyper-parameter that differs between runs is a tensor \[R\]",
    "AlwaysTheSame": "other seeds begin with the same parameters",
    "CountsBesideBuffers": "interrupted at task 1, step 2 ends differently",
    "LooksAround": "depend on the others in its batch",
}

BROKEN_IN = {  # and the check that finds it, whatever others do
    "CountsForAllOfItsKind": "a_fleet_equals_its_runs_alone with other methods",
    "CountsInDoubles": "other_types_of_numbers_stay_what_they_are",
    "ForgetsWhenPickled": "what_is_unpickled_trains_the_same",
    "HoldsMoreWhenPickled": "two_calls_of_an_estimator_may_have_a_file_between_them",
}
