"""How much memory tensors take, as the allocators report it: live memory, and its peak so far.

On a CPU the profiler records every allocation, inside compiled kernels and backward passes too; CUDA's allocator
has counters of its own. Only allocations after the start of the meter are counted.
"""

from __future__ import annotations

import gc
import os
from types import TracebackType
from typing import NamedTuple, Protocol

import torch

os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler would report its own start and stop

PREFIX = "meter: "


class Reading(NamedTuple):
    """Bytes: live at a mark, and the most since the mark before."""

    live: int
    peak: int


class Meter(Protocol):
    """Marks are read once the meter has ended."""

    readings: dict[str, Reading]

    def mark(self, name: str) -> None: ...

    def __enter__(self) -> Meter: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class CpuMeter:
    def __init__(self) -> None:
        self.readings: dict[str, Reading] = {}
        self._profile = torch.autograd.profiler.profile(profile_memory=True)

    def mark(self, name: str) -> None:
        with torch.autograd.profiler.record_function(PREFIX + name):
            pass

    def __enter__(self) -> CpuMeter:
        gc.collect()  # what an earlier meter counted must not be freed on this one's account
        self._profile.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._profile.__exit__(kind, error, trace)
        results = self._profile.kineto_results
        assert results is not None
        live = peak = 0
        told = [each for each in results.events() if each.name() == "[memory]" or each.name().startswith(PREFIX)]
        for event in sorted(told, key=lambda event: event.start_ns()):
            if event.name().startswith(PREFIX):
                self.readings[event.name().removeprefix(PREFIX)] = Reading(live, peak)
                peak = live
            else:
                live += event.nbytes()
                peak = max(peak, live)


class CudaMeter:
    def __init__(self) -> None:
        self.readings: dict[str, Reading] = {}

    def mark(self, name: str) -> None:
        live, peak = torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated()
        self.readings[name] = Reading(live - self._before, peak - self._before)
        torch.cuda.reset_peak_memory_stats()

    def __enter__(self) -> CudaMeter:
        gc.collect()  # as above
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        self._before = torch.cuda.memory_allocated()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass


def meter(device: str) -> Meter:
    return CudaMeter() if torch.device(device).type == "cuda" else CpuMeter()
