"""Little things to train in tests, importable by name from other processes too."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from rwalk import InputError, MemorySpec, Stream, Training, from_arrays
from rwalk.metrics import HEADS
from rwalk.studies import Study
from rwalk.studies.rows import Made, Measures, Row
from rwalk.studies.specs import RunSpec

PATIENCE = 600.0  # seconds until a test counts as hanging; how fast a machine is, is no matter of right and wrong


class Network(nn.Module):
    """Everything that makes resuming hard: dropout, running statistics, a layer that is frozen."""

    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.frozen = nn.Linear(torch.Size(shape).numel(), 12)
        for parameter in self.frozen.parameters():
            parameter.requires_grad_(False)
        self.norm = nn.BatchNorm1d(12)
        self.dropout = nn.Dropout(0.3)
        self.middle = nn.Linear(12, 10)
        self.head = nn.Linear(10, classes)

    def forward(self, x: Tensor) -> Tensor:
        if pause := os.environ.get("LITTLE_PAUSE"):  # seconds: training takes at least so long
            time.sleep(float(pause))
        x = self.dropout(torch.relu(self.norm(self.frozen(x.flatten(1)))))
        return self.head(torch.relu(self.middle(x)))


def nothing_to_learn(shape: tuple[int, ...], classes: int) -> nn.Module:
    network = Network(shape, classes)
    for parameter in network.parameters():
        parameter.requires_grad_(False)
    return network


def too_many_outputs(shape: tuple[int, ...], classes: int) -> nn.Module:
    return Network(shape, classes + 1)


def wide(shape: tuple[int, ...], classes: int) -> nn.Module:
    """Four million parameters, so that a few vectors of them are much memory."""
    inside = torch.Size(shape).numel()
    body = (nn.Linear(inside, 2048), nn.ReLU(), nn.Linear(2048, 2048), nn.ReLU())
    return nn.Sequential(nn.Flatten(), *body, nn.Linear(2048, classes))


class Sum(nn.Module):
    """A network without a last linear layer, whose features nobody can tell."""

    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(classes))

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1).sum(1, keepdim=True) * self.weight


def eyes(seed: int = 0) -> nn.Module:
    """A backbone of grey images, as it would come with weights of its own."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        layers = (nn.Conv2d(1, 6, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten())
        return nn.Sequential(*layers).eval()


def grey(image: Any) -> Tensor:
    """Preprocessing of Pillow's images."""
    pixels = image.convert("L").resize((12, 12))
    return torch.tensor(list(pixels.tobytes()), dtype=torch.float32).reshape(1, 12, 12) / 255 - 0.5


def prepared_eyes() -> tuple[nn.Module, Callable[[Any], Tensor]]:
    return eyes(), grey


def array_eyes() -> tuple[nn.Module, Callable[[Any], Tensor]]:
    return eyes(), lambda array: torch.from_numpy(array).float().mean(2)[None, :14, :14] / 255


def other_eyes() -> tuple[nn.Module, Callable[[Any], Tensor]]:
    return eyes(1), grey


def brighter_eyes() -> tuple[nn.Module, Callable[[Any], Tensor]]:
    return eyes(), lambda image: grey(image) + 0.5


def random_eyes() -> tuple[nn.Module, Callable[[Any], Tensor]]:
    return eyes(), lambda image: grey(image) + torch.rand(1)


def uneven_eyes() -> tuple[nn.Module, Callable[[Any], Tensor]]:
    return eyes(), lambda image: torch.zeros(1, image.height, image.width)


def no_eyes() -> str:
    return "no network"


def stream(classes: int = 6, examples: int = 30) -> Stream:
    """Three tasks of two classes each, easy but not trivial."""
    draw = torch.Generator().manual_seed(0)
    y = torch.arange(classes).repeat_interleave(examples)
    x = torch.randn(len(y), 8, generator=draw) + 2 * torch.randn(classes, 8, generator=draw)[y]
    return from_arrays(x, y, classes_per_task=2)


def work(shared: Any, job: str, report: Callable[[Any], None], stop: Callable[[], bool]) -> str:
    """Jobs for a pool of workers, by what becomes of them."""
    if job == "dies":
        os.kill(os.getpid(), signal.SIGKILL)
    if job == "is refused":
        raise InputError("one clear line")
    if job == "is told to stop twice":  # by its process group and by its pool
        for _ in range(2):
            signal.raise_signal(signal.SIGTERM)
        report("saved" if stop() else "never told")
        raise KeyboardInterrupt
    report("under way")
    return job


def study(methods: Sequence[str] = ("rwalk", "vanilla"), seeds: int = 2, **changes: Any) -> Study:
    """A study of digits in a second: 18 steps a task, with dropout, running statistics and a memory."""
    runs = [
        RunSpec(
            network="little:Network",
            method=method,
            memory=MemorySpec(per_class=2),
            training=Training(epochs=1, batch=16),
            seed=seed,
        )
        for method in methods
        for seed in range(seeds)
    ]
    return Study(tuple(runs), **{"reference": "none", "workers": 1, **changes})


def rounding(training: Training, tasks: int) -> float:
    """How far apart rounding may carry two trainings in float64 that differ in the order of their sums alone.

    Processors add up in different orders. A gradient, a sum of some hundred terms of size one at most, is then
    good to a hundred ε. SGD makes a step of lr times that. Adam divides by √v + 1e-8 first: where a gradient is
    next to zero, its step is wrong by up to lr / 1e-8 times that. A mistake moves parameters by far more.
    """
    assert training.steps is not None
    steepest = training.lr / (1e-8 if training.optimizer == "adam" else 1.0)
    return 100 * torch.finfo(torch.float64).eps * steepest * training.steps * tasks


def bare_row(run: RunSpec, single: Measures, multi: Measures) -> Row:
    """A row of one task, with these measures and nothing else."""
    nothing: dict[str, Any] = {"accuracy": {head: [[None]] for head in HEADS}, "stopped": None, "made": Made()}
    nothing["reference"] = {head: [None] for head in HEADS}
    return Row(spec=run, hash=run.hash(), lam=0.0, single=single, multi=multi, **nothing)
