"""The executor for debuggers and notebooks: one job after the other, in the current process."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import ClassVar

from rwalk.studies.executors.base import Executor, Job, Outcomes, Report, one_thread, train


class Here(Executor):
    """No process is started, so breakpoints in networks and methods work."""

    name: ClassVar[str] = "here"
    summary: ClassVar[str] = "the current process, one run or fleet after the other: for debuggers and notebooks"

    def run(self, jobs: Sequence[Job], report: Report) -> Iterator[Outcomes]:
        for job in jobs:
            with one_thread(self.context.device):
                outcomes = train(self.context, job, partial(report, job), self.stop)
            yield job, outcomes
