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
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import little
from processes import Child, command, until
from rwalk import InputError
from rwalk.atomic_files import with_checksum
from rwalk.studies import shared_folder, work_claims
from rwalk.studies.executor import Context, Job, Result
from rwalk.studies.json_records import from_json
from rwalk.studies.rows import Outcome
from rwalk.studies.shared_folder import OUTCOMES, Join, read_outcomes
from rwalk.studies.study_folder import SharedStore, Store
from rwalk.studies.work_claims import CLAIMS, Claims

OPTIONS = [
    "--network=little:Network",
    "--methods=vanilla,rwalk",
    "--seeds=2",
    "--epochs=1",
    "--memory=2",
    "--quiet",
]
LONGER = "--epochs=8"
LEASE = 2.0
STUDY = little.study(methods=["vanilla"], seeds=7, executor=Join)
Start = Callable[..., Child]


# ── claims ────────────────────────────────────────────────────────────────────────────────────────────────────


def owner(claim: Path) -> Any:
    return json.loads(claim.read_bytes() or b"{}").get("owner")


def owners(folder: Path) -> list[Any]:
    return [owner(path) for path in folder.iterdir()]


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


def test_a_claim_that_is_given_back_shows_life(tmp_path: Path) -> None:
    """Its owner is between two runs: a process alone must not take the folder for abandoned."""
    claim = Claims(tmp_path, lease=60).take("run")
    assert claim is not None
    claim.__enter__()
    given_back = threading.Timer(0.5, claim.__exit__, (None, None, None))
    given_back.start()
    assert Claims(tmp_path, lease=60).are_alive()
    given_back.join()
    assert not Claims(tmp_path, lease=60).are_alive(), "there is none"


