"""The executor of a shared folder: processes on any machines that see it train the runs of one study together.

They exchange outcomes, one small file each, named after everything they depend on. Every process uses those of the
others like its own, and so arrives at the same rows, which any of them may write. Claims decide who trains what; a
run that is trained twice wastes time, and does no harm.

A thousand processes may share a hundred thousand runs. So what others have done is known by the names of files
alone, and of a large study one process gathers all outcomes into one file, which the others read.
"""

from __future__ import annotations

import math
import os
import secrets
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any, ClassVar

from rwalk.engine.progress import Progress
from rwalk.errors import InputError
from rwalk.files import checked_json, with_checksum, write_atomically
from rwalk.metrics import HEADS
from rwalk.studies.claims import CLAIMS, Claims
from rwalk.studies.executors.base import Context, Executor, Job, Outcomes, Report, one_thread, train
from rwalk.studies.rows import fault_of
from rwalk.studies.specs import content_hash
from rwalk.studies.workers import Crew, Stop, Work

OUTCOMES, GATHERED = "outcomes", "gathered"  # folders in the study's, beside that of claims
RUN_KEYS, REFERENCE_KEYS = {"accuracy", "made", "stopped"}, {*HEADS, "stopped"}  # of an outcome
MANY = 1000  # jobs; the outcomes of fewer are read one by one, as they come
LISTED = 100  # names of a folder that are listed about as quickly as one file is asked for
WATCHED = 10  # claims that a process without work looks after, in case their owners are gone
PAUSE = 0.5  # seconds between looks at what the others are doing, at least
SHARE = 0.1  # of its time that a process without work spends on such looks, at most


