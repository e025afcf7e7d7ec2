"""The executor of a shared folder: processes on any machines that see it train the runs of one study together.

They exchange outcomes in small files, named after everything an outcome depends on. Every process uses the
outcomes of the others like its own, so all arrive at the same rows, and any of them may write them. Claims divide
the work. A run that is trained twice wastes time, and does no harm.

A thousand processes may share a hundred thousand runs. Finished runs are therefore found by the names of files
alone, and in a large study one process gathers all outcomes into one file, which the others read.
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

from rwalk.atomic_files import checked_json, with_checksum, write_atomically
from rwalk.engine.progress import Progress
from rwalk.errors import InputError
from rwalk.studies.executors.executor import (
    Context,
    Executor,
    Job,
    Outcomes,
    Report,
    Result,
    TooWide,
    reporter,
    train_fleet,
)
from rwalk.studies.rows import Outcome, ReferenceOutcome
from rwalk.studies.specs import RunSpec, content_hash, from_json, to_json
from rwalk.studies.study_events import Trained, Watch
from rwalk.studies.work_claims import CLAIMS, Claims
from rwalk.studies.worker_pool import Stop

OUTCOMES, GATHERED = "outcomes", "gathered"  # Folders in the study's, beside that of claims.
MANY = 1000  # Jobs; with fewer, outcomes are read one by one, as they come.
LISTED = 100  # Names of a folder that are listed about as quickly as one file is tested for.
WATCHED = 10  # Claims that a process without work watches, in case their owners are gone.
PAUSE = 0.5  # Seconds between looks at the folder, at least.
SHARE = 0.1  # The fraction of its time that a process without work spends on such looks, at most.


class Join(Executor):
    """One run (on a device: one fleet) at a time, in this process; start as many processes as there are cores."""

    name: ClassVar[str] = "join"
    summary: ClassVar[str] = "all processes that join a study's folder, on one machine or many (--join)"

    def __init__(self, shared: Context, workers: int, stop: Stop) -> None:
        super().__init__(shared, workers, stop)
        if not isinstance(shared, Context):
            raise InputError("only studies can be joined: give --executor local or ray")
        if shared.checkpoints is None:
            raise InputError("only a study with a folder can be joined: give --out")
        self._folder = shared.checkpoints.parent
        self._claims = Claims(self._folder / CLAIMS)

    def train(self, specs: Sequence[RunSpec], watch: Watch) -> Iterator[Outcomes]:
        """Train runs, and take the outcomes of those that other processes have trained."""
        report = reporter(watch)
        keyed = {self.context.identity(job): job for job in self.jobs_of(specs)}
        waiting, unread = self._from_elsewhere(keyed), dict[str, Job]()  # other processes have finished the latter
        a_look, lost = 0.0, 0.0  # seconds
        while waiting or unread:
            begun = time.monotonic()
            if lost >= a_look:  # as much time as a look takes was lost on jobs that others had done
                unread |= {key: waiting.pop(key) for key in self._finished(waiting, of=len(keyed))}
                waiting = self._from_elsewhere(waiting)
                a_look, lost = time.monotonic() - begun, 0.0
            if unread and (len(keyed) <= MANY or (not waiting and self._gathered(keyed))):
                for job, results in self._read(keyed, unread):
                    watch(Trained(job))
                    yield job, results
                waiting, unread = waiting | unread, {}  # an unreadable outcome is trained again
            tried = time.monotonic()
            if (done := self._work(waiting, report)) is not None:
                key, results, ours = done
                lost += 0.0 if ours else time.monotonic() - tried
                job = waiting.pop(key)
                watch(Trained(job))
                yield job, results
            elif waiting or unread:
                lost = math.inf  # without work, look at once
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
        """The jobs that others have finished. The folder is listed, unless testing for single files is quicker."""
        held = self._claims.held()
        candidates = [key for key in waiting if key not in held]
        if len(candidates) * LISTED < of:
            return [key for key in candidates if self._outcome(key).exists()]
        with suppress(FileNotFoundError):
            names = os.listdir(self._folder / OUTCOMES)
            return [key for name in names if (key := name.removesuffix(".json")) in waiting]
        return []

    def _work(self, waiting: dict[str, Job], report: Report) -> tuple[str, list[Result], bool] | None:
        """Train the first job without a claim, unless another process just has; None if all are claimed."""
        held = self._claims.held() if waiting else {}
        watched = islice((key for key in waiting if key in held), WATCHED)
        for key in chain((key for key in waiting if key not in held), watched):
            job, progress, path = waiting[key], dict[str, Any](), self._outcome(key)
            with self._writing():
                claim = self._claims.take(key, partial(_about, job, progress), held)
            if claim is None:
                continue
            with claim:
                results = read_outcomes(path, job)  # another may have finished it before our claim
                ours = results is None
                if results is None:
                    results = self._trained(job, partial(_noted, progress, report, job))
                    record = {"runs": [run.hash() for run in job], "outcomes": list(map(_as_json, results))}
                    with self._writing():
                        write_atomically(path, with_checksum(record))
            return key, results, ours
        return None

    def _trained(self, job: Job, report: Any) -> list[Result]:
        results = train_fleet(self.context, job, report, self.stop)
        if isinstance(results, TooWide):  # other processes hold claims on this very fleet, so it cannot be split
            raise InputError(
                f"{len(job)} runs do not fit into the memory of {self.context.device} together: take smaller "
                f"batches, or leave out --join, which splits no fleet ({results.reason})"
            )
        return results

    def _from_elsewhere(self, jobs: dict[str, Job]) -> dict[str, Job]:
        """The same jobs from a random one on, so that two processes seldom claim the same."""
        items = list(jobs.items())
        first = secrets.randbelow(max(1, len(items)))
        return dict(items[first:] + items[:first])

    # ── the outcomes of others ────────────────────────────────────────────────────────────────────────────────

    def _read(self, keyed: dict[str, Job], unread: dict[str, Job]) -> Iterator[Outcomes]:
        """From the one file, if there is one, else one by one; damaged outcomes stay unread."""
        if len(keyed) > MANY:
            yield from self._from_one_file(self._all_of(keyed), unread)
        for key, job in list(unread.items()):
            if (results := read_outcomes(self._outcome(key), job)) is not None:
                del unread[key]
                yield job, results

    def _from_one_file(self, path: Path, unread: dict[str, Job]) -> Iterator[Outcomes]:
        with suppress(OSError), open(path, "rb") as lines:
            for line in lines:
                name, _, content = line.partition(b" ")
                job = unread.get(key := name.decode(errors="replace"))
                if job is not None and (results := _checked(content, job)) is not None:
                    del unread[key]
                    yield job, results

    def _all_of(self, keyed: dict[str, Job]) -> Path:
        return self._folder / GATHERED / content_hash(sorted(keyed))

    def _gathered(self, keyed: dict[str, Job]) -> bool:
        """Whether the outcomes of all are in one file; the first process that calls this writes it."""
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


def read_outcomes(path: Path, job: Job) -> list[Result] | None:
    """The outcomes of a job; None if there are none yet, or if the file is damaged."""
    try:
        return _checked(path.read_bytes(), job)
    except OSError:
        return None


def _checked(content: bytes, job: Job) -> list[Result] | None:
    try:
        record, _ = checked_json(content)
        runs, outcomes = (record[name] for name in ("runs", "outcomes"))
        if (
            record.keys() == {"runs", "outcomes"}
            and runs == [run.hash() for run in job]
            and len(outcomes) == len(job)
        ):
            return [_result(job[0], each) for each in outcomes]
    except (ValueError, LookupError, TypeError, AttributeError, InputError):
        pass
    return None


def _result(run: RunSpec, record: Any) -> Result:
    if run.reference is None:
        return Outcome.from_json(record)
    return from_json(ReferenceOutcome, record, "an outcome")


def _as_json(result: Result) -> Any:
    return result.to_json() if isinstance(result, Outcome) else to_json(result)


def _noted(progress: dict[str, Any], report: Report, job: Job, news: Any) -> None:
    if isinstance(news, Progress):
        progress.update(task=news.task, tasks=news.tasks, step=news.step, steps=news.steps)
    report(job, news)


def _about(job: Job, progress: dict[str, Any]) -> dict[str, Any]:
    """The content of a claim, for `rwalk status`."""
    return {"runs": [run.hash() for run in job], "reference": job[0].reference, **progress}