def test_a_claim_that_is_kept_alive_is_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Several leases pass on the clock of the other process, and a sign of life within each."""
    claim, other = Claims(tmp_path, lease=0.3).take("run"), Claims(tmp_path, lease=0.3)
    assert claim is not None
    now = 0.0
    monkeypatch.setattr(work_claims, "time", SimpleNamespace(monotonic=lambda: now))
    with claim:
        (path,) = other.held().values()
        for _ in range(3):
            seen = path.read_bytes()
            assert other.take("run") is None
            until(lambda seen=seen: path.read_bytes() != seen)
            now += 1.0
        assert other.take("run") is None


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


@pytest.mark.parametrize("kind", ["empty", "folder", "dangling link", "link", "fifo", "no JSON"])
def test_a_claim_that_cannot_be_read_is_taken_over_after_a_lease(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "run.0"
    if kind == "folder":
        path.mkdir()
        (path / "file").touch()
    elif kind == "fifo":
        os.mkfifo(path)
    elif "link" in kind:
        path.symlink_to("/dev/zero" if kind == "link" else tmp_path / "nowhere")
    else:
        path.write_bytes(b"" if kind == "empty" else b"\xff{")
    claims = Claims(tmp_path, lease=0.2)
    opened = len(os.listdir("/proc/self/fd")) if sys.platform == "linux" else 0
    assert claims.take("run") is None, "it has only just seen it"
    assert not opened or len(os.listdir("/proc/self/fd")) == opened, "who waits for long would run out of files"
    time.sleep(0.3)
    claim = claims.take("run")
    assert claim is not None
    with claim:
        assert owner(claims.held()["run"]) == claims.owner


def test_a_stray_file_among_claims_is_no_claim(tmp_path: Path) -> None:
    for name in ("README", "run.txt", "notes.old.1x", ".run.0.12.abc", "caf\udce9.0\n"):
        (tmp_path / name).write_text("not a claim")
    claims = Claims(tmp_path, lease=60)
    assert claims.held() == {}
    assert claims.take("run") is not None


def test_a_claim_that_cannot_be_created_is_an_error_and_not_a_wait(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OSError):
        Claims(tmp_path / "file" / "claims").take("run")
    with pytest.raises(OSError):
        Claims(tmp_path, lease=60).take("x" * 300)


@pytest.mark.parametrize("lease", ["soon", "0", "-1", "nan", "inf"])
def test_a_lease_that_is_no_time_is_refused(lease: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RWALK_LEASE", lease)
    with pytest.raises(InputError, match="RWALK_LEASE"):
        Claims(tmp_path)
    for kind in (Store, SharedStore):
        with pytest.raises(InputError, match="RWALK_LEASE"), kind(tmp_path / "study").opened(STUDY.describe()):
            pass
        assert not (tmp_path / "study").exists()


# ── processes ─────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module", autouse=True)
def surroundings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.path.dirname(little.__file__), prepend=os.pathsep)
        patch.setenv("RWALK_LEASE", str(LEASE))
        patch.setenv("RWALK_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


def begun(folder: Path, *options: str) -> Child:
    """`rwalk run` in a fork."""
    given = {each.partition("=")[0] for each in options}
    usual = [each for each in OPTIONS if each.partition("=")[0] not in given]
    work = command("run", *usual, *options)

    def there() -> None:
        os.chdir(folder)
        work()

    return Child(there, folder / f"log-{time.monotonic_ns()}")


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts processes that are ended afterwards, whatever happened."""
    started: list[Child] = []

    def call(*options: str) -> Child:
        started.append(begun(tmp_path, *options))
        return started[-1]

    yield call
    for process in started:
        process.killed()


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same study, by one process, which is a new one."""
    folder = tmp_path_factory.mktemp("alone")
    new = [sys.executable, "-m", "rwalk", "run", "--quiet", *OPTIONS, "--out=study", "--workers=1"]
    subprocess.run(new, cwd=folder, check=True, capture_output=True)
    return folder / "study"


def ended(process: Child) -> None:
    assert process.result() == 0, process.said()


def names(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if not path.name.startswith(".")] if folder.is_dir() else []


def test_three_processes_write_the_rows_that_one_writes(start: Start, alone: Path, tmp_path: Path) -> None:
    together = [start("--out=shared", "--join") for _ in range(3)]
    for each in together:
        ended(each)
    for name in ("runs.jsonl", "study.json"):
        assert (tmp_path / "shared" / name).read_bytes() == (alone / name).read_bytes()
    assert names(tmp_path / "shared" / CLAIMS) == []


def trains(folder: Path, process: Child) -> bool:
    """Whether a process holds a claim: it has begun, and is not through."""
    with suppress(OSError, ValueError):  # it was just given back
        return any(f"-{process.pid}-" in str(owner(folder / CLAIMS / name)) for name in names(folder / CLAIMS))
    return False


def killed_until_done(start: Start, folder: Path, kills: int, *options: str, seed: int = 0) -> int:
    """Two processes share a study; one after another is killed at random moments of its work and replaced."""
    chance, done = random.Random(seed), 0
    options = (f"--out={folder.name}", "--join", "--checkpoint-every=3", *options)
    processes, through = [start(*options) for _ in range(2)], folder / "runs.jsonl"
    while done < kills and not through.exists():
        until(lambda: any(trains(folder, each) for each in processes) or through.exists())
        time.sleep(chance.uniform(0, 0.5) if done else 0)
        victim = chance.choice([n for n in range(2) if trains(folder, processes[n])] or [0, 1])
        done += processes[victim].killed() == -signal.SIGKILL
        processes[victim] = start(*options)
    for each in processes:
        ended(each)
    return done


def test_killed_processes_lose_nothing(start: Start, alone: Path, tmp_path: Path) -> None:
    assert killed_until_done(start, tmp_path / "shared", kills=3) > 0
    rows = (tmp_path / "shared" / "runs.jsonl").read_bytes()
    assert rows == (alone / "runs.jsonl").read_bytes()


@pytest.mark.slow
def test_many_kills_lose_nothing(start: Start, tmp_path: Path) -> None:
    """Runs that are long enough to be killed in their middle."""
    ended(start("--out=alone", "--workers=1", LONGER))
    expected, started = (tmp_path / "alone" / "runs.jsonl").read_bytes(), time.monotonic()
    kills, rounds = 0, 0
    while kills < (enough := int(os.environ.get("RWALK_KILLS", "50"))):
        folder = tmp_path / f"shared-{rounds}"
        kills += killed_until_done(start, folder, min(10, enough - kills), LONGER, seed=rounds)
        assert (folder / "runs.jsonl").read_bytes() == expected
        assert len(names(folder / OUTCOMES)) == 4 + 2, "every run and reference once"
        rounds += 1
        print(f"\n{kills} kills in {rounds} studies, {time.monotonic() - started:.0f} s", end="")


def test_a_process_that_sleeps_through_its_lease_does_no_harm(
    start: Start, alone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LITTLE_PAUSE", "0.02")  # it is inside a run when it is stopped
    sleeper = start("--out=shared", "--join", "--checkpoint-every=3")
    monkeypatch.delenv("LITTLE_PAUSE")
    until(lambda: names(tmp_path / "shared" / CLAIMS))
    sleeper.signal(signal.SIGSTOP)
    try:
        (claimed,) = names(tmp_path / "shared" / CLAIMS)
        ended(start("--out=shared", "--join"))
        assert Path(claimed).stem + ".json" in names(tmp_path / "shared" / OUTCOMES), "another has done its work"
    finally:
        sleeper.signal(signal.SIGCONT)
    ended(sleeper)
    rows = (tmp_path / "shared" / "runs.jsonl").read_bytes()
    assert rows == (alone / "runs.jsonl").read_bytes()


def test_told_to_stop_a_process_gives_its_run_back_at_once(start: Start, tmp_path: Path) -> None:
    process = start("--out=shared", "--join", "--checkpoint-every=3")
    until(lambda: bool(names(tmp_path / "shared" / CLAIMS)))
    process.signal(signal.SIGINT)
    if process.result() == 130:  # else it was through before it heard
        assert "the same command resumes from there" in process.said() and process.said().count("\n") == 1
    assert names(tmp_path / "shared" / CLAIMS) == []


# ── the outcomes of many runs ─────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def member(tmp_path: Path) -> Callable[[], Join]:
    """Makes executors that share a folder, for one study."""

    def make() -> Join:
        found = STUDY._executor(len(STUDY.runs), SharedStore(tmp_path), stop=lambda: False)
        assert isinstance(found, Join)
        return found

    return make


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The runs that are trained, by any executor of this process."""
    found, train = list[str](), shared_folder.train_fleet

    def counted(context: Context, job: Job, *rest: Any) -> Any:
        found.extend(run.hash() for run in job)
        return train(context, job, *rest)

    monkeypatch.setattr(shared_folder, "train_fleet", counted)
    return found


