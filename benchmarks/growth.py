"""What grows with what: a step's time with the parameters P, the runs R and the tasks k already consolidated, and
the memory a method takes with k.

Times are milliseconds of a whole step (medians of interleaved rounds). Memory is counted in vectors as large as
all parameters of all runs, beyond θ, its gradient and Adam's two, as the allocator saw it: see `meter.py`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch import nn

from benchmarks.meter import Reading, meter
from benchmarks.rounds import Contender, interleaved, ratios
from rwalk.compiled_programs import compiler_works
from rwalk.data import splits, streams
from rwalk.engine import architectures
from rwalk.engine.fleet import Fleet
from rwalk.learners import learner
from rwalk.threads import few_threads
from rwalk.training import Training

METHODS = ("vanilla", "ewc", "ewc++", "pi", "rwalk")
WIDTHS = (64, 256, 704, 1648)  # hidden layers of the MLP: P from 5·10⁴ to 4·10⁶
RUNS = (1, 2, 4, 8, 16)
TASKS = (1, 2, 5, 10, 20)
MEMORY_TASKS = (1, 2, 5, 10)
WIDTH = 256  # where P is not what varies
WINDOW = 10  # RWalk scores every ten steps: times and peaks are of whole windows
ROUNDS = 3

Rows = dict[str, dict[str, float]]  # milliseconds a step by what varies (JSON has no other keys) and by method


class Clock:
    """Takes the place of the fleet's keeper, which runs after every step, and measures the time."""

    def __init__(self, first: int, last: int) -> None:
        self.first, self.last = first, last

    def due(self, fleet: Fleet) -> bool:
        if fleet.step in (self.first, self.last):
            if fleet.theta.is_cuda:
                torch.cuda.synchronize()
            now = perf_counter()
            if fleet.step == self.first:
                self._began = now
            else:
                self.seconds = (now - self._began) / (self.last - self.first)
        return False

    def save(self, fleet: Fleet) -> None:
        raise AssertionError("nothing was due")


def mlp(width: int, shape: tuple[int, ...], classes: int) -> nn.Module:
    return architectures.MLP(shape, classes, (width, width))


