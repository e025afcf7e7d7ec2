"""A study on a real Ray cluster of several nodes, all of them processes of this machine (`make test-ray`)."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import little
from cluster import Cluster, kill
from processes import until

pytest.importorskip("ray")
pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")]

STUDY = ["--network=mine:Network", "--methods=vanilla,rwalk", "--seeds=2", "--epochs=1", "--memory=2", "--quiet"]
LONG = ["--network=mine:Network", "--methods=rwalk", "--seeds=2", "--epochs=60", "--memory=2", "--quiet"]
Run = Callable[..., subprocess.Popen[str]]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Two nodes of one core each."""
    found = Cluster()
    try:
        found.start(cores=1)
        found.start(cores=1)
        yield found
    finally:
        found.stop()


@pytest.fixture
def user(tmp_path: Path) -> Path:
    """A user's folder, with a network in it, which imports a module beside it."""
    folder = tmp_path / "user"
    folder.mkdir()
    shutil.copy(little.__file__, folder / "beside.py")
    (folder / "mine.py").write_text("from beside import Network\n")
    return folder


@pytest.fixture
def run(user: Path) -> Iterator[Run]:
    """`rwalk run` in the user's folder; on a cluster, if there is one."""
    begun: list[subprocess.Popen[str]] = []

    def start(cluster: Cluster | None, *options: str, command: str = "run") -> subprocess.Popen[str]:
        where = ["--executor=ray"] if cluster else ["--workers=2"]
        environ = cluster.driver_environ() if cluster else {**os.environ}
        environ["RWALK_CACHE"] = str(user.parent / f"cache-{len(begun)}")
        program = [sys.executable, "-m", "rwalk", command, *where, *options]
        pipe = subprocess.PIPE
        begun.append(subprocess.Popen(program, cwd=user, env=environ, stdout=pipe, stderr=pipe, text=True))
        return begun[-1]

    yield start
    for process in begun:
        process.kill()
        process.communicate()


def ended(process: subprocess.Popen[str]) -> str:
    _, err = process.communicate(timeout=little.PATIENCE)
    assert process.returncode == 0, err
    return err


def rows(folder: Path) -> bytes:
    return (folder / "runs.jsonl").read_bytes()


def test_two_nodes_write_the_rows_of_one_process(cluster: Cluster, run: Run, user: Path) -> None:
    ended(run(None, *STUDY, "--out=local"))
    assert not ended(run(cluster, *STUDY, "--out=ray"))
    for name in ("runs.jsonl", "study.json"):
        assert (user / "ray" / name).read_bytes() == (user / "local" / name).read_bytes()
    assert not (user / "ray" / "checkpoints").exists()


def test_a_lost_worker_and_a_lost_node_lose_nothing(cluster: Cluster, run: Run, user: Path) -> None:
    study = [
        *(each for each in LONG if each != "--seeds=2"),
        "--seeds=6",
        "--reference=none",
    ]  # so many that a new worker finds something left to do
    third = cluster.start(cores=1)
    process = run(cluster, *study, "--out=ray", "--checkpoint-every=20")
    until(lambda: len(cluster.tasks()) >= 2 and len(list(user.glob("ray/checkpoints/*/*.json"))) >= 2)
    kill(cluster.tasks()[0])
    until(lambda: len(cluster.tasks()) >= 2)
    kill(cluster.raylet_of(third))
    _, err = process.communicate(timeout=little.PATIENCE)
    assert process.returncode == 0, err
    ended(run(None, *study, "--out=local"))
    assert rows(user / "ray") == rows(user / "local")
    assert not cluster.tasks()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_told_to_stop_all_stop_and_the_printed_command_goes_on(
    cluster: Cluster, run: Run, user: Path, number: int, code: int
) -> None:
    options = [*LONG, "--reference=none", "--out=ray", "--checkpoint-every=1000000"]
    process = run(cluster, *options)
    until(lambda: len(cluster.tasks()) == 2)
    until(lambda: len(list(user.glob("ray/checkpoints/.seen-*"))) == 1)
    process.send_signal(number)
    _, err = process.communicate(timeout=little.PATIENCE)
    assert process.returncode == code and err.count("\n") == 1, err
    assert "`rwalk resume ray --executor ray --trust mine:Network` resumes from there" in err
    until(lambda: not cluster.tasks())
    ended(run(cluster, "ray", "--trust=mine:Network", "--quiet", command="resume"))
    ended(run(None, *LONG, "--reference=none", "--out=local"))
    assert rows(user / "ray") == rows(user / "local")


def test_a_node_that_sees_neither_the_folder_nor_the_code(run: Run, user: Path) -> None:
    """As on another machine: code and data travel, and a stopped run begins again."""
    if subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode:
        pytest.skip("folders cannot be hidden here")
    far = Cluster()
    try:
        far.start(cores=0)
        far.start(cores=2, hide=[user])
        options = [*LONG, "--reference=none", "--out=ray"]
        process = run(far, *options)
        until(lambda: len(far.tasks()) == 2)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=little.PATIENCE)
        assert process.returncode == 130, err
        resumed = run(far, *options)
        ended(resumed)
        refused = run(far, *STUDY, "--out=kept", "--keep=all")
        _, err = refused.communicate(timeout=little.PATIENCE)
        assert refused.returncode == 2 and "every node can read" in err and err.count("\n") == 1, err
    finally:
        far.stop()
    ended(run(None, *options[:-1], "--out=local"))
    assert rows(user / "ray") == rows(user / "local")


def test_a_cluster_that_is_not_there_is_one_line(run: Run, user: Path) -> None:
    nowhere = Cluster()
    process = run(nowhere, *STUDY, "--out=ray")
    _, err = process.communicate(timeout=little.PATIENCE)
    nowhere.stop()
    assert (
        process.returncode == 2 and "there is no Ray cluster at 127.0.0.1" in err and "unset RAY_ADDRESS" in err
    ), err
    assert err.count("\n") == 1
