"""The executor of a Ray cluster: every run, or fleet on a GPU, is one plain task, wherever there is room for it.

Tasks return their outcomes and news to the one process that writes the study. Data and the user's own code are put
into Ray's object store once. When a worker or a node is lost, Ray gives its task to another, which resumes
from the last checkpoint if it can read the study's folder.
"""

from __future__ import annotations

import atexit
import io
import logging
import os
import pickle
import secrets
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

import rwalk
from rwalk.atomic_files import write_atomically
from rwalk.errors import InputError, first_line
from rwalk.studies import user_code
from rwalk.studies.executors.executor import Context, Executor, Job, train_fleet
from rwalk.studies.specs import RunSpec
from rwalk.studies.worker_pool import GRACE, Interrupts, Report, Stop, WorkerDied
from rwalk.threads import available_cores

LIVES = 20  # Workers that a task may lose before it counts as the cause.
PAUSE = 0.5  # Seconds to wait for a task to finish, at most.
AHEAD = 2  # Tasks submitted per core, so that no core waits for the next.
MOST_CODE = 100 << 20  # Bytes; a larger package has data in it.

logger = logging.getLogger(__name__)


class JobAnswer(NamedTuple):
    """The end of a job (done, stopped, refused, failed), its result or the reason, and its news."""

    kind: str
    content: Any
    news: list[Any]


class Ray(Executor):
    """On a CPU one task of one core per run, on CUDA one task of one core and one GPU per fleet."""

    name: ClassVar[str] = "ray"
    summary: ClassVar[str] = (
        "a Ray cluster (RAY_ADDRESS, or `ray start`), else the cores of this machine through Ray"
    )

    def __init__(self, context: Context, workers: int, stop: Stop) -> None:
        # Ray moves the working directory, and gives each task a GPU of its own, which is that process's first.
        self._device = torch.device(context.device).type
        self._folder = context.checkpoints.absolute() if context.checkpoints else None
        super().__init__(context._replace(device=self._device, checkpoints=self._folder), workers, stop)
        self._mark = f".seen-{secrets.token_hex(8)}"  # in the study's folder: a node that finds it has the folder
        self._ray: Any = None  # once it is connected
        self._needs = {"num_cpus": 1, "num_gpus": 0 if self._device == "cpu" else 1}
        self._pending: dict[Any, int] = {}
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

    def map(self, jobs: Sequence[Job], report: Report) -> Iterator[tuple[int, Any]]:
        self._connect()
        waiting = list(enumerate(jobs))[::-1]
        room, looked = 0, float("-inf")
        while waiting or self._pending:
            if self.stop():
                raise KeyboardInterrupt
            if time.monotonic() > looked + 1.0:  # nodes come and go
                room, looked = self.workers or AHEAD * self.places(), time.monotonic()
            while waiting and len(self._pending) < room:
                number, job = waiting.pop()
                # In a list, so that Ray does not fetch and unpack the content again for every task.
                task = self._task.remote(rwalk.__version__, [self._content], job)
                self._pending[task] = number
            finished, _ = self._ray.wait(list(self._pending), num_returns=1, timeout=PAUSE)
            for task in finished:
                number = self._pending.pop(task)
                answer = self._answer(task)
                for news in answer.news:
                    report(number, news)
                yield number, answer.content

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
                self._ray.wait(list(self._pending), num_returns=len(self._pending), timeout=GRACE)
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
        if self._folder:
            write_atomically(self._folder / self._mark, b"")
        self._content = self._ray.put(packed((self.context, self._mark), self.context.code))

    def _answer(self, task: Any) -> JobAnswer:
        """The answer of a task that was done."""
        errors = self._ray.exceptions
        try:
            answer: JobAnswer = self._ray.get(task)
        except errors.RayTaskError as error:  # before our own code was reached
            raise InputError(
                f"a Ray worker could not begin ({first_line(error.cause or error)}): "
                f"install rwalk {rwalk.__version__} and what your code imports on every node"
            ) from None
        except errors.RayError as error:
            raise WorkerDied(f"{LIVES + 1} Ray workers died at the same run ({first_line(error)})") from None
        if answer.kind == "refused":
            raise InputError(answer.content)
        if answer.kind == "failed":
            raise RuntimeError(answer.content)
        return answer


