"""Accuracies of the methods on real data: the figures of earlier trials, measured again by one command.

    python -m pytest -m slow -s tests/reproduction/test_results.py        # some minutes on two cores

MNIST's official files are looked for in ../shared/data, or in the folder RWALK_TEST_DATA names.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from statistics import mean, stdev

import pytest

DATA = Path(os.environ.get("RWALK_TEST_DATA", Path(__file__).parents[3] / "shared" / "data"))

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (DATA / "mnist").is_dir(), reason=f"no MNIST files in {DATA / 'mnist'}"),
]

Figures = dict[str, dict[str, float]]  # method → head → mean A₅ over the seeds


def measured(out: Path, *options: str, seeds: int = 5) -> Figures:
    """One call of `rwalk run` on Split MNIST: five tasks of two classes."""
    command = [sys.executable, "-m", "rwalk", "run", "--dataset", "mnist", "--data", str(DATA)]
    where = [
        "--seeds",
        str(seeds),
        "--reference",
        "none",
        "--device",
        "cpu",
        "--workers",
        "2",
        "--out",
        str(out),
        "--json",
    ]
    done = subprocess.run([*command, *where, *options], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    values: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in json.loads(done.stdout)["rows"]:
        assert row["stopped"] is None
        for head in ("single", "multi"):
            values[row["method"]][head].append(row[head]["A"])
    for method, heads in values.items():
        told = ", ".join(f"{head} {100 * mean(a):.2f} ± {100 * stdev(a):.2f}" for head, a in heads.items())
        print(f"\n{' '.join(options)}: {method}: A₅ {told}", end="")
    return {method: {head: mean(a) for head, a in heads.items()} for method, heads in values.items()}


def test_without_memory_rwalk_forgets_little_within_tasks_and_half_between(tmp_path: Path) -> None:
    # One seed deviates by 3.3 points in single-head evaluation, a mean of five by 1.5: too much to judge by.
    rwalk = measured(tmp_path / "rwalk", "--methods", "rwalk", "--lam", "1", "--steps", "1000", seeds=20)["rwalk"]
    vanilla = measured(tmp_path / "vanilla", "--methods", "vanilla", "--steps", "1000")["vanilla"]
    assert rwalk["multi"] >= 0.988
    assert rwalk["single"] >= 0.55
    assert vanilla["multi"] < 0.965


def test_with_ten_exemplars_a_class_rwalk_tells_all_classes_apart(tmp_path: Path) -> None:
    # λ = 10 is what the held-out tenth of the training data chooses (reproduction.budgets).
    budget = ("--methods", "vanilla,rwalk", "--lam", "10", "--epochs", "1", "--memory", "10")
    herded = measured(tmp_path / "mof", *budget, "--sampler", "mof")
    uniform = measured(tmp_path / "uniform", *budget, "--sampler", "uniform")
    assert herded["rwalk"]["single"] >= 0.825
    assert 0.68 <= herded["vanilla"]["single"] <= 0.76
    assert abs(herded["rwalk"]["single"] - uniform["rwalk"]["single"]) <= 0.04
