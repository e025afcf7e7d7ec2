"""The cost of Ray and the gain of a second node: studies locally and on clusters of this machine.

    python -m benchmarks.ray_cluster overhead     64 runs of a second on two cores: Ray against local processes
    python -m benchmarks.ray_cluster nodes        12 runs of ten seconds: two nodes of one core each against one
    python -m benchmarks.ray_cluster processes    the same without Ray, two processes against one: what cores allow
    python -m benchmarks.ray_cluster nodes 5      … five times; three by default

Clusters are started before the clock, as a user's is; everything else counts: worker processes, the report. Needs
`pip install 'rwalk[ray]'`, two idle cores, and the tests' folder beside this one.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from cluster import Cluster  # noqa: E402 - the tests' own

ROUNDS = 3
STUDY = ["--methods=rwalk", "--reference=none", "--quiet"]
SHORT = [*STUDY, "--seeds=64", "--epochs=20"]
LONG = [*STUDY, "--seeds=12", "--epochs=200"]
BARS = {"overhead": "≤ 1.15", "nodes": "≥ 1.8", "processes": "what nodes cannot exceed"}


class Timed(NamedTuple):
    seconds: float
    rows: bytes


def timed(study: list[str], where: list[str], environ: dict[str, str]) -> Timed:
    with tempfile.TemporaryDirectory() as folder:
        program = [sys.executable, "-m", "rwalk", "run", *study, *where, f"--out={folder}/study"]
        begun = time.perf_counter()
        subprocess.run(program, env=environ, stdout=subprocess.DEVNULL, check=True)
        seconds = time.perf_counter() - begun
        return Timed(seconds, (Path(folder) / "study" / "runs.jsonl").read_bytes())


def on_cluster(study: list[str], *cores: int) -> Timed:
    cluster = Cluster()
    try:
        for each in cores:
            cluster.start(cores=each)
        return timed(study, ["--executor=ray"], cluster.driver_environ())
    finally:
        cluster.stop()


def overhead() -> tuple[Timed, Timed]:
    """By local processes, and by Ray, on two cores."""
    return timed(SHORT, ["--workers=2"], {**os.environ}), on_cluster(SHORT, 2)


def nodes() -> tuple[Timed, Timed]:
    """On two nodes of one core each, and on one."""
    return on_cluster(LONG, 1, 1), on_cluster(LONG, 1)


def processes() -> tuple[Timed, Timed]:
    """By two local processes, and by one."""
    two, one = (timed(LONG, [f"--workers={count}"], {**os.environ}) for count in (2, 1))
    return two, one


def main(what: str, rounds: int) -> None:
    """The two take turns, because a machine's speed may change over time; the ratio is the rounds' median."""
    ratios = []
    for _ in range(rounds):
        first, second = {"overhead": overhead, "nodes": nodes, "processes": processes}[what]()
        assert first.rows == second.rows, "rows must not depend on who trained them"
        ratios.append(second.seconds / first.seconds)
        print(f"{first.seconds:.1f} s, {second.seconds:.1f} s: {ratios[-1]:.2f} ×", flush=True)
    print(f"{what}: {median(ratios):.2f} × ({BARS[what]})")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else ROUNDS)
