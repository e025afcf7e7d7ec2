"""The executor for one machine: processes on a CPU, fleets on a device."""

from __future__ import annotations

import gc
import logging
from collections import deque
from collections.abc import Iterator, Sequence
from functools import partial
from typing import ClassVar, Self

import torch

from rwalk.errors import InputError, first_line
from rwalk.studies.executors.base import Context, Executor, Job, Outcomes, Report, one_thread, train
from rwalk.studies.specs import RunSpec
from rwalk.studies.workers import Pool, Stop

logger = logging.getLogger(__name__)


class Local(Executor):
    """On a CPU worker processes, one run at a time each; on a device fleets as wide as its memory allows."""

    name: ClassVar[str] = "local"
    summary: ClassVar[str] = "the processes of this machine, or one device"

    def __init__(self, context: Context, workers: int, stop: Stop) -> None:
        super().__init__(context, workers, stop)
        self.pool = Pool(train, context, workers) if workers > 1 else None

    def __enter__(self) -> Self:
        if self.pool:
            self.pool.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        if self.pool:
            self.pool.__exit__(*error)

    def jobs_of(self, specs: Sequence[RunSpec]) -> list[Job]:
        return [part for job in super().jobs_of(specs) for part in self._as_begun(job)]

    def run(self, jobs: Sequence[Job], report: Report) -> Iterator[Outcomes]:
        if self.pool is None:
            yield from self._run_here(jobs, report)
            return
        for number, outcomes in self.pool.run(jobs, lambda n, news: report(jobs[n], news), self.stop):
            yield jobs[number], outcomes

    def _run_here(self, jobs: Sequence[Job], report: Report) -> Iterator[Outcomes]:
        """One after the other; runs that do not fit into memory together continue in narrower fleets."""
        waiting = deque(jobs)
        while waiting:
            job = waiting.popleft()
            reason = None
            try:
                with one_thread(self.context.device):
                    outcomes = train(self.context, job, partial(report, job), self.stop)
            except Exception as error:
                if not _out_of_memory(error):
                    raise
                reason = first_line(error)
            if reason is None:
                yield job, outcomes
                continue
            # Memory can only be released here, once the error is gone and with it the fleet that it referred to.
            narrower = self._narrower(job, reason)
            self.forget(job)
            waiting.extendleft(reversed(narrower))

    def _narrower(self, job: Job, reason: str) -> list[Job]:
        """The runs of a fleet, in fleets of about half its width, a power of two."""
        device = self.context.device
        if len(job) == 1:
            raise InputError(f"a run does not fit into the memory of {device}: take smaller batches ({reason})")
        gc.collect()
        if torch.cuda.is_initialized():
            torch.cuda.empty_cache()
        _, width, *_ = _widths(len(job))
        logger.warning("%d runs do not fit into the memory of %s, trying %d at a time", len(job), device, width)
        return [tuple(job[start : start + width]) for start in range(0, len(job), width)]

    def _as_begun(self, group: Job) -> list[Job]:
        """A fleet, split as an earlier process has split it: a checkpoint holds all runs of a fleet together."""
        for width in _widths(len(group)):
            folder = self.context.folder(group[:width])
            if folder is not None and folder.exists():
                rest = group[width:]
                return [group[:width], *(self._as_begun(rest) if rest else [])]
        return [group]


def _widths(runs: int) -> Iterator[int]:
    """Widths to try for so many runs: all together, then powers of two, which split the same way when halved."""
    yield runs
    while runs > 1:
        runs = 1 << ((runs - 1).bit_length() - 1)
        yield runs


def _out_of_memory(error: BaseException | None) -> bool:
    """Whether a device ran out of memory: libraries, and graph capture, say so in different words."""
    while error is not None:
        if isinstance(error, torch.OutOfMemoryError) or "out of memory" in str(error).lower():
            return True
        if "_STATUS_ALLOC_FAILED" in str(error):
            return True
        error = error.__cause__ or error.__context__
    return False
