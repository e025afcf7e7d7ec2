"""Every file operation of a command fails once: the n-th open, write, fsync or rename, for every n.

Run by `test_file_faults.py` as a process into which `faults.c` is preloaded:

    LD_PRELOAD=faults.so python tests/file_faults.py FOLDER COMMAND STEP

Each attempt is a fork of this process, so that hundreds of them cost little more than what they do. One line of
JSON per kind of operation is printed: how many operations and attempts there were, and what was wrong with which.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import io
import json
import os
import shutil
import sys
import time
from collections.abc import Callable
from itertools import chain, count
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from safetensors import safe_open as sealed_open

from processes import Child, command
from rwalk import IncrementalClassifier, cli
from rwalk.report import html_page
from rwalk.studies import study
from rwalk.studies.study_folder import Store

LIBRARY = ctypes.CDLL(None)
KINDS = {"open": (1, errno.EIO), "write": (2, errno.ENOSPC), "fsync": (3, errno.EIO), "rename": (4, errno.ENOSPC)}
NONE = -1  # the number of no operation
RUN = ["--methods=vanilla", "--classes-per-task=5", "--steps=4", "--batch=8", "--json"]


EARLIER = "<!doctype html> an earlier page"


class Attempt(NamedTuple):
    code: int
    said: str
    operations: int


def attempt(work: Callable[[], object], folder: Path, kind: str = "", number: int = 0) -> Attempt:
    """Do it in a fork, with the `number`-th operation of a kind failing."""
    log, tally = folder.with_suffix(".log"), folder.with_suffix(".count")
    log.unlink(missing_ok=True)

    def counted() -> None:
        try:
            if kind:
                LIBRARY.faults_arm(KINDS[kind][0], ctypes.c_long(number), KINDS[kind][1], str(folder).encode())
            with cli._friendly_errors():  # what the library raises, as its callers see it
                work()
        finally:
            operations = LIBRARY.faults_counted()
            LIBRARY.faults_arm(0, ctypes.c_long(0), 0, b"/")
            tally.write_text(str(operations))

    child = Child(counted, log)
    return Attempt(child.result(), child.said(), int(tally.read_text()))


def rows_in(folder: Path) -> bytes:
    path = folder / "study" / "runs.jsonl"
    return path.read_bytes() if path.exists() else b""


class Studies:
    """A study of two runs is made where one of them is finished already."""

    def __init__(self, folder: Path, *how: str) -> None:
        self.how = how
        self.prepare(folder)
        assert attempt(self.work(folder), folder).code == 0
        self.expected = rows_in(folder)

    def work(self, folder: Path) -> Callable[[], None]:
        return command("run", *RUN, "--seeds=2", "--checkpoint-every=2", "--out", str(folder / "study"), *self.how)

    def prepare(self, folder: Path) -> None:
        if not self.how:
            done = attempt(command("run", *RUN, "--seeds=1", "--out", str(folder / "study"), *self.how), folder)
            assert done.code == 0, done.said

    def fault(self, folder: Path, before: dict[str, bytes], done: Attempt) -> str:
        """What is wrong after an attempt, if anything."""
        known = {row.hash for row in Store(folder / "study").rows()}
        had = before.get("study/runs.jsonl", b"").count(b"\n")
        if len(known) < had:
            return "a row is lost"
        again = attempt(self.work(folder), folder)
        if again.code != 0:
            return f"the same command does not go on: {again.said}"
        return "" if rows_in(folder) == self.expected else "other rows"


class Reports:
    """A report is written over an earlier one."""

    def __init__(self, folder: Path) -> None:
        self.prepare(folder)

    def prepare(self, folder: Path) -> None:
        done = attempt(command("run", *RUN, "--seeds=1", "--out", str(folder / "study")), folder)
        assert done.code == 0, done.said
        (folder / "study" / "report.html").write_text(EARLIER)

    def work(self, folder: Path) -> Callable[[], None]:
        return command("report", str(folder / "study"))

    def fault(self, folder: Path, before: dict[str, bytes], done: Attempt) -> str:
        if contents(folder)["study/runs.jsonl"] != before["study/runs.jsonl"]:
            return "rows have changed"
        page = (folder / "study" / "report.html").read_text().rstrip()
        return "" if page.endswith("</html>") or page == EARLIER else "half a page"


class Fits:
    """A model is continued: it is the old one or the new one."""

    def __init__(self, folder: Path) -> None:
        self.prepare(folder)
        assert attempt(self.work(folder), folder).code == 0
        self.new = examples_of(folder / "clf.safetensors")

    def prepare(self, folder: Path) -> None:
        rows = [f"{i % 7},{i % 5},{'abc'[i % 3]}" for i in range(60)]
        (folder / "table.csv").write_text("\n".join(["x,y,label", *rows]) + "\n")
        model = str(folder / "clf.safetensors")
        done = attempt(command("fit", str(folder / "table.csv"), "--label=label", "--out", model), folder)
        assert done.code == 0, done.said

    def work(self, folder: Path) -> Callable[[], None]:
        return command("fit", str(folder / "table.csv"), "--continue", str(folder / "clf.safetensors"))

    def fault(self, folder: Path, before: dict[str, bytes], done: Attempt) -> str:
        path = folder / "clf.safetensors"
        if path.read_bytes() == before["clf.safetensors"]:
            return "it says that it was written" if done.code == 0 else ""
        return "" if examples_of(path) == self.new else "neither the old model nor the new one"


class Saves:
    """A classifier with a network is saved over another file."""

    def __init__(self, folder: Path) -> None:
        x = np.eye(4, dtype=np.float32).repeat(4, 0)
        self.learned = IncrementalClassifier(method="rwalk", memory=1, epochs=1, random_state=0)
        self.learned.fit(x, np.arange(16) // 4)
        self.x = x
        self.prepare(folder)

    def prepare(self, folder: Path) -> None:
        (folder / "model.safetensors").write_bytes(b"the old file")

    def work(self, folder: Path) -> Callable[[], None]:
        return lambda: self.learned.save(folder / "model.safetensors")

    def fault(self, folder: Path, before: dict[str, bytes], done: Attempt) -> str:
        path = folder / "model.safetensors"
        if path.read_bytes() == b"the old file":
            if done.code == 0:
                return "it says that it was written"
        elif not np.array_equal(
            IncrementalClassifier.load(path).predict_proba(self.x), self.learned.predict_proba(self.x)
        ):
            return "another model"
        return "" if [path.name for path in folder.iterdir()] == ["model.safetensors"] else "a file is left behind"


def examples_of(model: Path) -> list[float]:
    """What tells a model that has learned a table twice from one that has learned it once."""
    with sealed_open(model, framework="pt") as file:
        return [float(file.get_tensor(name).double().sum()) for name in sorted(file.keys())]


COMMANDS: dict[str, Callable[[Path], Any]] = {
    "run": Studies,
    "join": lambda folder: Studies(folder, "--join"),
    "report": Reports,
    "fit": Fits,
    "save": Saves,
}


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def emptied(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def main(base: Path, name: str, step: int) -> None:
    os.environ |= {"RWALK_CACHE": str(base / "cache" / "x"), "RWALK_LEASE": "0.5"}
    with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):
        warm = emptied(base / "warm") / "study"  # what it takes to begin
        command("run", *RUN, "--seeds=1", "--out", warm)()
    subject = COMMANDS[name](emptied(base / "first"))
    template = emptied(base / "template")
    subject.prepare(template)
    before = contents(template)
    for kind in KINDS:
        tried, faults, begun, folder = 0, [], time.monotonic(), base / "attempt"
        os.environ["RWALK_CACHE"] = str(folder / "cache")
        operations = 0
        for number in chain([NONE], count(1, step)):
            if operations and number > operations:
                break
            shutil.rmtree(folder, ignore_errors=True)
            shutil.copytree(template, folder)
            done = attempt(subject.work(folder), folder, kind, number)
            if number == NONE:  # to count them
                operations = done.operations
                assert operations, f"nothing of this kind was done: {done.said}"
                continue
            tried += 1
            lines = [line for line in done.said.splitlines() if line.strip()]
            wrong = ""
            if done.code not in (0, 1, 2) or any("Traceback" in line for line in lines):
                wrong = f"exit code {done.code}: {' | '.join(lines[-3:])}"
            elif done.code and not (lines and all(line.startswith("rwalk: ") for line in lines)):
                wrong = f"{len(lines)} lines: {' | '.join(lines)}"  # each of ours: remarks, and what went wrong
            wrong = wrong or subject.fault(folder, before, done)
            faults += [f"{kind} {number}: {wrong}"] if wrong else []
        seconds = round(time.monotonic() - begun)
        print(json.dumps({"kind": kind, "operations": operations, "tried": tried, "faults": faults, "s": seconds}))
        sys.stdout.flush()


if __name__ == "__main__":
    assert html_page and study  # everything is imported before the first fork
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
