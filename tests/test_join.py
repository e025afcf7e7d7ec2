"""Several processes share one study by its folder: claims, leases, and what happens when some are killed."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import little
from rwalk import InputError
from rwalk.studies.claims import Claims, read_claim
from rwalk.studies.executors.join import CLAIMS, OUTCOMES, read_outcomes
from rwalk.studies.status import status_of
from rwalk.studies.store import SharedStore, Store

OPTIONS = [
    "--network=little:Network",
    "--methods=vanilla,rwalk",
    "--seeds=2",
    "--epochs=1",
    "--memory=2",
    "--quiet",
]
LEASE = 2.0
Start = Callable[..., subprocess.Popen[str]]


# ── claims ────────────────────────────────────────────────────────────────────────────────────────────────────


def owners(folder: Path) -> list[str]:
    return [read_claim(path)["owner"] for path in folder.iterdir()]


def test_a_claim_has_one_owner_until_it_is_given_back(tmp_path: Path) -> None:
    one, other = Claims(tmp_path, lease=60), Claims(tmp_path, lease=60)
    claim = one.take("run")
    assert claim is not None and one.take("run") is None and other.take("run") is None
    with claim:
        assert other.take("run") is None and owners(tmp_path) == [one.owner]
    assert other.take("run") is not None


def test_a_claim_that_shows_no_life_is_taken_over_by_exactly_one(tmp_path: Path) -> None:
    assert Claims(tmp_path, lease=0.3).take("run") is not None  # never entered: its owner died at once
    others = [Claims(tmp_path, lease=0.3) for _ in range(8)]
    assert not any(each.take("run") for each in others), "they have only just seen it"
    time.sleep(0.4)
    taken, ready = [], threading.Barrier(len(others))

    def take(claims: Claims) -> None:
        ready.wait()
        if claims.take("run") is not None:
            taken.append(claims.owner)

    threads = [threading.Thread(target=take, args=(each,)) for each in others]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert len(taken) == 1 and owners(tmp_path) == taken


def test_a_claim_that_is_kept_alive_is_not_taken(tmp_path: Path) -> None:
    claim, other = Claims(tmp_path, lease=1.0).take("run"), Claims(tmp_path, lease=1.0)
    assert claim is not None
    with claim:
        deadline = time.monotonic() + 3.0
        while time.monotonic() < deadline:
            assert other.take("run") is None
            time.sleep(0.1)


def test_an_owner_that_was_slow_leaves_its_successor_alone(tmp_path: Path) -> None:
    slow, quick = Claims(tmp_path, lease=60), Claims(tmp_path, lease=0.1)
    claim = slow.take("run")
    assert claim is not None and quick.take("run") is None
    time.sleep(0.2)
    successor = quick.take("run")
    assert successor is not None
    with claim:
        pass  # it wakes up, and ends
    assert owners(tmp_path) == [quick.owner]


# ── processes ─────────────────────────────────────────────────────────────────────────────────────────────────


def begun(folder: Path, *options: str) -> subprocess.Popen[str]:
    """`rwalk run` in a process of its own."""
    tests = os.path.dirname(little.__file__)
    path = os.pathsep.join([tests, *filter(None, [os.environ.get("PYTHONPATH")])])
    environ = {**os.environ, "PYTHONPATH": path, "RWALK_LEASE": str(LEASE), "RWALK_CACHE": str(folder / "cache")}
    command = [sys.executable, "-m", "rwalk", "run", "--quiet", *OPTIONS, *options]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, cwd=folder, env=environ, stdout=pipe, stderr=pipe, text=True)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts processes that are ended afterwards, whatever happened."""
    started: list[subprocess.Popen[str]] = []

    def call(*options: str) -> subprocess.Popen[str]:
        started.append(begun(tmp_path, *options))
        return started[-1]

    yield call
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same study, by one process."""
    folder = tmp_path_factory.mktemp("alone")
    ended(begun(folder, "--out=study", "--workers=1"))
    return folder / "study"


def ended(process: subprocess.Popen[str]) -> None:
    _, err = process.communicate(timeout=little.PATIENCE)
    assert process.returncode == 0, err


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + little.PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def names(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if not path.name.startswith(".")] if folder.is_dir() else []


def test_three_processes_write_the_rows_that_one_writes(start: Start, alone: Path, tmp_path: Path) -> None:
    together = [start("--out=shared", "--join") for _ in range(3)]
    for each in together:
        ended(each)
    for name in ("runs.jsonl", "study.json"):
        assert (tmp_path / "shared" / name).read_bytes() == (alone / name).read_bytes()
    assert names(tmp_path / "shared" / CLAIMS) == []
    found = status_of(tmp_path / "shared")
    assert (found.done, found.running, found.waiting) == (4, (), 0)


def killed_until_done(start: Start, folder: Path, kills: int) -> int:
    """Two processes share a study; one after another is killed at random moments and replaced."""
    chance, done = random.Random(0), 0
    options = [f"--out={folder.name}", "--join", "--checkpoint-every=3"]
    processes = [start(*options) for _ in range(2)]
    while done < kills and not (folder / "runs.jsonl").exists():
        wait_until(lambda: bool(names(folder / CLAIMS)) or (folder / "runs.jsonl").exists())
        time.sleep(chance.uniform(0, 0.5))
        victim = chance.randrange(2)
        processes[victim].kill()
        processes[victim].communicate()
        processes[victim] = start(*options)
        done += 1
    for each in processes:
        ended(each)
    return done


def test_killed_processes_lose_nothing(start: Start, alone: Path, tmp_path: Path) -> None:
    assert killed_until_done(start, tmp_path / "shared", kills=3) > 0
    rows = (tmp_path / "shared" / "runs.jsonl").read_bytes()
    assert rows == (alone / "runs.jsonl").read_bytes()


@pytest.mark.slow
def test_many_kills_lose_nothing(start: Start, alone: Path, tmp_path: Path) -> None:
    kills, rounds = 0, 0
    while kills < int(os.environ.get("RWALK_KILLS", "50")):
        kills += killed_until_done(start, tmp_path / f"shared-{rounds}", kills=10)
        rows = (tmp_path / f"shared-{rounds}" / "runs.jsonl").read_bytes()
        assert rows == (alone / "runs.jsonl").read_bytes()
        rounds += 1
    print(f"{kills} kills in {rounds} studies")


def test_a_process_that_sleeps_through_its_lease_does_no_harm(start: Start, alone: Path, tmp_path: Path) -> None:
    sleeper = start("--out=shared", "--join", "--checkpoint-every=3")
    wait_until(lambda: bool(names(tmp_path / "shared" / CLAIMS)))
    sleeper.send_signal(signal.SIGSTOP)
    try:
        (claimed,) = names(tmp_path / "shared" / CLAIMS)
        ended(start("--out=shared", "--join"))
        assert Path(claimed).stem + ".json" in names(tmp_path / "shared" / OUTCOMES), "another has done its work"
    finally:
        sleeper.send_signal(signal.SIGCONT)
    ended(sleeper)
    rows = (tmp_path / "shared" / "runs.jsonl").read_bytes()
    assert rows == (alone / "runs.jsonl").read_bytes()


def test_told_to_stop_a_process_gives_its_run_back_at_once(start: Start, tmp_path: Path) -> None:
    process = start("--out=shared", "--join", "--checkpoint-every=3")
    wait_until(lambda: bool(names(tmp_path / "shared" / CLAIMS)))
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=little.PATIENCE)
    if process.returncode == 130:  # else it was through before it heard
        assert "the same command resumes from there" in err and err.count("\n") == 1
    assert names(tmp_path / "shared" / CLAIMS) == []


# ── what is refused ───────────────────────────────────────────────────────────────────────────────────────────


def test_another_study_cannot_be_joined(tmp_path: Path) -> None:
    with SharedStore(tmp_path / "study").opened(little.study(seeds=1).describe()):
        pass
    bigger = little.study(seeds=2).describe()
    with (
        pytest.raises(InputError, match="join it with the command that began it"),
        SharedStore(tmp_path / "study").opened(bigger),
    ):
        pass
    with Store(tmp_path / "study").opened(little.study(seeds=1).describe()):
        quick = SharedStore(tmp_path / "study")
        with pytest.raises(InputError, match="another process is working"), quick._locked():
            pass


def test_an_outcome_that_is_no_outcome_is_not_used(tmp_path: Path) -> None:
    job = (little.study(methods=["vanilla"], seeds=1).runs[0],)
    runs, good = [job[0].hash()], {"accuracy": {}, "made": {}, "stopped": None}
    path = tmp_path / "outcome.json"
    for record, used in (
        ({"runs": runs, "outcomes": [good]}, True),
        ({"runs": runs, "outcomes": [{**good, "within": {}}]}, True),  # what else was measured
        ({"runs": ["another"], "outcomes": [good]}, False),
        ({"runs": runs, "outcomes": [good, good]}, False),
        ({"runs": runs, "outcomes": [{"stopped": None}]}, False),
        ([good], False),
    ):
        path.write_text(json.dumps(record))
        assert (read_outcomes(path, job) is not None) == used
    path.write_text('{"runs": [')
    assert read_outcomes(path, job) is None and read_outcomes(tmp_path / "nothing", job) is None