class Join(Executor):
    """One run (on a device: one fleet) at a time, in this process; start as many processes as there are cores."""

    name: ClassVar[str] = "join"
    summary: ClassVar[str] = "all processes that join a study's folder, on one machine or many (--join)"

    def __init__(self, context: Context, workers: int, stop: Stop) -> None:
        super().__init__(context, workers, stop)
        if context.checkpoints is None:
            raise InputError("only a study with a folder can be joined: give --out")
        self._folder = context.checkpoints.parent
        self._claims = Claims(self._folder / CLAIMS)

    @classmethod
    def crew(cls, work: Work, shared: Any, workers: int, device: str = "cpu", code: Sequence[str] = ()) -> Crew:
        raise InputError("only studies can be joined: give --executor local or ray")

    def run(self, jobs: Sequence[Job], report: Report) -> Iterator[Outcomes]:
        keyed = {self.context.identity(job): job for job in jobs}
        waiting, unread = self._from_elsewhere(keyed), dict[str, Job]()  # the latter are finished by others
        a_look, lost = 0.0, 0.0  # seconds
        while waiting or unread:
            begun = time.monotonic()
            if lost >= a_look:  # as much time as a look takes has gone into jobs that others had done
                unread |= {key: waiting.pop(key) for key in self._finished(waiting, of=len(keyed))}
                waiting = self._from_elsewhere(waiting)
                a_look, lost = time.monotonic() - begun, 0.0
            if unread and (len(keyed) <= MANY or (not waiting and self._gathered(keyed))):
                yield from self._read(keyed, unread)
                waiting, unread = waiting | unread, {}  # what cannot be read is trained again
            tried = time.monotonic()
            if (done := self._work(waiting, report)) is not None:
                key, outcomes, ours = done
                lost += 0.0 if ours else time.monotonic() - tried
                yield waiting.pop(key), outcomes
            elif waiting or unread:
                lost = math.inf  # there is nothing to do but to look
                self._pause(max(PAUSE, (time.monotonic() - begun) / SHARE))

    def _pause(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            if self.stop():
                raise KeyboardInterrupt
            time.sleep(min(PAUSE, left))

    def _outcome(self, key: str) -> Path:
        return self._folder / OUTCOMES / f"{key}.json"

    def _finished(self, waiting: dict[str, Job], of: int) -> list[str]:
        """What others have finished: all that is there is listed, unless it is quicker to ask for what waits."""
        held = self._claims.held()
        candidates = [key for key in waiting if key not in held]
        if len(candidates) * LISTED < of:
            return [key for key in candidates if self._outcome(key).exists()]
        with suppress(FileNotFoundError):
            names = os.listdir(self._folder / OUTCOMES)
            return [key for name in names if (key := name.removesuffix(".json")) in waiting]
        return []

    def _work(self, waiting: dict[str, Job], report: Report) -> tuple[str, list[dict[str, Any]], bool] | None:
        """Train the first job that nobody has claimed, unless another just has; None if all are claimed."""
        held = self._claims.held() if waiting else {}
        watched = islice((key for key in waiting if key in held), WATCHED)
        for key in chain((key for key in waiting if key not in held), watched):
            job, progress, path = waiting[key], dict[str, Any](), self._outcome(key)
            with self._writing():
                claim = self._claims.take(key, partial(_about, job, progress), held)
            if claim is None:
                continue
            with claim:
                outcomes = read_outcomes(path, job)  # another may have finished it before our claim
                ours = outcomes is None
                if outcomes is None:
                    with one_thread(self.context.device):
                        outcomes = train(self.context, job, partial(_noted, progress, report, job), self.stop)
                    runs = [run.hash() for run in job]
                    with self._writing():
                        write_atomically(path, with_checksum({"runs": runs, "outcomes": outcomes}))
            return key, outcomes, ours
        return None

    def _from_elsewhere(self, jobs: dict[str, Job]) -> dict[str, Job]:
        """Every process begins somewhere else, so that they seldom reach for the same job."""
        items = list(jobs.items())
        first = secrets.randbelow(max(1, len(items)))
        return dict(items[first:] + items[:first])

    # ── the outcomes of others ────────────────────────────────────────────────────────────────────────────────

    def _read(self, keyed: dict[str, Job], unread: dict[str, Job]) -> Iterator[Outcomes]:
        """From the one file, if there is one, else one by one; what is no outcome stays unread."""
        if len(keyed) > MANY:
            yield from self._from_one_file(self._all_of(keyed), unread)
        for key, job in list(unread.items()):
            if (outcomes := read_outcomes(self._outcome(key), job)) is not None:
                del unread[key]
                yield job, outcomes

    def _from_one_file(self, path: Path, unread: dict[str, Job]) -> Iterator[Outcomes]:
        with suppress(OSError), open(path, "rb") as lines:
            for line in lines:
                name, _, content = line.partition(b" ")
                job = unread.get(key := name.decode(errors="replace"))
                if job is not None and (outcomes := _checked(content, job)) is not None:
                    del unread[key]
                    yield job, outcomes

    def _all_of(self, keyed: dict[str, Job]) -> Path:
        return self._folder / GATHERED / content_hash(sorted(keyed))

    def _gathered(self, keyed: dict[str, Job]) -> bool:
        """Whether the outcomes of all are in one file; whoever comes first writes it."""
        path = self._all_of(keyed)
        if path.exists():
            return True
        with self._writing():
            claim = self._claims.take(path.name)
            if claim is None:
                return False
            with claim:
                if not path.exists():
                    write_atomically(path, b"".join(self._lines(keyed)))
            return True

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise InputError(
                f"cannot write to {self._folder}: {error.strerror or error}; outcomes of finished runs are kept: "
                "make room, and the same command resumes from there"
            ) from error

    def _lines(self, keys: Iterable[str]) -> Iterator[bytes]:
        for key in keys:
            if self.stop():
                raise KeyboardInterrupt
            with suppress(OSError):
                yield b"%s %s\n" % (key.encode(), self._outcome(key).read_bytes().replace(b"\n", b" "))


def read_outcomes(path: Path, job: Job) -> list[dict[str, Any]] | None:
    """The outcomes of a job; None if there are none yet, or if the file is not what this executor writes."""
    try:
        return _checked(path.read_bytes(), job)
    except OSError:
        return None


def _checked(content: bytes, job: Job) -> list[dict[str, Any]] | None:
    try:
        record, _ = checked_json(content)
    except ValueError:
        return None
    if not isinstance(record, dict) or record.keys() != {"runs", "outcomes"}:
        return None
    outcomes = record["outcomes"]
    if (
        record["runs"] != [run.hash() for run in job]
        or not isinstance(outcomes, list)
        or len(outcomes) != len(job)
    ):
        return None
    is_sound = _is_reference if job[0].reference is not None else _is_run
    return outcomes if all(isinstance(each, dict) and is_sound(each) for each in outcomes) else None


def _is_run(outcome: dict[str, Any]) -> bool:
    return outcome.keys() >= RUN_KEYS and fault_of(outcome) is None


def _is_reference(outcome: dict[str, Any]) -> bool:
    """Whether it has an accuracy by each head; one that diverged has none."""
    if outcome.keys() - {"execution"} != REFERENCE_KEYS or not isinstance(outcome.get("execution", ""), str):
        return False
    if isinstance(outcome["stopped"], str):
        return True
    shares = all(type(outcome[head]) in (int, float) and 0 <= outcome[head] <= 1 for head in HEADS)
    return outcome["stopped"] is None and shares


def _noted(progress: dict[str, Any], report: Report, job: Job, news: Any) -> None:
    if isinstance(news, Progress):
        progress.update(task=news.task, tasks=news.tasks, step=news.step, steps=news.steps)
    report(job, news)


def _about(job: Job, progress: dict[str, Any]) -> dict[str, Any]:
    """What `rwalk status` shows of a run that is being trained."""
    return {"runs": [run.hash() for run in job], "reference": job[0].reference, **progress}
