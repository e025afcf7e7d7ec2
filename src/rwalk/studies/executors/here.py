"""The executor for debuggers and notebooks: one job after the other, in the current process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from rwalk.studies.executors.base import Executor
from rwalk.studies.workers import Alone, Crew, Work


class Here(Executor):
    """No process is started, so breakpoints in networks and methods work."""

    name: ClassVar[str] = "here"
    summary: ClassVar[str] = "the current process, one run or fleet after the other: for debuggers and notebooks"

    @classmethod
    def crew(cls, work: Work, shared: Any, workers: int, device: str = "cpu", code: Sequence[str] = ()) -> Crew:
        return Alone(work, shared)
