"""The executor of a Ray cluster: every run, or fleet on a GPU, is one plain task, wherever there is room for it.

Tasks return their outcomes to the one process that writes the study. Data and the user's own code are put into
Ray's object store once. When a worker or a node is lost, Ray gives its task to another, which resumes from the
last checkpoint if it sees the study's folder; from a node that does not, checkpoints travel when a study stops.
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
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import torch

from rwalk.errors import InputError, first_line
from rwalk.files import write_atomically
from rwalk.studies.executors.base import Context, Executor, Job, Outcomes, Report, attempt
from rwalk.studies.executors.parcels import packed, unpacked
from rwalk.studies.interrupts import Interrupts
from rwalk.studies.workers import GRACE, Crew, Stop, Work, WorkerDied
from rwalk.threads import available_cores

LIVES = 20  # workers that a task may lose before it is taken to be the cause
AHEAD = 2  # tasks submitted per core, so that none waits for the next
PAUSE = 0.2  # seconds between looks at news and at `stop`

logger = logging.getLogger(__name__)


class Saved(NamedTuple):
    """The checkpoints of a run that was told to stop, from a node that does not see the study's folder."""

    files: dict[str, bytes]


class Ray(Executor):
    """On a CPU one core per run, on CUDA one GPU per fleet."""

    name: ClassVar[str] = "ray"
    summary: ClassVar[str] = (
        "a Ray cluster (RAY_ADDRESS, or `ray start`), else the cores of this machine through Ray"
    )

    def __init__(self, context: Context, workers: int, stop: Stop) -> None:
        # Ray moves the working directory, and gives each task a GPU of its own, which is that process's first.
        folder = context.checkpoints.absolute() if context.checkpoints else None
        super().__init__(
            context._replace(device=torch.device(context.device).type, checkpoints=folder), workers, stop
        )
        self._mark = f".seen-{secrets.token_hex(8)}"

    @classmethod
    def crew(cls, work: Work, shared: Any, workers: int, device: str = "cpu", code: Sequence[str] = ()) -> Crew:
        return Tasks(work, shared, workers, device, code)

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

    def shared(self) -> tuple[Context, str]:
        """The context, and a mark in the study's folder, by which a node knows that it sees the folder."""
        if self.context.checkpoints:
            write_atomically(self.context.checkpoints / self._mark, b"")
        return self.context, self._mark

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        if self.context.checkpoints:
            (self.context.checkpoints / self._mark).unlink(missing_ok=True)

    def jobs_of(self, specs: Sequence[Any]) -> list[Job]:
        if specs and self.in_fleets() and not self.workers:
            crew = self.hired()
            assert isinstance(crew, Tasks)
            self.workers = crew.places()
        return super().jobs_of(specs)

    def sent(self, job: Job) -> tuple[Job, dict[str, bytes]]:
        """A job, with the checkpoints that it goes on from."""
        folder = self.context.folder(job)
        return job, _files_in(folder) if folder else {}

    def run(self, jobs: Sequence[Job], report: Report) -> Iterator[Outcomes]:
        def note(job: Job, news: Any) -> None:
            if isinstance(news, Saved):
                folder = self.context.folder(job)
                assert folder is not None
                _write(folder, news.files)
            else:
                report(job, news)

        return super().run(jobs, note)


def _train_anywhere(
    shared: tuple[Context, str], sent: tuple[Job, dict[str, bytes]], report: Callable[[Any], None], stop: Stop
) -> Any:
    """Train a job on whatever machine this is, in the study's folder if that can be seen from here."""
    (context, mark), (job, checkpoints) = shared, sent
    if context.checkpoints is None or (context.checkpoints / mark).exists():
        return attempt(context, job, report, stop)
    if context.keep:
        raise InputError("models can be kept only in a folder that every node sees: choose another --out")
    with tempfile.TemporaryDirectory(prefix="rwalk-") as folder:
        context = context._replace(checkpoints=Path(folder))
        own = context.folder(job)
        assert own is not None
        _write(own, checkpoints)
        try:
            return attempt(context, job, report, stop)
        except KeyboardInterrupt:
            report(Saved(_files_in(own)))
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


# ── a crew of tasks ───────────────────────────────────────────────────────────────────────────────────────────


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
        self._task = self._ray.remote(_task).options(**self._needs, max_retries=LIVES, name="rwalk")
        self._shared = self._ray.put(packed(self._content, self._code))
        self._mailbox = self._new_mailbox()

    def __exit__(self, *error: object) -> None:
        try:
            for task in self._pending:
                self._ray.cancel(task, recursive=False)  # those that run save their work and return
            if self._pending:
                self._ray.wait(list(self._pending), num_returns=len(self._pending), timeout=GRACE)
                self._deliver()
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
            self._deliver()
            for task in finished:
                number = self._pending.pop(task)
                yield number, self._result(task)

    def places(self) -> int:
        """How many tasks the cluster has room for at a time."""
        resources = self._ray.cluster_resources()
        return max(1, int(resources.get("GPU" if self._needs["num_gpus"] else "CPU", 1)))

    def _submit(self, number: int, job: Any) -> Any:
        # In a list, so that Ray does not fetch and unpack the content again for every task.
        return self._task.remote(version("rwalk"), self._work, [self._shared], number, job, self._mailbox)

    def _result(self, task: Any) -> Any:
        errors = self._ray.exceptions
        try:
            kind, content = self._ray.get(task)
        except errors.RayTaskError as error:  # before our own code was reached
            raise InputError(
                f"a Ray worker could not begin ({first_line(error.cause or error)}): "
                f"install rwalk {version('rwalk')} and what your code imports on every node"
            ) from None
        except errors.RayError as error:
            raise WorkerDied(f"{LIVES + 1} Ray workers died at the same run ({first_line(error)})") from None
        if kind == "refused":
            raise InputError(content)
        if kind == "failed":
            raise RuntimeError(content)
        return content

    def _deliver(self) -> None:
        """Hand on the news that have come."""
        with suppress(self._ray.exceptions.RayError):  # a mailbox that died loses news, and no result
            for letter in self._ray.get(self._mailbox.collect.remote(), timeout=GRACE):
                self._report(*pickle.loads(letter))

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


def _task(asked: str, work: Work, shared: list[Any], number: int, job: Any, mailbox: Any) -> tuple[str, Any]:
    """One job, in a worker process of Ray's: what became of it, and its result or why there is none."""
    if asked != (here := version("rwalk")):
        return "refused", f"a node of the Ray cluster has rwalk {here}, not {asked}: install the same everywhere"
    import ray

    posted: list[Any] = []

    def report(news: Any) -> None:
        posted[:] = [mailbox.post.remote(pickle.dumps((number, news)))]

    try:
        with Interrupts(signal.SIGINT) as interrupts:  # this is how ray.cancel reaches a running task
            return "done", work(_opened(shared[0]), job, report, interrupts)
    except KeyboardInterrupt:
        return "stopped", None
    except InputError as error:
        return "refused", str(error)
    except Exception:
        return "failed", traceback.format_exc()
    finally:
        with suppress(ray.exceptions.RayError):
            ray.get(posted)  # news arrive before the result


@lru_cache(maxsize=1)  # a worker process does many tasks of one study
def _opened(shared: Any) -> Any:
    import ray

    return unpacked(ray.get(shared))


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
