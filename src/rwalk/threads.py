"""The number of threads on a CPU: one, unless the user sets more.

Threads that share an operation wait for each other at its end, by spinning. An operation of a small network takes
microseconds; on a busy machine the wait is for a free core, which takes milliseconds, in every operation. On an
idle machine a second thread gains nothing for an MLP. It does for convolutions, but their sums then round
differently. So the number never depends on how busy the machine is. (reproduction/notes.md has the measurements.)
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch

from rwalk.errors import InputError

VARIABLE = "RWALK_THREADS"
_changing = threading.Lock()
_inside: list[int] = []  # numbers asked for now, by all threads of this process
_outside = 1  # torch's number before the first of them


@contextmanager
def few_threads(count: int | None = None) -> Iterator[None]:
    """Use this many threads, or as many as are `allowed`; afterwards everything is restored.

    torch has one number of threads for the whole process. If several threads of a program use this at once, the
    smallest number holds until its thread leaves. The last to leave restores the number from before the first.
    Denormals are flushed: moving averages of vanished gradients become denormals, which are slow.
    torch computes in here as `usual_torch`.
    """
    global _outside
    wanted, flushing = allowed() if count is None else count, flushes_denormals()
    with _changing:
        if not _inside:
            _outside = torch.get_num_threads()
        _inside.append(wanted)
        torch.set_num_threads(min(_inside))
    torch.set_flush_denormal(True)
    try:
        with usual_torch():
            yield
    finally:
        torch.set_flush_denormal(flushing)
        with _changing:
            _inside.remove(wanted)
            torch.set_num_threads(min(_inside, default=_outside))


@contextmanager
def usual_torch() -> Iterator[None]:
    """Compute as outside of the caller's `no_grad`, `inference_mode`, `autocast` and default device."""
    with ExitStack() as held:
        held.enter_context(torch.inference_mode(False))
        held.enter_context(torch.enable_grad())
        for kind in ("cpu", "cuda"):
            if torch.is_autocast_enabled(kind):
                held.enter_context(torch.autocast(kind, enabled=False))
        if torch.get_default_device().type != "cpu":
            held.enter_context(torch.device("cpu"))
        yield


def flushes_denormals() -> bool:
    """Whether this thread flushes denormals to zero. torch can set this, but not report it."""
    smallest = torch.full((1,), torch.finfo(torch.float32).smallest_normal, device="cpu", dtype=torch.float32)
    return not bool(smallest / 2)


def allowed() -> int:
    """One thread, or the number in RWALK_THREADS, but at most as many as there are cores."""
    asked = os.environ.get(VARIABLE, "1")
    if not (asked.isascii() and asked.isdigit() and int(asked) > 0):
        raise InputError(f"{VARIABLE} must be a whole number, at least 1, not {asked!r}")
    return min(int(asked), available_cores())


def available_cores() -> int:
    """The cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