def outcomes_of(executor: Join) -> Iterator[tuple[str, list[Result]]]:
    for (run,), outcomes in executor.train(STUDY.runs, lambda event: None):
        yield run.hash(), outcomes


def test_every_process_reads_the_outcomes_of_the_others_and_damaged_ones_are_trained_again(
    member: Callable[[], Join], trained: list[str], tmp_path: Path
) -> None:
    taking_turns, found = [outcomes_of(member()) for _ in range(3)], [dict[str, Any]() for _ in range(3)]
    while any(len(each) < len(STUDY.runs) for each in found):
        for executor, each in zip(taking_turns, found, strict=True):
            each.update([turn] if (turn := next(executor, None)) else [])
    assert found[0] == found[1] == found[2] and sorted(trained) == sorted(run.hash() for run in STUDY.runs)
    next((tmp_path / OUTCOMES).iterdir()).write_text("unreadable")
    assert dict(outcomes_of(member())) == found[0] and len(trained) == len(STUDY.runs) + 1


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
    matrix = [[0.5, None], [0.25, 1]]
    runs, good = [job[0].hash()], {"accuracy": {"single": matrix, "multi": matrix}, "made": {}, "stopped": None}
    within = {head: [[[0.5, None]], [[0.25, 1]]] for head in ("single", "multi")}
    path = tmp_path / "outcome.json"
    for record, used in (
        ({"runs": runs, "outcomes": [good]}, True),
        ({"runs": runs, "outcomes": [{**good, "within": within}]}, True),  # what else was measured
        ({"runs": runs, "outcomes": [{**good, "within": {}}]}, False),
        ({"runs": runs, "outcomes": [{**good, "accuracy": {"single": matrix, "multi": [[2.66]]}}]}, False),
        ({"runs": runs, "outcomes": [good], "sha257": "0"}, False),  # a checksum whose name was damaged
        ({"runs": ["another"], "outcomes": [good]}, False),
        ({"runs": runs, "outcomes": [good, good]}, False),
        ({"runs": runs, "outcomes": [{"stopped": None}]}, False),
        ([good], False),
    ):
        path.write_text(json.dumps(record))  # as 0.2.0 writes it, without a checksum
        assert (read_outcomes(path, job) is not None) == used
    path.write_text(with_checksum({"runs": runs, "outcomes": [good]}))
    assert read_outcomes(path, job) == [from_json(Outcome, good, "an outcome")]
    path.write_text(path.read_text().replace("0.25", "0.35"))
    assert read_outcomes(path, job) is None
    path.write_text('{"runs": [')
    assert read_outcomes(path, job) is None and read_outcomes(tmp_path / "nothing", job) is None
