"""Jobs in worker processes, one thread each: how a study uses the cores of a CPU.

Wide vectors fall out of a core's cache, so on a CPU every run is trained alone (see docs/design.md).
"""

from __future__ import annotations

import os
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from types import FrameType
from typing import Any, Protocol

import torch.multiprocessing as multiprocessing

from rwalk.errors import InputError
from rwalk.threads import few_threads

GRACE = 30.0  # seconds a worker has to save and go
DIED = "a worker process died (killed, or out of memory): try fewer --workers"
_environment = threading.Lock()  # held while the variables of this process are those of its workers
Stop = Callable[[], bool]
Report = Callable[[int, Any], None]  # (job number, progress)


class WorkerDied(RuntimeError):
    """A worker process ended without an answer (killed, out of memory)."""


class Work(Protocol):
    """Does a job. It checks `stop` now and then; where that is true, it saves and raises KeyboardInterrupt."""

    def __call__(self, shared: Any, job: Any, report: Callable[[Any], None], stop: Stop, /) -> Any: ...


class Interrupts:
    """SIGINT and SIGTERM as a condition: the first signal sets it, a second one ends the process at once.

    Training checks it after every step. Where it is set, the caller saves its work and raises KeyboardInterrupt.
    A worker names its own signal. It may come twice, from the parent and from a signal to the whole process group,
    so that a second one changes nothing; the parent ends a worker that takes too long.
    """

    def __init__(self, *of_worker: signal.Signals) -> None:
        self.caught: int | None = None
        self._signals = of_worker or (signal.SIGINT, signal.SIGTERM)
        self._is_worker = bool(of_worker)
        self._before: dict[int, Any] = {}

    def __call__(self) -> bool:
        return self.caught is not None

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():  # no other thread may handle signals
            self._before = {number: signal.signal(number, self._note) for number in self._signals}
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.caught is not None and not self._is_worker:
            raise KeyboardInterrupt
        self.caught = number


class Pool:
    """Worker processes, each of which does one job after another.

    Every worker gets one of the `shares` (tensors through shared memory). An exception in a job ends the pool;
    leaving the pool, for whatever reason, lets all workers save and exit.
    """

    def __init__(self, work: Work, shares: Sequence[Any]) -> None:
        context = multiprocessing.get_context("spawn")
        self.workers: list[Connection] = []
        self.processes = []
        self._theirs: list[Connection] = []
        for share in shares:
            ours, theirs = context.Pipe()
            self.workers.append(ours)
            self._theirs.append(theirs)
            args = (work, share, theirs, os.getpid())
            self.processes.append(context.Process(target=_serve, args=args, daemon=True))

    def __enter__(self) -> Pool:
        with _one_thread_each(), _deaf_to_interrupts():
            for process in self.processes:
                process.start()
        for theirs in self._theirs:  # a worker's own is the only one then, and closes when it dies
            theirs.close()
        return self

    def __exit__(self, *error: object) -> None:
        try:
            for process in self.processes:
                process.terminate()
            for worker in self.workers:
                worker.close()
            deadline = time.monotonic() + GRACE
            for process in self.processes:
                process.join(max(0.0, deadline - time.monotonic()))
        finally:  # also when the user has no patience for that
            for process in self.processes:
                process.kill()
                process.join()

    def run(self, jobs: Sequence[Any], report: Report, stop: Stop) -> Iterator[tuple[int, Any]]:
        """(job number, result) as they finish."""
        waiting = iter(enumerate(jobs))
        for idle in self.workers:
            _give(idle, next(waiting, None))
        left = len(jobs)
        while left:
            if stop():
                raise KeyboardInterrupt
            for worker in wait(self.workers, timeout=0.2):
                kind, number, content = _heard(worker)
                if kind == "progress":
                    report(number, content)
                elif kind == "done":
                    left -= 1
                    _give(worker, next(waiting, None))
                    yield number, content
                elif kind == "refused":
                    raise InputError(content)
                else:
                    raise RuntimeError(content)


def _give(worker: Any, job: tuple[int, Any] | None) -> None:
    if job is None:
        return
    try:
        worker.send(job)
    except OSError:
        raise WorkerDied(DIED) from None


def _heard(worker: Any) -> tuple[str, int, Any]:
    try:
        return worker.recv()  # type: ignore[no-any-return]
    except (EOFError, OSError):
        raise WorkerDied(DIED) from None


@few_threads(1)
def _serve(work: Work, shared: Any, pool: Connection, parent: int) -> None:
    def stopping() -> bool:
        if os.getppid() != parent:  # its folder may be another's by now: write nothing
            os._exit(1)
        return interrupts()

    def tell(kind: str, number: int, content: Any) -> None:
        with suppress(OSError):  # the pool was left
            pool.send((kind, number, content))

    with Interrupts(signal.SIGTERM) as interrupts:
        while not interrupts():
            try:
                number, job = pool.recv()
            except (EOFError, OSError):  # the pool was left, or its process is gone
                return
            try:
                tell("done", number, work(shared, job, partial(tell, "progress", number), stopping))
            except KeyboardInterrupt:
                return
            except InputError as error:
                tell("refused", number, str(error))
            except Exception:
                tell("failed", number, traceback.format_exc())


@contextmanager
def _deaf_to_interrupts() -> Iterator[None]:
    """Processes begun here ignore Ctrl-C, which a terminal sends to all: the parent handles it."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    resource_tracker.ensure_running()  # or the first process would start it, which lets SIGINT through again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _one_thread_each() -> Iterator[None]:
    """Libraries read their thread counts from the environment when a process begins."""
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    with _environment:
        before = {name: os.environ.get(name) for name in names}
        os.environ.update(dict.fromkeys(names, "1"))
        try:
            yield
        finally:
            for name, value in before.items():
                os.environ.pop(name, None)
                if value is not None:
                    os.environ[name] = value
