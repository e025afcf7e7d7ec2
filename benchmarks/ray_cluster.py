"""What Ray costs, and what a second node brings: 64 short runs, locally and on clusters of this machine.

    python -m benchmarks.ray_cluster overhead     two cores: Ray against the processes of the local executor
    python -m benchmarks.ray_cluster nodes        two nodes of one core each against one
    python -m benchmarks.ray_cluster nodes 5      … five times; three by default

Clusters are started before the clock, as a user's is; everything else counts, worker processes included. Needs
`pip install 'rwalk[ray]'`, two idle cores, and the tests' folder beside this one.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from cluster import Cluster  # noqa: E402 - the tests' own

ROUNDS = 3
STUDY = ["--methods=rwalk", "--seeds=64", "--epochs=20", "--reference=none", "--quiet"]


def timed(where: list[str], environ: dict[str, str]) -> tuple[float, bytes]:
    """Seconds for the study, and its rows."""
    with tempfile.TemporaryDirectory() as folder:
        program = [sys.executable, "-m", "rwalk", "run", *STUDY, *where, f"--out={folder}/study"]
        begun = time.perf_counter()
        subprocess.run(program, env=environ, check=True, stdout=subprocess.DEVNULL)
        return time.perf_counter() - begun, (Path(folder) / "study" / "runs.jsonl").read_bytes()


def on_cluster(*cores: int) -> tuple[float, bytes]:
    cluster = Cluster()
    try:
        for each in cores:
            cluster.start(cores=each)
        return timed(["--executor=ray"], cluster.driver_environ())
    finally:
        cluster.stop()


def overhead() -> tuple[float, float]:
    """Seconds by local processes, and by Ray, on two cores."""
    local, rows = timed(["--workers=2"], {**os.environ})
    ray, same = on_cluster(2)
    assert rows == same, "rows must not depend on the executor"
    return local, ray


def nodes() -> tuple[float, float]:
    """Seconds on two nodes of one core each, and on one."""
    two, rows = on_cluster(1, 1)
    one, same = on_cluster(1)
    assert rows == same, "rows must not depend on the nodes"
    return two, one


def main(what: str, rounds: int) -> None:
    """The two take turns, because a machine's speed may change meanwhile; their ratio is the rounds' median."""
    ratios = []
    for _ in range(rounds):
        first, second = {"overhead": overhead, "nodes": nodes}[what]()
        ratios.append(second / first)
        print(
            json.dumps({"first_s": round(first, 1), "second_s": round(second, 1), "ratio": ratios[-1]}), flush=True
        )
    bar = {"overhead": "≤ 1.15", "nodes": "≥ 1.8"}[what]
    print(f"{what}: {median(ratios):.3f} × ({bar})")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else ROUNDS)
