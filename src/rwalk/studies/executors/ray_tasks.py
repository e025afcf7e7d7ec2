"""Jobs as tasks of a Ray cluster: which to join, how many to submit, what they report and return."""

from __future__ import annotations

import logging
import os
import pickle
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import rwalk
from rwalk.errors import InputError, first_line
from rwalk.studies.executors.parcels import packed
from rwalk.studies.executors.ray_worker import News, Post, perform
from rwalk.studies.workers import GRACE, Stop, Work, WorkerDied
from rwalk.threads import available_cores

LIVES = 20  # workers that a task may lose before it is taken to be the cause
PAUSE = 0.5  # seconds between looks at what has happened, at most
AHEAD = 2  # tasks submitted per core, so that none waits for the next

logger = logging.getLogger(__name__)


class Tasks:
    """Jobs as Ray tasks of one core each, and one GPU each where the device is one.

    at_a_time  tasks to submit at a time; 0 for as many as keep the whole cluster busy
    """

    def __init__(self, work: Work, shared: Any, at_a_time: int, device: str, code: Sequence[str]) -> None:
        self._ray = _imported()
        self._work, self._content, self._at_a_time, self._code = work, shared, at_a_time, code
        self._needs = {"num_cpus": 1, "num_gpus": 0 if device == "cpu" else 1}
        self._pending: dict[Any, int] = {}
        self._report: Callable[[int, Any], None] = lambda number, news: None
        self._round = 0  # jobs are numbered anew in every one
        self._heard: dict[int, tuple[str, int]] = {}  # by job: whose news were handed on, and how many
        self._began_ray = False

    def __enter__(self) -> Tasks:
        with _signals_kept():
            self._began_ray = _connect(self._ray)
        try:
            self._prepare()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _prepare(self) -> None:
        if self._needs["num_gpus"] and not self._ray.cluster_resources().get("GPU"):
            logger.warning("the Ray cluster has no GPU yet: waiting for one (or give --device cpu)")
        self._task = self._ray.remote(perform).options(**self._needs, max_retries=LIVES, name="rwalk")
        self._shared = self._ray.put(packed(self._content, self._code))
        self._mailbox = self._new_mailbox()

    def __exit__(self, *error: object) -> None:
        try:
            for task in self._pending:
                self._ray.cancel(task, recursive=False)  # those that run save their work and return
            if self._pending:
                ended, _ = self._ray.wait(list(self._pending), num_returns=len(self._pending), timeout=GRACE)
                self._collect()
                for task in ended:
                    with suppress(self._ray.exceptions.RayError):
                        self._hand_on(self._ray.get(task).news)
        finally:  # also when the user has no patience for that
            for task in self._pending:
                with suppress(Exception):
                    self._ray.cancel(task, force=True)
            self._pending.clear()
            if self._began_ray:
                with _signals_kept():
                    self._ray.shutdown()

    def run(
        self, jobs: Sequence[Any], report: Callable[[int, Any], None], stop: Stop
    ) -> Iterator[tuple[int, Any]]:
        """(job number, result) as they finish."""
        self._report, waiting = report, list(enumerate(jobs))[::-1]
        self._round, self._heard = self._round + 1, {}
        room, looked = 0, float("-inf")
        while waiting or self._pending:
            if stop():
                raise KeyboardInterrupt
            if time.monotonic() > looked + 1.0:  # nodes come and go
                room, looked = self._at_a_time or AHEAD * self.places(), time.monotonic()
            while waiting and len(self._pending) < room:
                number, job = waiting.pop()
                self._pending[self._submit(number, job)] = number
            finished, _ = self._ray.wait(list(self._pending), num_returns=1, timeout=PAUSE)
            self._collect()
            for task in finished:
                number = self._pending.pop(task)
                yield number, self._result(task)

    def places(self) -> int:
        """How many tasks the cluster has room for at a time."""
        resources = self._ray.cluster_resources()
        return max(1, int(resources.get("GPU" if self._needs["num_gpus"] else "CPU", 1)))

    def _submit(self, number: int, job: Any) -> Any:
        # In a list, so that Ray does not fetch and unpack the content again for every task.
        post = Post(self._mailbox, self._round, number)
        return self._task.remote(rwalk.__version__, self._work, [self._shared], job, post)

    def _result(self, task: Any) -> Any:
        errors = self._ray.exceptions
        try:
            kind, content, news = self._ray.get(task)
        except errors.RayTaskError as error:  # before our own code was reached
            raise InputError(
                f"a Ray worker could not begin ({first_line(error.cause or error)}): "
                f"install rwalk {rwalk.__version__} and what your code imports on every node"
            ) from None
        except errors.RayError as error:
            raise WorkerDied(f"{LIVES + 1} Ray workers died at the same run ({first_line(error)})") from None
        self._hand_on(news)
        if kind == "refused":
            raise InputError(content)
        if kind == "failed":
            raise RuntimeError(content)
        return content

    def _collect(self) -> None:
        """Hand on the news that are in the mailbox."""
        with suppress(self._ray.exceptions.RayError):  # a mailbox that died loses news until their task returns
            for letter in self._ray.get(self._mailbox.collect.remote(), timeout=GRACE):
                self._hand_on(pickle.loads(letter))

    def _hand_on(self, news: News) -> None:
        """Report what has not been reported yet."""
        attempt, known = self._heard.get(news.job, ("", 0))
        known = known if attempt == news.attempt else 0
        if news.round != self._round or news.first > known:
            return  # of a job that is done; or some were lost on the way, and all of them come with the result
        for each in news.items[known - news.first :]:
            self._report(news.job, each)
        self._heard[news.job] = (news.attempt, max(known, news.first + len(news.items)))

    def _new_mailbox(self) -> Any:
        """Where tasks leave their news: beside this process, so that it is lost with it only."""

        class Mailbox:  # in here, so that its process need not import rwalk
            def __init__(self) -> None:
                self.letters: list[bytes] = []

            def post(self, letter: bytes) -> None:
                self.letters.append(letter)

            def collect(self) -> list[bytes]:
                letters, self.letters = self.letters, []
                return letters

        here = self._ray.get_runtime_context().get_node_id()
        strategy = self._ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(here, soft=False)
        return self._ray.remote(num_cpus=0, max_restarts=-1, scheduling_strategy=strategy)(Mailbox).remote()


