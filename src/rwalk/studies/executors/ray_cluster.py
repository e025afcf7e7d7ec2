"""The executor of a Ray cluster: every run, or fleet on a GPU, is one plain task, wherever there is room for it.

Tasks return their outcomes to the one process that writes the study. Data and the user's own code are put into
Ray's object store once. When a worker or a node is lost, Ray gives its task to another. That one resumes from the
last checkpoint if it can read the study's folder; from other nodes checkpoints travel when a study stops.
"""

from __future__ import annotations

import logging
import os
import pickle
import secrets
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import torch

import rwalk
from rwalk.atomic_files import write_atomically
from rwalk.errors import InputError, first_line
from rwalk.studies.executors.executor import Context, Executor, Job, train_fleet
from rwalk.studies.executors.ray_worker import News, Post, packed, perform
from rwalk.studies.specs import RunSpec
from rwalk.studies.worker_pool import GRACE, Stop, Work, WorkerDied
from rwalk.threads import available_cores

LIVES = 20  # Workers that a task may lose before it counts as the cause.
PAUSE = 0.5  # Seconds to wait for a task to finish, at most.
AHEAD = 2  # Tasks submitted per core, so that no core waits for the next.

logger = logging.getLogger(__name__)


class SavedElsewhere(NamedTuple):
    """The checkpoints of a stopped run, from a node that cannot read the study's folder."""

    files: dict[str, bytes]


class Ray(Executor):
    """On a CPU one task of one core per run, on CUDA one task of one core and one GPU per fleet."""

    name: ClassVar[str] = "ray"
    summary: ClassVar[str] = (
        "a Ray cluster (RAY_ADDRESS, or `ray start`), else the cores of this machine through Ray"
    )

    def __init__(self, shared: Any, workers: int, stop: Stop) -> None:
        self._device, self._folder = "cpu", None
        self._code: tuple[str, ...] = ()
        if isinstance(shared, Context):
            # Ray moves the working directory, and gives each task a GPU of its own, which is that process's first.
            self._device, self._code = torch.device(shared.device).type, shared.code
            self._folder = shared.checkpoints.absolute() if shared.checkpoints else None
            shared = shared._replace(device=self._device, checkpoints=self._folder)
        super().__init__(shared, workers, stop)
        self._mark = f".seen-{secrets.token_hex(8)}"  # in the study's folder: a node that finds it has the folder
        self._ray: Any = None  # once it is connected
        self._needs = {"num_cpus": 1, "num_gpus": 0 if self._device == "cpu" else 1}
        self._pending: dict[Any, int] = {}
        self._report: Callable[[int, Any], None] = lambda number, news: None
        self._round = 0  # jobs are numbered anew in every one
        self._heard: dict[int, tuple[str, int]] = {}  # by job: the attempt whose news were handed on, and how many
        self._began_ray = False

    @classmethod
    def workers_for(cls, jobs: int, device: str, asked: int | None) -> int:
        return asked or 0  # as many as the cluster has room for

    @classmethod
    def check_device(cls, device: str) -> None:
        """The devices are those of other machines."""
        try:
            torch.device(device)
        except RuntimeError as error:
            raise InputError(f"there is no device {device!r} ({first_line(error)}): give cpu or cuda") from None

    def jobs_of(self, specs: Sequence[RunSpec]) -> list[Job]:
        if specs and self.in_fleets() and not self.workers:
            self._connect()
            self.workers = self.places()
        return super().jobs_of(specs)

    def sent(self, job: Job) -> tuple[Job, dict[str, bytes]]:
        """A job, with the checkpoints from which it continues."""
        folder = self.context.folder(job)
        return job, _files_in(folder) if folder else {}

    def map(
        self, work: Work, jobs: Sequence[Any], report: Callable[[int, Any], None]
    ) -> Iterator[tuple[int, Any]]:
        self._connect()

        def note(number: int, news: Any) -> None:
            if isinstance(news, SavedElsewhere):
                folder = self.context.folder(jobs[number][0])
                assert folder is not None
                _write(folder, news.files)
            else:
                report(number, news)

        self._report, waiting = note, list(enumerate(jobs))[::-1]
        self._round, self._heard = self._round + 1, {}
        room, looked = 0, float("-inf")
        while waiting or self._pending:
            if self.stop():
                raise KeyboardInterrupt
            if time.monotonic() > looked + 1.0:  # nodes come and go
                room, looked = self.workers or AHEAD * self.places(), time.monotonic()
            while waiting and len(self._pending) < room:
                number, job = waiting.pop()
                # In a list, so that Ray does not fetch and unpack the content again for every task.
                post = Post(self._mailbox, self._round, number)
                task = self._task.remote(rwalk.__version__, work, [self._content], job, post)
                self._pending[task] = number
            finished, _ = self._ray.wait(list(self._pending), num_returns=1, timeout=PAUSE)
            self._collect()
            for task in finished:
                number = self._pending.pop(task)
                yield number, self._result(task)

    def places(self) -> int:
        """How many tasks the cluster has room for at a time."""
        resources = self._ray.cluster_resources()
        return max(1, int(resources.get("GPU" if self._needs["num_gpus"] else "CPU", 1)))

    def __exit__(self, *error: object) -> None:
        if self._ray is None:
            return
        try:
            for task in self._pending:
                self._ray.cancel(task, recursive=False)  # those that run save their work and return
            if self._pending:
                ended, _ = self._ray.wait(list(self._pending), num_returns=len(self._pending), timeout=GRACE)
                self._collect()
                for task in ended:
                    with suppress(self._ray.exceptions.RayError):
                        self._hand_on(self._ray.get(task).news)
        finally:  # also when a second Ctrl-C interrupts the wait
            for task in self._pending:
                with suppress(Exception):
                    self._ray.cancel(task, force=True)
            self._pending.clear()
            if self._began_ray:
                with _signals_kept():
                    self._ray.shutdown()
            if self._folder:
                (self._folder / self._mark).unlink(missing_ok=True)

    def _connect(self) -> None:
        """Join the cluster when it is first needed, and give it the data and the user's code."""
        if self._ray is not None:
            return
        with _signals_kept():
            self._ray = _imported()
            self._began_ray = _begin(self._ray)
        if self._needs["num_gpus"] and not self._ray.cluster_resources().get("GPU"):
            logger.warning("the Ray cluster has no GPU yet: waiting for one (or give --device cpu)")
        self._task = self._ray.remote(perform).options(**self._needs, max_retries=LIVES, name="rwalk")
        content = self.shared
        if isinstance(content, Context):
            content = content, self._mark
            if self._folder:
                write_atomically(self._folder / self._mark, b"")
        self._content = self._ray.put(packed(content, self._code))
        self._mailbox = self._new_mailbox()

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
        """Report the news that are new."""
        attempt, known = self._heard.get(news.job, ("", 0))
        known = known if attempt == news.attempt else 0
        if news.round != self._round or news.first > known:
            return  # the job is done; or some were lost, and all of them come with the result
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


