"""Random schedules of processes that join, grow, stop, continue and die: a study never has fewer rows than it had.

Run by `test_schedules.py`, or by itself: python tests/schedules.py FOLDER SCHEDULES SEED. With 0 schedules, and
`faults.c` preloaded, three processes join instead, and the clock of one of them jumps.

Processes are forks of this one, so that a schedule takes seconds. After every event all rows that were ever seen
in runs.jsonl must still be there, byte for byte; at the end one more process completes the study, whose rows must
be those of a process that was never disturbed.
"""

from __future__ import annotations

import contextlib
import ctypes
import io
import json
import os
import random
import shutil
import signal
import sys
import time
from collections import Counter
from pathlib import Path

from processes import Child, command

MOST_SEEDS = 3
EVENTS = 12
LEASE = 0.6
KINDS = [*("join",) * 3, "alone", "grow", "stop", "continue", "kill", "interrupt", "wait"]


def rwalk_run(folder: Path, seeds: int, how: str = "--workers=1", jump: int = 0) -> None:
    if jump:
        ctypes.CDLL(None).faults_clock(ctypes.c_long(jump))
        times = [time.time() for _ in range(2000) if time.sleep(0.0005) is None]
        assert max(times) - min(times) > abs(jump) / 2, "the clock does not jump"
    command("run", *OPTIONS, f"--seeds={seeds}", "--out", folder, how)()


def process(folder: Path, seeds: int, join: bool, jump: int = 0) -> Child:
    """`rwalk run` in a fork."""
    how = "--join" if join else "--workers=1"
    return Child(lambda: rwalk_run(folder, seeds, how, jump), folder.parent / f"log-{time.monotonic_ns()}")


def end(each: Child) -> int:
    """Let a process continue, and wait for it."""
    each.signal(signal.SIGCONT)
    return each.result()


OPTIONS = [
    *("--methods=vanilla,rwalk", "--classes-per-task=5", "--steps=6", "--batch=8", "--checkpoint-every=3"),
    *("--reference=none", "--json"),
]


def rows_of(folder: Path) -> set[str]:
    """The whole lines of runs.jsonl."""
    path = folder / "runs.jsonl"
    if not path.exists():
        return set()
    return {line for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")}


def schedule(folder: Path, chance: random.Random, expected: bytes) -> Counter[str]:
    """One schedule; how many events of each kind it had."""
    counts, processes, seen, seeds = Counter[str](), list[Child](), set[str](), 1

    def check() -> None:
        now = rows_of(folder)
        assert now >= seen, f"{len(seen - now)} rows are lost"
        seen.update(now)

    for _ in range(EVENTS):
        kind = chance.choice(KINDS)
        alive = [each for each in processes if not each.ended()]
        if kind == "grow" and seeds < MOST_SEEDS:
            seeds += 1
            processes.append(process(folder, seeds, join=False))
        elif kind in ("join", "alone"):
            processes.append(process(folder, seeds, join=kind == "join"))
        elif kind == "wait":
            time.sleep(chance.uniform(0, 2 * LEASE))
        elif alive:
            each = chance.choice(alive)
            numbers = {"stop": signal.SIGSTOP, "continue": signal.SIGCONT, "kill": signal.SIGKILL}
            each.signal(numbers.get(kind, signal.SIGINT))
        else:
            continue
        counts[kind] += 1
        time.sleep(chance.uniform(0, 0.4))
        check()
    for each in processes:  # all of them: one that is stopped may hold the lock that another waits for
        each.signal(signal.SIGCONT)
    for each in processes:
        code = end(each)
        said = each.said()
        assert code in (0, 2, 130, -signal.SIGKILL), f"exit code {code}: {said}"
        assert "Traceback" not in said, said
        check()
    last = process(folder, MOST_SEEDS, join=False)
    assert last.result() == 0, last.said()
    check()
    assert (folder / "runs.jsonl").read_bytes() == expected, "other rows than those of one process"
    return counts


def clocks(base: Path, expected: bytes) -> None:
    """Three processes join, and the time of day of one of them jumps by an hour and back, again and again."""
    for jump in (3600, -3600):
        folder = base / f"clock{jump}"
        processes = [process(folder, MOST_SEEDS, join=True, jump=jump * (place == 1)) for place in range(3)]
        for each in processes:
            assert end(each) == 0, each.said()
        assert (folder / "runs.jsonl").read_bytes() == expected
        print(json.dumps({"jump": jump}), flush=True)


def main(base: Path, number: int, seed: int) -> None:
    os.environ |= {"RWALK_LEASE": str(LEASE), "RWALK_CACHE": str(base / "cache")}
    shutil.rmtree(base, ignore_errors=True)
    base.mkdir(parents=True)
    with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):
        rwalk_run(base / "expected", MOST_SEEDS)  # here, so that all forks have what it took to begin
    expected, counts, begun = (base / "expected" / "runs.jsonl").read_bytes(), Counter[str](), time.monotonic()
    if number == 0:
        clocks(base, expected)
    for each in range(number):
        try:
            counts += schedule(base / f"study-{each}", random.Random(f"{seed} {each}"), expected)
        except AssertionError as error:
            print(json.dumps({"schedule": each, "seed": seed, "fault": str(error)}), flush=True)
            raise SystemExit(1) from None
        counts["schedules"] += 1
        shutil.rmtree(base / f"study-{each}")
        print(json.dumps({**counts, "s": round(time.monotonic() - begun)}), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