# ── Ray itself ────────────────────────────────────────────────────────────────────────────────────────────────


def _imported() -> Any:
    with _signals_kept():
        try:
            import ray
            import ray.util.scheduling_strategies
        except ImportError:
            raise InputError("Ray is not installed: pip install 'rwalk[ray]'") from None
    return ray


def _connect(ray: Any) -> bool:
    """Join the cluster that is there, or begin one on this machine; whether it is for us to leave it."""
    if ray.is_initialized():
        return False  # the user's program has
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # what Ray will do anyway, less its warning
    quiet = {"log_to_driver": False, "logging_level": logging.ERROR}
    address = os.environ.get("RAY_ADDRESS")
    try:
        _check_reachable(address or "")
        ray.init(address=address or "auto", **quiet)
    except OSError as error:
        if address:
            reason = first_line(error)
            raise InputError(
                f"there is no Ray cluster at {address} ({reason}): start one, or unset RAY_ADDRESS"
            ) from None
        ray.init(address="local", num_cpus=available_cores(), include_dashboard=False, **quiet)
    return True


def _check_reachable(address: str) -> None:
    """Ray itself would try for minutes."""
    host, _, port = address.rpartition("://")[2].rpartition(":")
    if port.isdecimal():
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()


@contextmanager
def _signals_kept() -> Iterator[None]:
    """Ray takes SIGTERM for itself; here it means what it means to every executor."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