def _train_anywhere(shared: tuple[Context, str], job: Job, report: Callable[[Any], None], stop: Stop) -> Any:
    """Train a job on any machine; where the study's folder cannot be read, without checkpoints."""
    context, mark = shared
    if context.checkpoints and not (context.checkpoints / mark).exists():
        if context.keep:
            raise InputError("models can be kept only in a folder that every node can read: choose another --out")
        context = context._replace(checkpoints=None)
    return train_fleet(context, job, report, stop)


# ── in a worker process ─────────────────────────────────────────────────────────────────────────────────────────


def perform(asked: str, shared: list[Any], job: Job) -> JobAnswer:
    """One job, in a worker process of Ray's."""
    news: list[Any] = []
    if asked != (here := rwalk.__version__):
        reason = f"a node of the Ray cluster has rwalk {here}, not {asked}: install the same everywhere"
        return JobAnswer("refused", reason, news)
    try:
        with Interrupts(signal.SIGINT) as interrupts:  # this is how ray.cancel reaches a running task
            return JobAnswer("done", _train_anywhere(_opened(shared[0]), job, news.append, interrupts), news)
    except KeyboardInterrupt:
        return JobAnswer("stopped", None, news)
    except InputError as error:
        return JobAnswer("refused", str(error), news)
    except Exception:
        return JobAnswer("failed", traceback.format_exc(), news)


@lru_cache(maxsize=1)  # a worker process does many tasks of one study
def _opened(shared: Any) -> Any:
    import ray

    return unpacked(ray.get(shared))


# ── packages ─────────────────────────────────────────────────────────────────────────────────────────────────────


class Package(NamedTuple):
    """A value as bytes, its tensors as arrays, and the files of the code it needs, by their relative paths."""

    code: dict[str, bytes]
    content: bytes
    arrays: list[NDArray[np.uint8]]


def packed(value: Any, code: Sequence[str] = ()) -> Package:
    """A value and the user's own code, named `package.module:name`, that will be imported where it arrives."""
    buffers: list[pickle.PickleBuffer] = []
    file = io.BytesIO()
    _Pickler(file, protocol=5, buffer_callback=buffers.append).dump(value)
    arrays = [np.frombuffer(buffer.raw(), np.uint8) for buffer in buffers]
    return Package(_files_of(code), file.getvalue(), arrays)


def unpacked(package: Package) -> Any:
    if package.code:
        _make_importable(package.code)
    return pickle.loads(package.content, buffers=package.arrays)


class _Pickler(pickle.Pickler):
    """Tensors by their memory, which is then not copied."""

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, Tensor) and value.device.type == "cpu" and not value.requires_grad:
            with suppress(TypeError):  # a type that NumPy lacks
                return _tensor, (value.contiguous().numpy(),)
        return NotImplemented


def _tensor(array: NDArray[Any]) -> Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the memory is read-only, and nothing writes into data
        return torch.from_numpy(array)


def _files_of(code: Sequence[str]) -> dict[str, bytes]:
    """Modules that are one file, and whole packages: they may have files beside their source."""
    files: dict[str, bytes] = {}
    for top in user_code.carried(name.partition(":")[0] for name in code):
        inside = top.rglob("*") if top.is_dir() else [top]
        for path in inside:
            if path.is_file() and "__pycache__" not in path.parts:
                if sum(map(len, files.values())) + path.stat().st_size > MOST_CODE:
                    raise InputError(f"{top} is too large to send to every machine: install it on them")
                files[str(path.relative_to(top.parent))] = path.read_bytes()
    return files


def _make_importable(files: dict[str, bytes]) -> None:
    folder = Path(tempfile.mkdtemp(prefix="rwalk-code-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    brought = {Path(name).parts[0].removesuffix(".py") for name in files}
    for name in [each for each in sys.modules if each.partition(".")[0] in brought]:
        del sys.modules[name]  # an earlier study of the same program brought an older version
    sys.path.insert(0, str(folder))


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
