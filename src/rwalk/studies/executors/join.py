"""The executor of a shared folder: processes on any machines that see it train the runs of one study together.

They exchange outcomes, one small file each, named after everything they depend on. Every process uses those of the
others like its own, and so arrives at the same rows, which any of them may write. Claims decide who trains what; a
run that is trained twice wastes time, and does no harm.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from rwalk.engine.fleet import Progress
from rwalk.errors import InputError
from rwalk.files import parse_json, write_atomically
from rwalk.metrics import HEADS
from rwalk.studies.claims import Claims
from rwalk.studies.executors.base import Context, Executor, Job, Outcomes, Report, one_thread, train
from rwalk.studies.workers import Crew, Stop, Work

CLAIMS, OUTCOMES = "claims", "outcomes"  # folders in the study's
RUN_KEYS, REFERENCE_KEYS = {"accuracy", "made", "stopped"}, {*HEADS, "stopped"}  # of an outcome
PAUSE = 0.5  # seconds between looks at what the others have done, at least
SHARE = 0.1  # of its time that a process spends on such looks, at most


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
        waiting = self._in_own_order({self.context.identity(job): job for job in jobs})
        next_look, behind = 0.0, True  # others may have been here before
        while waiting:
            if behind and (begun := time.monotonic()) >= next_look:
                yield from self._finished(waiting)
                # A look at the outcomes of a hundred thousand runs takes longer than a tiny run.
                spent = time.monotonic() - begun
                next_look, behind = time.monotonic() + max(PAUSE, spent / SHARE), False
            done = self._work(waiting, report)
            if done is not None:
                key, outcomes, ours = done
                behind = behind or not ours  # it has come to where another began
                yield waiting.pop(key), outcomes
            elif waiting:
                if self.stop():
                    raise KeyboardInterrupt
                behind = True
                time.sleep(PAUSE)

    def _finished(self, waiting: dict[str, Job]) -> Iterator[Outcomes]:
        """What others have finished since the last look."""
        with suppress(OSError):
            for path in (self._folder / OUTCOMES).iterdir():
                if path.stem in waiting and (outcomes := read_outcomes(path, waiting[path.stem])) is not None:
                    yield waiting.pop(path.stem), outcomes

    def _work(self, waiting: dict[str, Job], report: Report) -> tuple[str, list[dict[str, Any]], bool] | None:
        """Train the first job that nobody has claimed, unless another just has; None if all are claimed."""
        for key in waiting:
            job, progress, path = waiting[key], dict[str, Any](), self._folder / OUTCOMES / f"{key}.json"
            claim = self._claims.take(key, partial(_about, job, progress))
            if claim is None:
                continue
            with claim:
                outcomes = read_outcomes(path, job)  # another may have finished it before our claim
                ours = outcomes is None
                if outcomes is None:
                    with one_thread(self.context.device):
                        outcomes = train(self.context, job, partial(_noted, progress, report, job), self.stop)
                    runs = [run.hash() for run in job]
                    write_atomically(path, json.dumps({"runs": runs, "outcomes": outcomes}))
            return key, outcomes, ours
        return None

    def _in_own_order(self, jobs: dict[str, Job]) -> dict[str, Job]:
        """Every process begins elsewhere, so that they seldom reach for the same job."""
        items = list(jobs.items())
        first = hash(self._claims.owner) % max(1, len(items))
        return dict(items[first:] + items[:first])


def read_outcomes(path: Path, job: Job) -> list[dict[str, Any]] | None:
    """The outcomes of a job; None if there are none yet, or if the file is not what this executor writes."""
    try:
        record = parse_json(path.read_bytes())
    except (OSError, ValueError):
        return None
    if not isinstance(record, dict) or record.get("runs") != [run.hash() for run in job]:
        return None
    outcomes, keys = record.get("outcomes"), REFERENCE_KEYS if job[0].reference is not None else RUN_KEYS
    if not isinstance(outcomes, list) or len(outcomes) != len(job):
        return None
    return outcomes if all(isinstance(each, dict) and keys <= each.keys() for each in outcomes) else None


def _noted(progress: dict[str, Any], report: Report, job: Job, news: Any) -> None:
    if isinstance(news, Progress):
        progress.update(task=news.task, tasks=news.tasks, step=news.step, steps=news.steps)
    report(job, news)


def _about(job: Job, progress: dict[str, Any]) -> dict[str, Any]:
    """What `rwalk status` shows of a run that is being trained."""
    return {"runs": [run.hash() for run in job], "reference": job[0].reference, **progress}
