"""What Ray costs, and what a second node brings: 64 short runs, locally and on clusters of this machine.

    python -m benchmarks.ray_cluster overhead     two cores: Ray against the processes of the local executor
    python -m benchmarks.ray_cluster nodes        two nodes of one core each against one

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

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from cluster import Cluster  # noqa: E402 - the tests' own

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


def overhead() -> dict[str, float]:
    local, rows = timed(["--workers=2"], {**os.environ})
    ray, same = on_cluster(2)
    assert rows == same, "rows must not depend on the executor"
    return {"local_s": local, "ray_s": ray, "ratio": ray / local, "bar": 1.15}


def nodes() -> dict[str, float]:
    one, rows = on_cluster(1)
    two, same = on_cluster(1, 1)
    assert rows == same, "rows must not depend on the nodes"
    return {"one_s": one, "two_s": two, "gain": one / two, "bar": 1.8}


if __name__ == "__main__":
    print(json.dumps({"overhead": overhead, "nodes": nodes}[sys.argv[1]]()))
