"""The time of a training step, against a minimal hand-written PyTorch loop on tensors with fused Adam.

Split-MNIST's step: an MLP 784-256-256-10, batches of 64, Adam, one thread. Contenders take turns; a
contender's ratio is the median over the rounds of its time by the minimal loop's just before.
"""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from statistics import median
from time import perf_counter

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from benchmarks.rounds import Contender, beside, interleaved, timed
from rwalk.compiled_programs import compiler_works
from rwalk.data import splits, streams
from rwalk.data.memory import MemorySpec
from rwalk.engine.fleet import Fleet
from rwalk.learners import learner
from rwalk.studies import Study
from rwalk.studies.specs import RunSpec, StreamSpec
from rwalk.threads import few_threads
from rwalk.training import Training

STEPS = 128
ROUNDS = 21
TASKS = 2
FLEET = 32


def data(per_class: int) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(0)
    y = np.repeat(np.arange(10), per_class)
    return draw.random((len(y), 1, 28, 28), dtype=np.float32), y


def mlp() -> nn.Module:
    return nn.Sequential(
        nn.Flatten(), nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10)
    )


def minimal(x: torch.Tensor, y: torch.Tensor, steps: int = STEPS, compiled: bool = False) -> Contender:
    """The least a training loop can do in plain PyTorch; like ours, it begins a task with a new optimizer.

    Compiled, its model is, as one does it by hand: forward and backward, but not the loop around them.
    """
    model = torch.compile(mlp()) if compiled else mlp()

    def train() -> None:
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
        for index in torch.randint(len(x), (steps, 64)):
            loss = F.cross_entropy(model(x[index]), y[index])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    train()  # once, to compile and allocate
    return timed(train, steps)


def ours(
    name: str, stream: streams.Stream, fuse: bool, steps: int = STEPS, memory: MemorySpec | None = None
) -> Contender:
    """The fleet's own loop in its second task, where everything is held and observed."""
    fleet = Fleet(stream, "mlp", [learner(name, memory)], [0], Training(steps=steps), fuse=fuse)
    fleet.begin_task()
    fleet.train_task()
    fleet.end_task()
    fleet.task = 1

    def train() -> None:
        fleet.step = 0
        fleet.begin_task()
        fleet.train_task()

    return timed(train, steps)


def solo() -> dict[str, float]:
    """Milliseconds of the minimal step, and each method's ratio to it."""
    with few_threads(1):
        x, y = data(1200)
        stream = splits.from_arrays(x, y, *data(10), classes_per_task=5)
        loops = {"minimal, compiled": minimal(stream.x, stream.y, compiled=True)} if compiler_works() else {}
        for name in ("vanilla", "ewc++", "pi", "rwalk"):
            loops |= {name: ours(name, stream, fuse=True), f"{name}, eager": ours(name, stream, fuse=False)}
        seconds, ratios = beside(minimal(stream.x, stream.y), loops, ROUNDS)
    return {"minimal_ms": 1e3 * seconds, "minimal": 1.0, **ratios}


def fleet_on_all_cores(runs: int = FLEET, steps: int = 2500) -> dict[str, float]:
    """Wall time a run of many RWalk runs in one study, start-up and evaluation included, by the minimal one's.

    The minimal loop works before and after: a study takes minutes, in which the machine may change its pace.
    """
    x, y = data(600)
    loop = minimal(torch.from_numpy(x), torch.from_numpy(y))
    with few_threads(1):
        seconds = interleaved({"minimal": loop}, ROUNDS)["minimal"]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "images.npz"
        test_x, test_y = data(10)
        np.savez(file, x=x, y=y, x_test=test_x, y_test=test_y)
        spec = RunSpec(StreamSpec(str(file), classes_per_task=5), method="rwalk", training=Training(steps=steps))
        study = Study(tuple(replace(spec, seed=seed) for seed in range(runs)), "none")
        start = perf_counter()
        study.execute()
        wall = perf_counter() - start
    with few_threads(1):
        seconds += interleaved({"minimal": loop}, ROUNDS)["minimal"]
    alone = median(seconds) * TASKS * steps
    return {"runs": runs, "minimal_s": alone, "run_s": wall / runs, "ratio": wall / runs / alone}


if __name__ == "__main__":
    print(solo())
    print(fleet_on_all_cores())
