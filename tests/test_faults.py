"""Faults as they come: killed, told to stop, a full disk, a folder that is taken, a folder nobody may write to.

Every fault hits a real process. It is forked, so that a hundred of them cost no more than their training.
"""

from __future__ import annotations

import math
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import little
from processes import Child, command, processes_of, until
from rwalk import InputError, cli
from rwalk.engine.fleet import Fleet
from rwalk.studies import Study, checkpoint
from rwalk.studies.study_folder import Store

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="faults are made with fork")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RWALK_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PYTHONPATH", os.path.dirname(little.__file__), prepend=os.pathsep)


def execute(study: Study, folder: Path) -> None:
    with Store(folder).opened(study.describe()) as store:
        study.execute(store)


def undisturbed(study: Study, folder: Path) -> bytes:
    execute(study, folder)
    return (folder / "runs.jsonl").read_bytes()


LITTLE = [
    *("--methods=rwalk,pi", "--network=little:Network", "--memory=2", "--seeds=1", "--epochs=2", "--batch=16"),
    *("--reference=none", "--workers=1", "--checkpoint-every=3", "--json"),
]


# ── killed ────────────────────────────────────────────────────────────────────────────────────────────────

METHODS = ["rwalk", "ewc", "ewc++", "pi", "vanilla", "icarl", "a-gem"]


def kill_until_it_is_through(study: Study, folder: Path, chance: random.Random, patience: float) -> int:
    """Kill whoever works on the study, at random moments, until one gets through; how many were killed."""
    kills = 0
    while True:
        child = Child(lambda: execute(study, folder), folder.with_suffix(".log"))
        deadline = time.monotonic() + chance.uniform(0, patience)
        while not child.ended() and time.monotonic() < deadline:
            time.sleep(0.001)
        code = child.killed()
        assert code in (0, -signal.SIGKILL), child.said()
        if code != 0:
            kills += 1
            patience *= 1.02  # so that it ends on a machine as slow as it likes
        elif kills:
            return kills
        else:  # it was faster than expected: once more, killed earlier
            shutil.rmtree(folder)
            patience /= 4


def kill_matrix(methods: list[str], seeds: range, folder: Path) -> int:
    kills = 0
    for method in methods:
        study = little.study([method], seeds=2, checkpoint_every=3)
        begun = time.monotonic()
        whole = undisturbed(study, folder / f"{method}-whole")
        taken = time.monotonic() - begun
        for seed in seeds:
            parts = folder / f"{method}-{seed}"
            kills += kill_until_it_is_through(study, parts, random.Random(f"{method} {seed}"), taken / 2)
            assert (parts / "runs.jsonl").read_bytes() == whole
            litter = {path.name for path in parts.iterdir()} - {".lock", "study.json", "runs.jsonl"}
            assert not litter
    return kills


def test_killed_at_random_moments_nothing_is_lost(tmp_path: Path) -> None:
    assert kill_matrix(["rwalk", "icarl"], range(1), tmp_path) >= 2, "one of each at least"


@pytest.mark.slow
def test_killed_a_hundred_times_nothing_is_lost(tmp_path: Path) -> None:
    kills = kill_matrix(METHODS, range(8), tmp_path)
    print(f"\n{kills} kills, every study's rows as if there had been none")
    assert kills >= 100


@pytest.mark.slow
def test_killed_with_workers_no_orphan_stays_and_nothing_is_lost(tmp_path: Path) -> None:
    """The parent is killed; its workers notice, end by themselves, and the next command goes on."""
    alone = ("--workers=1", "--seeds=1")
    options = [*(each for each in LITTLE if each not in alone), "--workers=2", "--seeds=5", "--out"]
    program = [sys.executable, "-m", "rwalk", "run", *options]
    subprocess.run([*program, str(tmp_path / "whole")], check=True, capture_output=True)
    parts, chance, kills = tmp_path / "parts", random.Random(0), 0
    while True:
        code = killed_at_work([*program, str(parts)], parts, chance.uniform(0, 1))
        if code != -signal.SIGKILL:
            break
        kills += 1
    print(f"\n{kills} kills of a study with two workers")
    assert code == 0
    assert kills >= 2
    assert (parts / "runs.jsonl").read_bytes() == (tmp_path / "whole" / "runs.jsonl").read_bytes()