def stream(tasks: int, per_class: int) -> streams.Stream:
    """Random images, two classes a task."""
    draw = np.random.default_rng(0)

    def images(each: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        y = np.repeat(np.arange(2 * tasks), each)
        return draw.random((len(y), 1, 28, 28), dtype=np.float32), y

    return splits.from_arrays(*images(per_class), *images(1), classes_per_task=2)


def fleet_at(
    name: str, k: int, width: int, runs: int, examples: streams.Stream, device: str, fuse: bool | None = None
) -> Fleet:
    """A fleet with k tasks behind it, learned in one step each."""
    fleet = Fleet(
        examples,
        partial(mlp, width),
        [learner(name)] * runs,
        list(range(runs)),
        Training(steps=1),
        device,
        fuse=fuse,
    )
    for _ in range(k):
        learn_task(fleet)
    return fleet


def learn_task(fleet: Fleet) -> None:
    fleet.begin_task()
    fleet.train_task()
    fleet.end_task()
    fleet.task, fleet.step = fleet.task + 1, 0


def stepping(fleet: Fleet, steps: int) -> Contender:
    """The seconds of a step in the fleet's task, begun anew in every round."""
    # CUDA: the step's and the window's graphs are captured by their fourth call.
    lead_in = 5 * WINDOW if fleet.theta.is_cuda else 1
    fleet.training = replace(fleet.training, steps=lead_in + steps)

    def contender() -> float:
        clock = Clock(lead_in, lead_in + steps)
        fleet.step = 0
        fleet.begin_task()
        fleet.train_task(checkpoints=clock)
        return clock.seconds

    return contender


def race(fleets: Mapping[str, Fleet], steps: int, rounds: int) -> dict[str, list[float]]:
    return interleaved({name: stepping(fleet, steps) for name, fleet in fleets.items()}, rounds)


def milliseconds(seconds: Mapping[str, list[float]]) -> dict[str, float]:
    return {name: 1e3 * median(each) for name, each in seconds.items()}


def by_parameters(
    methods: Sequence[str], examples: streams.Stream, widths: Sequence[int], device: str, rounds: int
) -> Rows:
    rows = {}
    for width in widths:
        fleets = {name: fleet_at(name, 1, width, 1, examples, device) for name in methods}
        size = fleets[methods[0]].theta.shape[1]
        rows[str(size)] = milliseconds(race(fleets, WINDOW, rounds))
    return rows


def by_runs(
    methods: Sequence[str], examples: streams.Stream, runs: Sequence[int], device: str, rounds: int
) -> Rows:
    rows: Rows = {str(count): {} for count in runs}
    for name in methods:
        fleets = {str(count): fleet_at(name, 1, WIDTH, count, examples, device) for count in runs}
        # All widths take turns: whether a fleet pays is a question between them.
        for count, spent in milliseconds(race(fleets, WINDOW, rounds)).items():
            rows[count][name] = spent
    return rows


def by_tasks(
    methods: Sequence[str], examples: streams.Stream, tasks: Sequence[int], device: str, rounds: int
) -> tuple[Rows, dict[str, float]]:
    """Also how many times as long a step takes after the most tasks as after the fewest, round by round."""
    names = {(name, k): f"{name} after {k}" for k in tasks for name in methods}
    fleets = {title: fleet_at(name, k, WIDTH, 1, examples, device) for (name, k), title in names.items()}
    seconds = race(fleets, 2 * WINDOW, 7 * rounds)  # all k take turns: flat or not is a question between them
    spent = milliseconds(seconds)
    rows = {str(k): {name: spent[names[name, k]] for name in methods} for k in tasks}
    fewest, most = min(tasks), max(tasks)
    growth = {name: ratios(seconds, names[name, fewest])[names[name, most]] for name in methods}
    return rows, growth


def times(
    device: str = "cpu",
    methods: Sequence[str] = METHODS,
    widths: Sequence[int] = WIDTHS,
    runs: Sequence[int] = RUNS,
    tasks: Sequence[int] = TASKS,
    rounds: int = ROUNDS,
) -> dict[str, Any]:
    """Milliseconds a step of every method: by P and by R with one task consolidated, by k with one run."""
    # Ten steps an epoch: drawing a new order for every step of every run would be most of the measured time.
    examples = stream(max(tasks) + 1, per_class=320).to(device)
    with few_threads(1):
        rows, growth = by_tasks(methods, examples, tasks, device, rounds)
        return {
            "by_parameters": by_parameters(methods, examples, widths, device, rounds),
            "by_runs": by_runs(methods, examples, runs, device, rounds),
            "by_tasks": rows,
            "most_by_fewest_tasks": growth,
        }


def buffers(
    name: str,
    tasks: Sequence[int] = MEMORY_TASKS,
    width: int = 512,
    runs: int = 1,
    device: str = "cpu",
    fuse: bool | None = None,
) -> dict[str, dict[str, float]]:
    """Vectors beyond θ, its gradient and Adam's two, once k tasks are consolidated.

    held  between two steps      step  at the peak inside a step      end  at the peak of ending the task
    """
    examples = stream(max(tasks) + 1, per_class=1).to(device)  # tiny batches: next to nothing but vectors is left
    with meter(device) as readings:
        fleet = fleet_at(name, 0, width, runs, examples, device, fuse)
        fleet.training = replace(fleet.training, steps=WINDOW + 1)
        for k in range(max(tasks) + 1):
            fleet.begin_task()
            readings.mark(f"begun {k}")
            fleet.train_task()
            readings.mark(f"trained {k}")
            fleet.end_task()
            readings.mark(f"ended {k}")
            fleet.task, fleet.step = fleet.task + 1, 0
    vector = fleet.theta.nbytes
    return {str(k): _beyond(readings.readings, k, vector) for k in tasks}


def _beyond(readings: Mapping[str, Reading], k: int, vector: int) -> dict[str, float]:
    """Between two steps there is no gradient."""
    trained, ended = readings[f"trained {k}"], readings[f"ended {k}"]
    return {
        "held": trained.live / vector - 3,
        "step": trained.peak / vector - 4,
        "end": ended.peak / vector - 4,
    }


def memory(device: str = "cpu", tasks: Sequence[int] = MEMORY_TASKS, width: int | None = None) -> dict[str, Any]:
    """The memory of every method alone and eager, and of RWalk in one compiled kernel and in a fleet."""
    on_cuda = torch.device(device).type == "cuda"
    if width is None:  # on CUDA, libraries' workspaces must be small beside a vector
        width = 8192 if on_cuda else 512
    vectors = partial(buffers, tasks=tasks, width=width, device=device)
    with few_threads(1):
        result = {name: vectors(name, fuse=False) for name in METHODS}
        result["rwalk, 4 runs"] = vectors("rwalk", runs=4)
        if on_cuda or compiler_works():
            result["rwalk, compiled"] = vectors("rwalk", fuse=True)
    return result


def bench(device: str = "cpu") -> dict[str, Any]:
    return {"device": device, "milliseconds": times(device), "buffers": memory(device)}


if __name__ == "__main__":
    print(json.dumps(bench(), indent=1))
