"""The executors of one machine: its processes, its GPUs, or the current process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, ClassVar

import torch

from rwalk.errors import InputError
from rwalk.studies.executors.executor import Context, Executor, Job
from rwalk.studies.worker_pool import Pool, Report, Stop, Work


class Here(Executor):
    """No process is started, so breakpoints in networks and methods work."""

    name: ClassVar[str] = "here"
    summary: ClassVar[str] = "the current process, one run or fleet after the other: for debuggers and notebooks"

    def map(self, jobs: Sequence[Job], report: Report) -> Iterator[tuple[int, Any]]:
        for number, job in enumerate(jobs):
            yield number, self.work(self.context, job, partial(report, number), self.stop)


class Local(Here):
    """On a CPU worker processes, one run at a time each; on a device fleets as wide as its memory allows."""

    name: ClassVar[str] = "local"
    summary: ClassVar[str] = "the processes of this machine, or its device"
    _pool: Pool | None = None

    def map(self, jobs: Sequence[Job], report: Report) -> Iterator[tuple[int, Any]]:
        if self.workers == 1:
            return super().map(jobs, report)
        if self._pool is None:
            self._pool = self._until_end.enter_context(Pool(self.work, [self.context] * self.workers))
        return self._pool.run(jobs, report, self.stop)


class Gpus(Executor):
    """Fleets as wide as a GPU's memory allows, and no GPU without one while there are runs to split."""

    name: ClassVar[str] = "gpus"
    summary: ClassVar[str] = "all GPUs of this machine, one fleet each (the default of --device cuda)"
    _pool: Pool | None = None

    @classmethod
    def devices(cls) -> list[str]:
        """The devices to use."""
        return [f"cuda:{number}" for number in range(torch.cuda.device_count())]

    def map(self, jobs: Sequence[Job], report: Report) -> Iterator[tuple[int, Any]]:
        if self._pool is None:
            shares = [(device, self.context) for device in self.devices()[: self.workers]]
            self._pool = self._until_end.enter_context(Pool(partial(_on_device, self.work), shares))
        return self._pool.run(jobs, report, self.stop)

    @classmethod
    def workers_for(cls, jobs: int, device: str, asked: int | None) -> int:
        return max(1, min(len(cls.devices()), jobs, asked or jobs))

    @classmethod
    def check_device(cls, device: str) -> None:
        if device != "cuda":
            raise InputError(f"the executor gpus uses all GPUs, not {device}: give --device cuda")
        super().check_device(device)


def _on_device(
    work: Work, shared: tuple[str, Context], job: Job, report: Callable[[Any], None], stop: Stop
) -> Any:
    """Do a job on the device of this process: "cuda" then means that one, and rows do not depend on its number."""
    device, context = shared
    if device != "cpu":
        torch.cuda.set_device(device)
    return work(context, job, report, stop)
