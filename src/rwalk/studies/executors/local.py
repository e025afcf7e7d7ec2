"""The executor for one machine: processes on a CPU, fleets on a device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from rwalk.studies.executors.base import Executor
from rwalk.studies.workers import Alone, Crew, Pool, Work


class Local(Executor):
    """On a CPU worker processes, one run at a time each; on a device fleets as wide as its memory allows."""

    name: ClassVar[str] = "local"
    summary: ClassVar[str] = "the processes of this machine, or its device"

    @classmethod
    def crew(cls, work: Work, shared: Any, workers: int, device: str = "cpu", code: Sequence[str] = ()) -> Crew:
        return Pool(work, [shared] * workers) if workers > 1 else Alone(work, shared)
