"""Jobs in worker processes, one thread each: how fleets use the cores of a CPU.

Wide vectors fall out of a core's cache, so on a CPU a fleet is walked run by run (see docs/design.md).
"""

from __future__ import annotations

import os
import queue
import signal
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.multiprocessing as multiprocessing

from rwalk.errors import InputError

Report = Callable[[int, Any], None]  # (job number, progress)


def available_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class WorkerDied(RuntimeError):
    """A worker process ended without an answer (killed, out of memory)."""


class Pool:
    """Worker processes that call `work(shared, job, report)` for one job after another.

    `shared` reaches every worker once (tensors through shared memory). An exception in a job ends the pool;
    leaving the pool, for whatever reason, ends all workers.
    """

    def __init__(self, work: Callable[[Any, Any, Callable[[Any], None]], Any], shared: Any, workers: int) -> None:
        context = multiprocessing.get_context("spawn")
        self.jobs = context.Queue()
        self.answers = context.Queue()
        self.processes = [
            context.Process(target=_serve, args=(work, shared, self.jobs, self.answers, os.getpid()), daemon=True)
            for _ in range(workers)
        ]

    def __enter__(self) -> Pool:
        with _one_thread_each():
            for process in self.processes:
                process.start()
        return self

    def __exit__(self, *error: object) -> None:
        for process in self.processes:
            process.terminate()
        for process in self.processes:
            process.join()

    def run(self, jobs: Sequence[Any], report: Report) -> Iterator[tuple[int, Any]]:
        """(job number, result) as they finish."""
        for item in enumerate(jobs):
            self.jobs.put(item)
        left = len(jobs)
        while left:
            try:
                kind, number, content = self.answers.get(timeout=1.0)
            except queue.Empty:
                if any(not process.is_alive() for process in self.processes):
                    raise WorkerDied(
                        "a worker process died (killed, or out of memory): try fewer --workers"
                    ) from None
                continue
            if kind == "progress":
                report(number, content)
            elif kind == "done":
                left -= 1
                yield number, content
            elif kind == "refused":
                raise InputError(content)
            else:
                raise RuntimeError(content)


def _serve(work: Any, shared: Any, jobs: Any, answers: Any, parent: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle; it ends us
    torch.set_num_threads(1)

    def report(number: int, content: Any) -> None:
        if os.getppid() != parent:  # nobody is left to listen
            os._exit(1)
        answers.put(("progress", number, content))

    while True:
        number, job = jobs.get()
        try:
            answers.put(("done", number, work(shared, job, lambda content, n=number: report(n, content))))
        except InputError as error:
            answers.put(("refused", number, str(error)))
        except Exception:
            answers.put(("failed", number, traceback.format_exc()))


@contextmanager
def _one_thread_each() -> Iterator[None]:
    """Libraries read their thread counts from the environment when a process begins."""
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    before = {name: os.environ.get(name) for name in names}
    os.environ.update(dict.fromkeys(names, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
