"""The executor of a shared folder: processes on any machines that see it train the runs of one study together.

They exchange outcomes in small files, named after everything an outcome depends on. Every process uses the
outcomes of the others like its own, so all arrive at the same rows, and any of them may write them. Claims divide
the work. A run that is trained twice wastes time, and does no harm.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from rwalk.atomic_files import checked_json, with_checksum, write_atomically, writing
from rwalk.errors import InputError
from rwalk.studies.checkpoint import check_is_there
from rwalk.studies.executor import (
    Context,
    Executor,
    Job,
    JobReport,
    Outcomes,
    Result,
    TooWide,
    reporter,
    train_fleet,
)
from rwalk.studies.json_records import UNREADABLE, from_json
from rwalk.studies.rows import Outcome, ReferenceOutcome
from rwalk.studies.specs import RunSpec
from rwalk.studies.study_events import Trained, Watch
from rwalk.studies.work_claims import CLAIMS, Claims
from rwalk.studies.worker_pool import Stop

OUTCOMES = "outcomes"  # A folder in the study's, beside that of claims.
PAUSE = 0.5  # Seconds between looks at the folder, at least.
SHARE = 0.1  # The fraction of its time that a process spends on such looks, at most.


class Join(Executor):
    """One run (on a device: one fleet) at a time, in this process; start as many processes as there are cores."""

    def __init__(self, context: Context, workers: int, stop: Stop) -> None:
        super().__init__(context, workers, stop)
        if context.checkpoints is None:
            raise InputError("only a study with a folder can be joined: give --out")
        self._folder = context.checkpoints.parent
        self._claims = Claims(self._folder / CLAIMS)

    def train(self, specs: Sequence[RunSpec], watch: Watch) -> Iterator[Outcomes]:
        """Train runs, and take the outcomes of those that other processes have trained."""
        report = reporter(watch)
        jobs = [(self.context.identity(job), job) for job in self.jobs_of(specs)]
        first = secrets.randbelow(max(1, len(jobs)))  # so that two processes seldom claim the same
        waiting, next_look = dict(jobs[first:] + jobs[:first]), 0.0
        while waiting:
            begun = time.monotonic()
            if begun >= next_look:
                for key in self._finished(waiting):
                    results = read_outcomes(self._outcome(key), waiting[key])
                    if results is not None:  # else it is damaged, and trained again
                        job = waiting.pop(key)
                        watch(Trained(job))
                        yield job, results
                now = time.monotonic()
                next_look = now + max(PAUSE, (now - begun) / SHARE)
            if (done := self._work(waiting, report)) is not None:
                job = waiting.pop(done[0])
                watch(Trained(job))
                yield job, done[1]
            elif waiting:
                self._pause(next_look)

    def _pause(self, until: float) -> None:
        while (left := until - time.monotonic()) > 0:
            if self.stop():
                raise KeyboardInterrupt
            time.sleep(min(PAUSE, left))

    def _outcome(self, key: str) -> Path:
        return self._folder / OUTCOMES / f"{key}.json"

    def _finished(self, waiting: dict[str, Job]) -> list[str]:
        """The jobs that have an outcome."""
        with suppress(FileNotFoundError):
            names = os.listdir(self._folder / OUTCOMES)
            return [key for name in names if (key := name.removesuffix(".json")) in waiting]
        return []

    def _work(self, waiting: dict[str, Job], report: JobReport) -> tuple[str, list[Result]] | None:
        """Train the first job without a living claim, unless another process just has; None if all are claimed."""
        check_is_there(self._folder)
        held = self._claims.held() if waiting else {}
        for key in chain((key for key in waiting if key not in held), (key for key in waiting if key in held)):
            job, path = waiting[key], self._outcome(key)
            with self._writing():
                claim = self._claims.take(key, held)
            if claim is None:
                continue
            with claim:
                results = read_outcomes(path, job)  # another may have finished it before our claim
                if results is None:
                    results = self._trained(job, partial(report, job))
                    record = {
                        "runs": [run.hash() for run in job],
                        "outcomes": [each.to_json() for each in results],
                    }
                    with self._writing():
                        write_atomically(path, with_checksum(record))
            return key, results
        return None

    def _trained(self, job: Job, report: Any) -> list[Result]:
        results = train_fleet(self.context, job, report, self.stop)
        if isinstance(results, TooWide):  # other processes hold claims on this very fleet, so it cannot be split
            raise InputError(
                f"{len(job)} runs do not fit into the memory of {self.context.device} together: take smaller "
                f"batches, or leave out --join, which splits no fleet ({results.reason})"
            )
        return results

    def _writing(self) -> AbstractContextManager[None]:
        cure = "; outcomes of finished runs are kept: make room, and the same command resumes from there"
        return writing(f"to {self._folder}", cure)


def read_outcomes(path: Path, job: Job) -> list[Result] | None:
    """The outcomes of a job; None if there are none yet, or if the file is damaged."""
    kind: type[Result] = Outcome if job[0].reference is None else ReferenceOutcome
    try:
        record, _ = checked_json(path.read_bytes())
        runs, outcomes = record.pop("runs"), record.pop("outcomes")
        if record or runs != [run.hash() for run in job] or len(outcomes) != len(job):
            return None
        return [from_json(kind, each, "an outcome") for each in outcomes]
    except (OSError, *UNREADABLE):
        return None
