"""Executors of a user's own, which other processes can import."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch

from rwalk.studies.executor import Executor, Job, train_fleet
from rwalk.studies.specs import RunSpec
from rwalk.studies.worker_pool import Work


def small_memory(context: Any, job: Any, report: Callable[[Any], None], stop: Callable[[], bool]) -> Any:
    """Two runs fit; three exhaust the memory on the way."""

    def failing(news: Any) -> None:
        report(news)
        if len(job) > 2 and not isinstance(news, str) and news.task == 1:
            raise torch.OutOfMemoryError("CUDA out of memory.")

    return train_fleet(context, job, failing, stop)


class LastFirst(Executor):
    """References, which are asked for first, are trained last."""

    def jobs_of(self, specs: Sequence[RunSpec]) -> list[Job]:
        return super().jobs_of(specs)[::-1]


class PretendedGpus(Executor):
    """Two processes on the CPU in place of two GPUs."""

    work: ClassVar[Work] = staticmethod(small_memory)

    @classmethod
    def devices(cls, device: str) -> list[str]:
        return ["cpu", "cpu"]

    def in_fleets(self) -> bool:
        return True
