"""The worker's side of the Ray executor: a job, its news, its answer, and the parcel of data and code."""

from __future__ import annotations

import atexit
import io
import pickle
import secrets
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

import rwalk
from rwalk.errors import InputError
from rwalk.studies import user_code
from rwalk.studies.worker_pool import Interrupts, Work

LETTERS = 1.0  # seconds between letters: each is a task for the cluster, and short runs need none
MOST_CODE = 100 << 20  # bytes; a larger package has data in it


class News(NamedTuple):
    """The news of one attempt at a job, from its `first` report on; if it dies, another attempt follows."""

    round: int
    job: int
    attempt: str
    first: int
    items: list[Any]


class Answer(NamedTuple):
    """The end of a job (done, stopped, refused, failed), its result or the reason, and all its news."""

    kind: str
    content: Any
    news: News


class Post:
    """A task's way to report: news are sent every second, and once more with the result.

    Sending is not awaited: while a task waits, Ray gives its core to another, and starts a process for that.
    """

    def __init__(self, mailbox: Any, round: int, job: int) -> None:
        self._mailbox, self._round, self._job = mailbox, round, job
        self._attempt, self._items = "", list[Any]()
        self._sent, self._when = 0, 0.0

    def begin(self) -> None:
        """A worker has begun the task, perhaps not the first."""
        self._attempt, self._when = secrets.token_hex(8), time.monotonic()

    def __call__(self, item: Any) -> None:
        self._items.append(item)
        if time.monotonic() > self._when + LETTERS:
            self._mailbox.post.remote(pickle.dumps(self.news(self._sent)))
            self._sent, self._when = len(self._items), time.monotonic()

    def news(self, first: int = 0) -> News:
        return News(self._round, self._job, self._attempt, first, self._items[first:])


def perform(asked: str, work: Work, shared: list[Any], job: Any, post: Post) -> Answer:
    """One job, in a worker process of Ray's."""
    post.begin()
    if asked != (here := rwalk.__version__):
        reason = f"a node of the Ray cluster has rwalk {here}, not {asked}: install the same everywhere"
        return Answer("refused", reason, post.news())
    kind, content = _done(work, shared[0], job, post)
    return Answer(kind, content, post.news())


def _done(work: Work, shared: Any, job: Any, report: Callable[[Any], None]) -> tuple[str, Any]:
    try:
        with Interrupts(signal.SIGINT) as interrupts:  # this is how ray.cancel reaches a running task
            return "done", work(_opened(shared), job, report, interrupts)
    except KeyboardInterrupt:
        return "stopped", None
    except InputError as error:
        return "refused", str(error)
    except Exception:
        return "failed", traceback.format_exc()


@lru_cache(maxsize=1)  # a worker process does many tasks of one study
def _opened(shared: Any) -> Any:
    import ray

    return unpacked(ray.get(shared))


# ── parcels ─────────────────────────────────────────────────────────────────────────────────────────────────────


class Parcel(NamedTuple):
    """A value as bytes, its tensors as arrays, and the files of the code it needs, by their relative paths."""

    code: dict[str, bytes]
    content: bytes
    arrays: list[NDArray[np.uint8]]


def packed(value: Any, code: Sequence[str] = ()) -> Parcel:
    """A value and the user's own code, named `package.module:name`, that will be imported where it arrives."""
    buffers: list[pickle.PickleBuffer] = []
    file = io.BytesIO()
    _Pickler(file, protocol=5, buffer_callback=buffers.append).dump(value)
    arrays = [np.frombuffer(buffer.raw(), np.uint8) for buffer in buffers]
    return Parcel(_files_of(code), file.getvalue(), arrays)


def unpacked(parcel: Parcel) -> Any:
    if parcel.code:
        _make_importable(parcel.code)
    return pickle.loads(parcel.content, buffers=parcel.arrays)


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
