"""What Ray costs, and what a second node brings: 64 short runs, locally and on clusters of this machine.

    python -m benchmarks.ray_cluster overhead     two cores: Ray against the processes of the local executor
    python -m benchmarks.ray_cluster nodes        two nodes of one core each against one
    python -m benchmarks.ray_cluster nodes 5      … five times; three by default

Clusters are started before the clock, as a user's is; everything else counts, worker processes included.
Throughput is that of rows once the first is there; what starting costs is in the time of the whole study. Needs
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
STUDY = ["--methods=rwalk", "--seeds=64", "--epochs=20", "--reference=none", "--quiet"]


class Timed(NamedTuple):
    whole: float  # seconds, start-up and report included
    per_row: float  # … between two rows, once the first is there
    rows: bytes


def timed(where: list[str], environ: dict[str, str]) -> Timed:
    """The study, with an eye on its rows."""
    with tempfile.TemporaryDirectory() as folder:
        program = [sys.executable, "-m", "rwalk", "run", *STUDY, *where, f"--out={folder}/study"]
        file, seen = Path(folder) / "study" / "runs.jsonl", list[tuple[float, int]]()
        begun = time.perf_counter()
        process = subprocess.Popen(program, env=environ, stdout=subprocess.DEVNULL)
        while process.poll() is None:
            time.sleep(0.2)
            count = file.read_bytes().count(b"\n") if file.exists() else 0
            if count and (not seen or count > seen[-1][1]):
                seen.append((time.perf_counter(), count))
        whole = time.perf_counter() - begun
        assert process.returncode == 0
        (first, had), (last, has) = seen[0], seen[-1]
        return Timed(whole, (last - first) / (has - had), file.read_bytes())


def on_cluster(*cores: int) -> Timed:
    cluster = Cluster()
    try:
        for each in cores:
            cluster.start(cores=each)
        return timed(["--executor=ray"], cluster.driver_environ())
    finally:
        cluster.stop()


def overhead() -> tuple[Timed, Timed]:
    """By local processes, and by Ray, on two cores."""
    return timed(["--workers=2"], {**os.environ}), on_cluster(2)


def nodes() -> tuple[Timed, Timed]:
    """On two nodes of one core each, and on one."""
    return on_cluster(1, 1), on_cluster(1)


def main(what: str, rounds: int) -> None:
    """The two take turns, because a machine's speed may change meanwhile; a ratio is the rounds' median."""
    wholes, rates = [], []
    for _ in range(rounds):
        first, second = {"overhead": overhead, "nodes": nodes}[what]()
        assert first.rows == second.rows, "rows must not depend on who trained them"
        wholes.append(second.whole / first.whole)
        rates.append(second.per_row / first.per_row)
        print(
            f"{first.whole:.1f} s, {second.whole:.1f} s: {wholes[-1]:.2f} ×; row by row {rates[-1]:.2f} ×",
            flush=True,
        )
    bar = {"overhead": "the whole study ≤ 1.15", "nodes": "row by row ≥ 1.8"}[what]
    print(f"{what}: the whole study {median(wholes):.2f} ×, row by row {median(rates):.2f} × ({bar})")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else ROUNDS)