def killed_at_work(program: list[str], folder: Path, delay: float) -> int:
    """Kill a command some time after its workers have begun, unless it ends before; its exit code."""
    before = contents(folder)
    process = subprocess.Popen(program, start_new_session=True, stdout=subprocess.DEVNULL)
    until(lambda: process.poll() is not None or bool(contents(folder) - before))
    time.sleep(delay)
    process.kill()
    process.wait()
    until(lambda: not alive(process.pid))
    return process.returncode


def contents(folder: Path) -> set[Path]:
    return set(folder.glob("checkpoints/*/*.safetensors"))


def alive(session: int) -> bool:
    """Whether any process of a session is left, zombies aside."""
    return bool(processes_of(session))


# ── told to stop ──────────────────────────────────────────────────────────────────────────────────────────


def at_checkpoint(happens: Callable[[], object], folder: Path) -> Callable[[], None]:
    """The little study, as the work of a child to which something happens in the second task of a run."""
    save, happened = checkpoint.Checkpointer.save, []

    def saved(self: checkpoint.Checkpointer, fleet: Fleet) -> None:
        save(self, fleet)
        if fleet.task == 1 and not happened:
            happened.append(True)
            happens()

    def work() -> None:
        checkpoint.Checkpointer.save = saved  # type: ignore[method-assign]
        command("run", "--out", folder, *LITTLE)()

    return work


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_told_to_stop_it_saves_says_so_and_goes_on_later(number: int, code: int, tmp_path: Path) -> None:
    parts = tmp_path / "parts"
    child = Child(at_checkpoint(lambda: os.kill(os.getpid(), number), parts), tmp_path / "log")
    assert child.result() == code, child.said()
    assert "stopped; 0 of 2 runs are kept" in child.said()
    assert "rwalk resume" in child.said()
    assert "Traceback" not in child.said()
    study = Study.of(Store(parts).study(), workers=1)
    assert undisturbed(study, parts) == undisturbed(study, tmp_path / "whole")


# ── a full disk ───────────────────────────────────────────────────────────────────────────────────────────


def test_a_disk_full_of_checkpoints_ends_it_cleanly(tmp_path: Path) -> None:
    study = little.study(["rwalk"], seeds=1, checkpoint_every=5)
    whole = undisturbed(study, tmp_path / "whole")

    def starved() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (6000, 6000))  # enough for study.json
        with cli._friendly_errors():
            execute(study, tmp_path / "parts")

    child = Child(starved, tmp_path / "log")
    assert child.result() == 2, child.said()
    assert "cannot write a checkpoint" in child.said() and "File too large" in child.said()
    assert child.said().count("\n") == 1
    assert not any(path.name.startswith(".") and path.name != ".lock" for path in tmp_path.rglob("parts/**/*"))
    assert undisturbed(study, tmp_path / "parts") == whole


def test_a_disk_full_of_rows_ends_it_cleanly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "AT_LEAST", math.inf)  # seconds until a checkpoint is due
    study = little.study(["rwalk"], seeds=4)
    whole = undisturbed(study, tmp_path / "whole")
    room = len(whole) * 5 // 8  # the third row is torn

    def starved() -> None:
        with cli._friendly_errors(), Store(tmp_path / "parts").opened(study.describe()) as store:
            resource.setrlimit(resource.RLIMIT_FSIZE, (room, room))
            study.execute(store)

    child = Child(starved, tmp_path / "log")
    assert child.result() == 2, child.said()
    assert "cannot write to" in child.said() and "File too large" in child.said()
    assert len(Store(tmp_path / "parts").rows()) == 2
    assert undisturbed(study, tmp_path / "parts") == whole


