"""A step on a GPU in milliseconds, the loop around it included: the paper's networks, alone and as fleets.

A GPU's times hold from machine to machine of its kind, so they are not ratios.
"""

from __future__ import annotations

import json
from typing import NamedTuple

import numpy as np
import torch

from benchmarks.growth import learn_task, race
from benchmarks.rounds import Missing
from rwalk.data import splits
from rwalk.engine.fleet import Fleet
from rwalk.learners import learner
from rwalk.training import Training

STEPS = 192  # three looks at the losses
ROUNDS = 7


class Case(NamedTuple):
    network: str
    runs: int
    bfloat16: bool = False  # the convolutions' precision; otherwise float32, which cuDNN computes in TF32
    batch: int = 64

    def __str__(self) -> str:
        return f"{self.network}, {self.runs} run{'s' * (self.runs > 1)}" + ", bfloat16" * self.bfloat16


CASES = (
    Case("mlp", 1),
    Case("mlp", 100),
    Case("cnn", 1),
    Case("cnn", 10),
    Case("cnn", 10, bfloat16=True),
    Case("cnn", 30, bfloat16=True),
    Case("resnet18", 3, batch=10),
)


def fleet(case: Case, method: str, device: str) -> Fleet:
    """In its second task, where everything is held and observed."""
    shape = (1, 28, 28) if case.network == "mlp" else (3, 32, 32)
    draw = np.random.default_rng(0)
    y = np.repeat(np.arange(10), 300)
    x = draw.random((len(y), *shape), dtype=np.float32)
    stream = splits.from_arrays(x, y, x[::30], y[::30], classes_per_task=5)
    made = Fleet(
        stream,
        case.network,
        [learner(method)] * case.runs,
        list(range(case.runs)),
        Training(steps=1, batch=case.batch),
        device,
        autocast=case.bfloat16,
        fuse=torch.device(device).type == "cuda",  # as in a long training
    )
    learn_task(made)
    return made


def bench(
    device: str = "cuda", cases: tuple[Case, ...] = CASES, steps: int = STEPS, rounds: int = ROUNDS
) -> dict[str, dict[str, float]]:
    """By case and method the median of the rounds, and the slowest of them."""
    if torch.device(device).type == "cuda" and not torch.cuda.is_available():
        raise Missing("gpu cannot be measured: there is no CUDA device here")
    found = {}
    # As fleets train: shapes are fixed, so cuDNN measures what suits them.
    with torch.backends.cudnn.flags(enabled=True, benchmark=True, allow_tf32=True):
        for case in cases:
            seconds = race({name: fleet(case, name, device) for name in ("vanilla", "rwalk")}, steps, rounds)
            for name, each in seconds.items():
                found[f"{name}: {case}"] = {"ms": 1e3 * float(np.median(each)), "slowest_ms": 1e3 * max(each)}
    return found


if __name__ == "__main__":
    print(json.dumps(bench(), indent=1))
