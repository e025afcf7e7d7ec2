"""Ray workers, nodes and drivers killed at random moments over real runs (`make test-faults`)."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

import little
from cluster import Cluster, kill, processes_of
from processes import until

pytest.importorskip("ray")
pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")]

KILLS = int(os.environ.get("RWALK_KILLS", "50"))
PER_STUDY = 10  # kills, so that no run loses more workers than it may, and studies come to their ends
STUDY = ["--network=mine:Network", "--methods=vanilla,rwalk,pi", "--seeds=2", "--epochs=15", "--memory=2"]
STUDY += ["--reference=none", "--quiet", "--checkpoint-every=10"]


def begin(user: Path, out: str, cluster: Cluster | None) -> subprocess.Popen[str]:
    where = ["--executor=ray"] if cluster else ["--workers=2"]
    environ = cluster.driver_environ() if cluster else {**os.environ}
    program = [sys.executable, "-m", "rwalk", "run", *where, *STUDY, f"--out={out}"]
    pipe = subprocess.PIPE
    return subprocess.Popen(program, cwd=user, env=environ, stdout=pipe, stderr=pipe, text=True)


class Assassin:
    """Kills a worker, a node or the driver, and restores what does not restore itself."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster, self.chance = cluster, random.Random(0)
        self.second = cluster.start(cores=1)
        self.victims = {"worker": 0, "node": 0, "driver": 0}

    def strike(self, driver: subprocess.Popen[str]) -> None:
        time.sleep(self.chance.uniform(0, 1.5))
        kind = self.chance.choices(["worker", "node", "driver"], [7, 2, 1])[0]
        tasks = self.cluster.tasks()
        if kind == "worker" and tasks:
            kill(self.chance.choice(tasks))
        elif kind == "node":
            kill(self.cluster.raylet_of(self.second))
            self.second.wait()
            until(lambda: not processes_of(self.second.pid))  # nothing of it stays behind
            self.second = self.cluster.start(cores=1)
        elif kind == "driver":
            driver.kill()
            until(lambda: not set(tasks) & set(self.cluster.tasks()))  # nobody trains for it any more
        else:
            return
        self.victims[kind] += 1

    @property
    def total(self) -> int:
        return sum(self.victims.values())


def test_kills_of_ray_workers_nodes_and_drivers_lose_nothing(tmp_path: Path) -> None:
    user = tmp_path / "user"
    user.mkdir()
    shutil.copy(little.__file__, user / "mine.py")
    whole = begin(user, "local", None)
    assert whole.wait(little.PATIENCE) == 0
    expected = (user / "local" / "runs.jsonl").read_bytes()
    cluster, studies, started = Cluster(), 0, time.monotonic()
    try:
        cluster.start(cores=1)
        assassin = Assassin(cluster)
        while assassin.total < KILLS:
            out, driver = f"ray-{studies}", begin(user, f"ray-{studies}", cluster)
            enough = min(KILLS, assassin.total + PER_STUDY)
            while driver.poll() is None and assassin.total < enough:
                until(lambda driver=driver: cluster.tasks() or driver.poll() is not None)
                if driver.poll() is None:
                    assassin.strike(driver)
                if driver.poll() is not None and driver.returncode < 0:
                    driver.communicate()
                    driver = begin(user, out, cluster)  # the same command goes on
            _, err = driver.communicate(timeout=little.PATIENCE)
            assert driver.returncode == 0, err
            assert (user / out / "runs.jsonl").read_bytes() == expected
            assert not (user / out / "checkpoints").exists()
            until(lambda: not cluster.tasks())
            studies += 1
            print(f"\n{assassin.total} kills in {studies} studies, {time.monotonic() - started:.0f} s", end="")
    finally:
        cluster.stop()
    print(f"\n{assassin.victims} killed; every row is there once, and as without")
