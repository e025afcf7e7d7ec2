"""Another library's step beside ours, where it can be imported; never a dependency of this project.

The same MLP 784-256-256-10, batches of 64, Adam, one thread, the second of two tasks; ratios to the same minimal
loop, by interleaved rounds. The peer is fed tensors in memory, as the minimal loop is, and as its users feed it,
by its dataset and its data loader; its optimizer is torch.optim.Adam as one writes it, and once more the fused
one, which the minimal loop has. Only the steps of an epoch are timed, without metrics and loggers: no
figure includes the work before and after a task.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.rounds import Contender, Missing, beside
from benchmarks.steps import STEPS, data, minimal, mlp, ours
from rwalk.data import splits
from rwalk.threads import few_threads

BATCH = 64
OUR_METHODS = ("vanilla", "pi", "ewc++", "rwalk")
WHY_NOT = {
    "avalanche": "it is not installed here; pip install avalanche-lib, into an environment of its own",
    "mammoth": "it is a program, not a package one can import; earlier figures are in benchmarks/peers.py",
    "facil": "it is a program, not a package one can import; earlier figures are in benchmarks/peers.py",
}


def bench(name: str, steps: int = STEPS // 2, rounds: int = 7, fuse: bool = True) -> dict[str, float]:
    """Milliseconds of the minimal step, and everybody's ratio to it."""
    if name != "avalanche" or find_spec("avalanche") is None:
        raise Missing(f"{name} cannot be measured: {WHY_NOT[name]}")
    try:
        theirs = avalanche(steps)
    except ImportError as error:
        raise Missing(f"{name} cannot be imported: {error}") from error
    with few_threads(1):
        x, y = data(steps * BATCH // 5)  # five classes a task: `steps` batches, as the peer has
        stream = splits.from_arrays(x, y, *data(10), classes_per_task=5)
        ourselves = {}
        for m in OUR_METHODS:
            ourselves |= {f"rwalk's {m}": ours(m, stream, fuse, steps)}
            ourselves |= {f"rwalk's {m}, eager": ours(m, stream, False, steps)} if fuse else {}
        seconds, ratios = beside(minimal(stream.x, stream.y, steps), {**ourselves, **theirs}, rounds)
    return {"minimal_ms": 1e3 * seconds, "minimal": 1.0, **ratios}


def avalanche(steps: int) -> dict[str, Contender]:
    """Its strategies nearest to ours, by the way they are fed."""
    strategies = import_module("avalanche.training.supervised")
    plugins = import_module("avalanche.training.plugins")

    def arguments(name: str) -> tuple[Any, dict[str, Any]]:
        match name:
            case "SynapticIntelligence":
                return strategies.SynapticIntelligence, {"si_lambda": 1.0}
            case "EWC online":
                return strategies.EWC, {"ewc_lambda": 1.0, "mode": "online", "decay_factor": 0.9}
            case "RWalk":
                return strategies.Naive, {"plugins": [plugins.RWalkPlugin()]}
        return strategies.Naive, {}

    experiences = _split_mnist(steps)
    images, labels, *_ = zip(*experiences[1].dataset, strict=True)
    tensors = _Tensors(torch.stack(images), torch.tensor(labels), steps)
    return {
        f"avalanche's {name}, {fed}": _training(*arguments(name), experiences, feed, fused)
        for name in ("Naive", "SynapticIntelligence", "EWC online", "RWalk")
        for fed, feed, fused in (
            ("tensors", tensors, False),
            ("tensors and fused Adam", tensors, True),
            ("dataset", None, False),
        )
    }


def _split_mnist(steps: int) -> list[Any]:
    """As avalanche's SplitMNIST makes it, but of random images: two tasks of `steps` batches each."""
    scenarios = import_module("avalanche.benchmarks")
    mnist = import_module("avalanche.benchmarks.datasets.external_datasets.mnist")
    classic = import_module("avalanche.benchmarks.classic.cmnist")

    def images(per_class: int) -> Any:
        dataset = mnist.TensorMNIST.__new__(mnist.TensorMNIST)  # its constructor would download
        x, y = data(per_class)
        dataset.data, dataset.targets = torch.from_numpy((255 * x[:, 0]).astype("uint8")), torch.from_numpy(y)
        dataset.transform = dataset.target_transform = None
        return dataset

    benchmark = scenarios.nc_benchmark(
        images(steps * BATCH // 5),
        images(1),
        n_experiences=2,
        task_labels=False,
        shuffle=False,
        train_transform=classic._default_mnist_train_transform,
        eval_transform=classic._default_mnist_eval_transform,
    )
    return list(benchmark.train_stream)


class _Tensors:
    """In place of a data loader: random batches (x, y, task) of tensors in memory."""

    def __init__(self, x: Tensor, y: Tensor, steps: int) -> None:
        self.x, self.y, self.steps = x, y, steps

    def __len__(self) -> int:
        return self.steps

    def __iter__(self) -> Iterator[list[Tensor]]:
        task = torch.zeros(BATCH, dtype=torch.int64)
        for index in torch.randint(len(self.x), (self.steps, BATCH)):
            yield [self.x[index], self.y[index], task]


def _training(
    strategy: Any, arguments: dict[str, Any], experiences: list[Any], feed: _Tensors | None, fused: bool
) -> Contender:
    """Trains the second task anew in every round; the first is consolidated before."""

    class Timed(strategy):  # type: ignore[misc]
        def make_train_dataloader(self, **rest: Any) -> None:
            super().make_train_dataloader(**rest)
            if feed is not None:
                self.dataloader = feed

        def training_epoch(self, **rest: Any) -> None:
            start = perf_counter()
            super().training_epoch(**rest)
            self.seconds = (perf_counter() - start) / len(self.dataloader)

    model = mlp()
    training = Timed(
        model=model,
        optimizer=torch.optim.Adam(model.parameters(), lr=1e-3, fused=fused),
        criterion=nn.CrossEntropyLoss(),
        train_mb_size=BATCH,
        evaluator=None,
        **arguments,
    )
    training.train(experiences[0])

    def contender() -> float:
        training.train(experiences[1])
        return float(training.seconds)

    return contender