@contextmanager
def small_disk(folder: Path, size: str) -> Iterator[None]:
    folder.mkdir()
    mounted = (
        shutil.which("mount")
        and not subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={size}", "none", str(folder)], capture_output=True
        ).returncode
    )
    if not mounted:
        pytest.skip("a tmpfs cannot be mounted here")
    try:
        yield
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def test_a_disk_that_really_fills_up_loses_nothing(tmp_path: Path) -> None:
    study = little.study(["rwalk"], seeds=2, checkpoint_every=5)
    whole = undisturbed(study, tmp_path / "whole")
    with small_disk(tmp_path / "disk", "256k"):
        ballast = tmp_path / "disk" / "ballast"
        ballast.write_bytes(bytes(220 * 1024))

        def starved() -> None:
            with cli._friendly_errors():
                execute(study, tmp_path / "disk" / "study")

        child = Child(starved, tmp_path / "log")
        assert child.result() == 2, child.said()
        assert "No space left on device" in child.said()
        ballast.unlink()
        assert undisturbed(study, tmp_path / "disk" / "study") == whole


# ── folders that are taken, or closed ─────────────────────────────────────────────────────────────────────


def test_a_second_process_is_refused_while_the_first_works(tmp_path: Path) -> None:
    works = tmp_path / "works"
    first = Child(at_checkpoint(lambda: (works.touch(), signal.pause()), tmp_path / "study"), tmp_path / "log")
    try:
        until(works.exists)
        study = Study.of(Store(tmp_path / "study").study(), workers=1)
        with pytest.raises(InputError, match="another process is working on"):
            execute(study, tmp_path / "study")
    finally:
        first.killed()
    execute(study, tmp_path / "study")  # a killed holder locks nobody out


def test_a_read_only_folder_is_refused(tmp_path: Path) -> None:
    study = little.study(seeds=1)
    study.describe()

    def as_nobody(folder: Path) -> None:
        if os.getuid() == 0:  # to whom nothing is read-only
            os.setgid(65534)
            os.setuid(65534)
        with cli._friendly_errors():
            execute(study, folder)

    with tempfile.TemporaryDirectory() as open_to_all:
        for name in ("", "new"):
            os.chmod(open_to_all, 0o555)
            child = Child(lambda name=name: as_nobody(Path(open_to_all, name)), tmp_path / f"log{name}")
            assert child.result() == 2, child.said()
            assert "cannot write to" in child.said() and "Permission denied" in child.said()
            assert child.said().count("\n") == 1


# ── a long life ───────────────────────────────────────────────────────────────────────────────────────────


LIFE = """
import resource
from pathlib import Path
from rwalk import Fleet, Training, learner, permuted
from rwalk.data import datasets

resident = {}

class Scale:
    def due(self, fleet):
        return fleet.step == 0

    def save(self, fleet):
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        resident[fleet.task] = pages * resource.getpagesize()

stream = permuted(datasets.load("digits"), 30)
Fleet(stream, "mlp", [learner("rwalk")], [0], Training(steps=5)).train(checkpoints=Scale())
print(resident[10], resident[30])
"""


def test_memory_does_not_grow_with_the_tasks() -> None:
    """In a process of its own: a fork would count what it shares with the tests before it."""
    # glibc may keep freed tensors for later, by chance some 30 MB: told so, it gives them back at once.
    exact = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_ARENA_MAX": "1"}
    life = [sys.executable, "-c", LIFE]
    done = subprocess.run(life, capture_output=True, text=True, timeout=little.PATIENCE, check=True, env=exact)
    after_10, after_30 = (int(size) for size in done.stdout.split())
    print(f"{after_10 / 1e6:.1f} MB after task 10, {after_30 / 1e6:.1f} MB after task 30")
    assert abs(after_30 / after_10 - 1) < 0.03
