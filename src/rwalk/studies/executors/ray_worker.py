"""What happens in a worker process of Ray's: one job, its news on the way, and its answer."""

from __future__ import annotations

import pickle
import secrets
import signal
import time
import traceback
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import rwalk
from rwalk.errors import InputError
from rwalk.studies.executors.parcels import unpacked
from rwalk.studies.interrupts import Interrupts
from rwalk.studies.workers import Work

LETTERS = 1.0  # seconds between letters: each is a task for the cluster, and short runs need none


class News(NamedTuple):
    """What an attempt at a job has reported, from its `first` report on; if it dies, another attempt follows."""

    round: int
    job: int
    attempt: str
    first: int
    items: list[Any]


class Answer(NamedTuple):
    """What became of a job (done, stopped, refused, failed), its result or why there is none, and all its news."""

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
