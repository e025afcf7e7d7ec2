"""What the paper leaves open: how long to train, and with which λ and α. Chosen by one rule, on validation data.

THE RULE. A tenth of every class's training data is held out; the test set is not looked at. For each dataset, with
and without exemplars, every method is trained with each combination of its `Grid`: steps a task, λ, form of the
penalty, and for EWC++ α. A method's setting is the one with the highest validation A_K: single-head with
exemplars; the mean of both heads without, for there one network serves both. The steps are those at which the
methods, each at its best, are best on average. Published values are not looked at either.

What the rule chose is `budgets.json` beside this file, with the validation score behind each choice.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rwalk.errors import InputError
from rwalk.fleet import Training
from rwalk.memory import MemorySpec
from rwalk.specs import DT, NETWORK, RunSpec, StreamSpec
from rwalk.store import Row

FILE = Path(__file__).with_name("budgets.json")


class Grid(NamedTuple):
    """What is tried on a dataset."""

    steps: dict[bool, tuple[int, ...]]  # with exemplars?
    lambdas: tuple[float, ...]
    alphas: tuple[float, ...]
    forms: tuple[str, ...]
    seeds: int


GRIDS = {
    "mnist": Grid(
        steps={False: (200, 1000), True: (100, 200, 400)},
        lambdas=(0.1, 1.0, 10.0, 100.0, 1e3, 1e4),
        alphas=(0.9, 0.01),
        forms=("gradient", "proximal"),
        seeds=2,
    ),
    # Convolutions cost a hundred times more: one budget, and the form that is stable for every λ.
    "cifar100": Grid(
        steps={False: (1000,), True: (1000,)},
        lambdas=(1.0, 100.0, 1e4),
        alphas=(0.01,),
        forms=("proximal",),
        seeds=1,
    ),
}
METHODS = ("vanilla", "ewc++", "pi", "rwalk")
EXEMPLARS = {"mnist": 10, "cifar100": 25}  # a class, as in the paper
HELD_OUT = 0.1
BFLOAT16: set[str] = set()  # datasets trained under bfloat16 autocast


def base(dataset: str, exemplars: int | None, sampler: str = "mof") -> RunSpec:
    """The paper's stream and network; everything else at its default."""
    memory = None if exemplars is None else MemorySpec(exemplars, sampler=sampler)
    network = NETWORK.get(dataset, "mlp")
    return RunSpec(StreamSpec(dataset), network, memory=memory, autocast=dataset in BFLOAT16)


def candidates(dataset: str, samples: bool) -> Iterator[RunSpec]:
    """Every run the rule compares."""
    spec = base(dataset, EXEMPLARS[dataset] if samples else None)
    spec = replace(spec, stream=replace(spec.stream, validation=HELD_OUT))
    for steps in GRIDS[dataset].steps[samples]:
        for method in METHODS:
            for numbers in _grid(dataset, method):
                for seed in range(GRIDS[dataset].seeds):
                    training = Training(steps=steps)
                    yield replace(spec, method=method, numbers=numbers, seed=seed, training=training)


def _grid(dataset: str, method: str) -> Iterator[dict[str, Any]]:
    if method == "vanilla":
        yield {}
        return
    fixed = {"dt": DT[dataset]} if method == "rwalk" and dataset in DT else {}
    grid = GRIDS[dataset]
    for form in grid.forms:
        for lam in grid.lambdas:
            for alpha in grid.alphas if method == "ewc++" else [None]:
                yield fixed | {"lam": lam, "penalty": form} | ({} if alpha is None else {"alpha": alpha})


def choose(rows: Iterable[Row]) -> dict[str, Any]:
    """Apply the rule to the rows of one dataset, with or without exemplars."""
    scores: dict[tuple[int, str], dict[str, list[float]]] = {}
    for row in rows:
        spec = row["spec"]
        heads = ("single",) if spec["memory"] else ("single", "multi")
        score = float(np.mean([row[head]["A"] if row[head]["A"] is not None else 0.0 for head in heads]))
        cell = scores.setdefault((spec["training"]["steps"], row["method"]), {})
        cell.setdefault(json.dumps(spec["numbers"], sort_keys=True), []).append(score)
    best = {key: max(cell.items(), key=lambda item: float(np.mean(item[1]))) for key, cell in scores.items()}
    steps = max(
        {steps for steps, _ in best},
        key=lambda n: float(np.mean([np.mean(values) for (m, _), (_, values) in best.items() if m == n])),
    )
    chosen = {method: (json.loads(s), np.mean(v)) for (n, method), (s, v) in best.items() if n == steps}
    return {
        "steps": steps,
        "numbers": {method: numbers for method, (numbers, _) in chosen.items()},
        "validation": {method: round(100 * float(score), 2) for method, (_, score) in chosen.items()},
    }


def key(dataset: str, samples: bool) -> str:
    return f"{dataset}-{'samples' if samples else 'plain'}"


def load() -> dict[str, Any]:
    """What the rule chose."""
    try:
        chosen: dict[str, Any] = json.loads(FILE.read_text())
    except FileNotFoundError:
        raise InputError("the paper's budgets have not been chosen yet: run `rwalk reproduce --tune`") from None
    return chosen


def budgeted(dataset: str, method: str, exemplars: int | None, sampler: str = "mof") -> RunSpec:
    """A run of the paper under the chosen budget; a learner without numbers of its own gets the steps alone."""
    chosen = load().get(key(dataset, exemplars is not None))
    if chosen is None:
        raise InputError(f"no budget has been chosen for {dataset}: run `rwalk reproduce --tune`")
    numbers = chosen["numbers"].get(method, {})
    return replace(
        base(dataset, exemplars, sampler), method=method, numbers=numbers, training=Training(steps=chosen["steps"])
    )