def _train_anywhere(
    shared: tuple[Context, str], sent: tuple[Job, dict[str, bytes]], report: Callable[[Any], None], stop: Stop
) -> Any:
    """Train a job on any machine: in the study's folder, or in a temporary one where that cannot be read."""
    (context, mark), (job, checkpoints) = shared, sent
    if context.checkpoints is None or (context.checkpoints / mark).exists():
        return train_fleet(context, job, report, stop)
    if context.keep:
        raise InputError("models can be kept only in a folder that every node can read: choose another --out")
    with tempfile.TemporaryDirectory(prefix="rwalk-") as folder:
        context = context._replace(checkpoints=Path(folder))
        own = context.folder(job)
        assert own is not None
        _write(own, checkpoints)
        try:
            return train_fleet(context, job, report, stop)
        except KeyboardInterrupt:
            report(SavedElsewhere(_files_in(own)))
            raise


Ray.work = staticmethod(_train_anywhere)


def _files_in(folder: Path) -> dict[str, bytes]:
    with suppress(FileNotFoundError):
        return {path.name: path.read_bytes() for path in folder.iterdir() if not path.name.startswith(".")}
    return {}


def _write(folder: Path, files: dict[str, bytes]) -> None:
    """Records last: a checkpoint without one does not count."""
    for name in sorted(files, key=lambda name: (name.endswith(".json"), name)):
        write_atomically(folder / name, files[name])


# ── Ray itself ────────────────────────────────────────────────────────────────────────────────────────────────


def _imported() -> Any:
    try:
        import ray
        import ray.util.scheduling_strategies
    except ImportError:
        raise InputError("Ray is not installed: pip install 'rwalk[ray]'") from None
    return ray


def _begin(ray: Any) -> bool:
    """Join the cluster that is there, or begin one on this machine; whether it is for us to leave it."""
    if ray.is_initialized():
        return False  # The user's program has joined one.
    os.environ.setdefault(
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0"
    )  # This is what Ray will do anyway; its warning is left out.
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
    """Restore the handlers of SIGINT and SIGTERM, which Ray replaces."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
