"""The executor for all GPUs of a machine: one process per GPU, which trains one fleet after another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar

import torch

from rwalk.errors import InputError
from rwalk.studies.executors.base import Executor
from rwalk.studies.workers import Crew, Pool, Stop, Work


class Gpus(Executor):
    """Fleets as wide as a GPU's memory allows, and no GPU without one while there are runs to split."""

    name: ClassVar[str] = "gpus"
    summary: ClassVar[str] = "all GPUs of this machine, one fleet each (the default of --device cuda)"

    @classmethod
    def devices(cls) -> list[str]:
        """The devices to use."""
        return [f"cuda:{number}" for number in range(torch.cuda.device_count())]

    @classmethod
    def crew(cls, work: Work, shared: Any, workers: int, device: str = "cuda", code: Sequence[str] = ()) -> Crew:
        devices = cls.devices()[:workers]
        if not devices or not all(each.startswith(device) for each in devices):
            raise InputError("the executor gpus is for studies on CUDA: give --executor local or ray")
        return Pool(partial(_on_device, work), [(each, shared) for each in devices])

    @classmethod
    def workers_for(cls, jobs: int, device: str, asked: int | None) -> int:
        return max(1, min(len(cls.devices()), jobs, asked or jobs))

    @classmethod
    def check_device(cls, device: str) -> None:
        if device != "cuda":
            raise InputError(f"the executor gpus uses all GPUs, not {device}: give --device cuda")
        super().check_device(device)


def _on_device(work: Work, shared: tuple[str, Any], job: Any, report: Callable[[Any], None], stop: Stop) -> Any:
    """Do a job on the device of this process: "cuda" then means that one, and rows do not depend on its number."""
    device, content = shared
    if device != "cpu":
        torch.cuda.set_device(device)
    return work(content, job, report, stop)
