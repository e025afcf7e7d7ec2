"""How many runs a shared folder hands out per second: processes that join one study of many runs.

    python -m benchmarks.folder                       the folder alone: nothing is trained
    python -m benchmarks.folder --train               tiny runs are trained
    python -m benchmarks.folder --runs 1000 --processes 8

Without training, every process does nothing but claim, write an outcome, give the claim back and read the outcomes
of the others, so the rate is the most that the folder allows on this file system.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from rwalk.data.splits import from_arrays
from rwalk.studies import shared_folder
from rwalk.studies.executor import Context
from rwalk.studies.rows import Made, Outcome
from rwalk.studies.specs import RunSpec, StreamSpec
from rwalk.training import Training


def tiny(runs: int) -> tuple[list[RunSpec], Context]:
    """Runs of two tasks with two steps each, on forty examples."""
    draw = torch.Generator().manual_seed(0)
    y = torch.arange(4).repeat_interleave(10)
    stream = from_arrays(torch.randn(len(y), 4, generator=draw), y, classes_per_task=2)
    spec = StreamSpec("tiny")
    found = [RunSpec(spec, training=Training(steps=2, batch=8), seed=seed) for seed in range(runs)]
    return found, Context("cpu", {spec: stream}, None, None)


def not_trained(context: Context, job: Any, report: Any, stop: Any) -> list[Outcome]:
    return [Outcome(accuracy={"single": [[1.0]], "multi": [[1.0]]}, stopped=None, made=Made()) for _ in job]


def joined(folder: Path, runs: int, train: bool, start: Any, answers: Any) -> None:
    """One process: all outcomes, its own and the others'."""
    torch.set_num_threads(1)
    if not train:
        shared_folder.train_fleet = not_trained  # type: ignore[assignment,attr-defined]
    specs, context = tiny(runs)
    executor = shared_folder.Join(context._replace(checkpoints=folder / "checkpoints"), 1, lambda: False)
    start.wait()
    begun = time.perf_counter()
    done = sum(len(job) for job, _ in executor.train(specs, lambda event: None))
    answers.put((done, time.perf_counter() - begun))


def bench(runs: int = 10_000, processes: int = 2, train: bool = False) -> dict[str, float]:
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as name:
        start, answers = context.Barrier(processes), context.Queue()
        arguments = (Path(name), runs, train, start, answers)
        crew = [context.Process(target=joined, args=arguments) for _ in range(processes)]
        for each in crew:
            each.start()
        results = [answers.get() for _ in crew]
        for each in crew:
            each.join()
        assert all(done == runs for done, _ in results), "a run was lost"
        outcomes = len(list((Path(name) / shared_folder.OUTCOMES).iterdir()))
        assert outcomes == runs and not list((Path(name) / shared_folder.CLAIMS).iterdir())
    slowest = max(seconds for _, seconds in results)
    return {"runs": runs, "processes": processes, "seconds": slowest, "claims_per_second": runs / slowest}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--train", action="store_true")
    asked = parser.parse_args()
    print(json.dumps(bench(asked.runs, asked.processes, asked.train)))
