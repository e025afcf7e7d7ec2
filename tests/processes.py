"""Forked processes: they train, are stopped or killed, and what they reported is read.

A fork has torch already, which a new process takes seconds to import. Tests of a new process start one.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from little import PATIENCE
from rwalk import cli

CRASHED = 70


class Child:
    """A forked process that does something and exits. Its standard error goes to a file."""

    def __init__(self, work: Callable[[], object], log: Path) -> None:
        self.log = log
        log.touch()  # it may be killed before it writes anything
        self.status: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            os._exit(_code(work, log))

    def ended(self) -> bool:
        if self.status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.status = status if pid else None
        return self.status is not None

    def signal(self, number: signal.Signals) -> None:
        """Send a signal, unless it has ended."""
        if not self.ended():
            os.kill(self.pid, number)

    def result(self) -> int:
        """Wait for its end: the exit code, or minus the signal."""
        try:
            until(self.ended)
        except BaseException:
            self.signal(signal.SIGKILL)
            raise
        assert self.status is not None
        return os.waitstatus_to_exitcode(self.status)

    def killed(self) -> int:
        """Kill it, unless it has ended; its result."""
        self.signal(signal.SIGKILL)
        return self.result()

    def said(self) -> str:
        return self.log.read_text(errors="replace")


def _code(work: Callable[[], object], log: Path) -> int:
    """Do the work of a child; the exit code that it would have as a program."""
    try:
        gc.freeze()  # a collection would copy everything that the tests have imported
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os.dup2(os.open(log, os.O_CREAT | os.O_WRONLY | os.O_APPEND), 2)
        sys.stdout, sys.stderr = os.fdopen(1, "w", buffering=1), os.fdopen(2, "w", buffering=1)
        work()
        return 0
    except SystemExit as error:
        return int(error.code or 0)
    except KeyboardInterrupt:
        return 130
    except BaseException:
        traceback.print_exc()
        return CRASHED


def until(condition: Callable[[], object], pause: float = 0.005) -> None:
    """Wait for a condition, in vain at most for as long as a test may hang."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(pause)


def command(*words: str | Path) -> Callable[[], None]:
    """A command of `rwalk`, as the work of a child."""

    def work() -> None:
        sys.argv = ["rwalk", *map(str, words)]
        cli.main()

    return work


def processes_of(session: int) -> list[int]:
    """The living processes of a session."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == session and fields[0] != "Z":
            found.append(int(path.parent.name))
    return found
