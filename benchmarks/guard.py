"""What Guard(RWalk) costs: the time of a ResNet-18 step on the CPU, and the peak of memory."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import process_time

import torch
import torch.nn.functional as F

from rwalk.engine.networks import ResNet18
from rwalk.guard import Guard
from rwalk.methods import RWalk

BUFFERS, SCRATCH = 8, 4  # docs/guard.md: as large as all parameters, and as the largest of them


def training(guarded: bool, filters: int, batch: int) -> tuple[Callable[[], None], list[int]]:
    """A step of the second task, when everything is held and observed; and the bytes of each parameter."""
    torch.manual_seed(0)
    model = ResNet18((3, 32, 32), 100, filters)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    guard = Guard(model, optimizer, RWalk()) if guarded else None
    x, y = torch.randn(batch, 3, 32, 32), torch.randint(100, (batch,))

    def step() -> None:
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()

    step()
    if guard is not None:
        guard.consolidate()
    step()
    return step, [parameter.nbytes for parameter in model.parameters()]


def peak(guarded: bool) -> tuple[int, list[int]]:
    """Of a process of its own: the most memory it ever had, and that of each parameter, in bytes."""
    torch.set_num_threads(1)
    step, sizes = training(guarded, filters=64, batch=2)
    for _ in range(2 * RWalk().dt):
        step()
    # Linux's own mark of this program; getrusage's begins with the size of the process that started it.
    (mark,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:"))
    return int(mark.split()[1]) * 1024, sizes


def bench(steps: int = 20) -> dict[str, float]:
    """Steps with and without a guard in turn, on one thread, in its own seconds: a busy machine harms little."""
    # With this, glibc gives freed tensors back at once: the peak is that of tensors, not of what malloc keeps.
    os.environ["MALLOC_MMAP_THRESHOLD_"] = "65536"
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        (plain, sizes), (guarded, _) = (pool.apply(peak, (kind,)) for kind in (False, True))
    del os.environ["MALLOC_MMAP_THRESHOLD_"]

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    loops = [training(kind, filters=20, batch=64)[0] for kind in (False, True)]
    seconds: tuple[list[float], list[float]] = ([], [])
    for _ in range(steps):
        for step, spent in zip(loops, seconds, strict=True):
            start = process_time()
            step()
            spent.append(process_time() - start)
    torch.set_num_threads(threads)
    without, within = (median(spent) for spent in seconds)
    return {
        "plain_s": without,
        "guarded_s": within,
        "ratio": within / without,
        "extra_buffers": (guarded - plain) / sum(sizes),
        "documented_buffers": BUFFERS + SCRATCH * max(sizes) / sum(sizes),
    }


if __name__ == "__main__":
    print(
        "a ResNet-18 step on one core: {plain_s:.3f} s, with Guard(RWalk) {guarded_s:.3f} s, {ratio:.2f}×; "
        "{extra_buffers:.1f} buffers more at the peak, {documented_buffers:.1f} documented".format(**bench())
    )
