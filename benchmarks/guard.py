"""What Guard(RWalk) costs on one core: the time of a step of a ResNet-18 and of an MLP, and the peak of memory."""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import process_time
from typing import Any

import torch
import torch.nn.functional as F
from rich.console import Console
from torch import nn

from benchmarks import bars
from benchmarks.rounds import Contender, beside
from rwalk.engine.architectures import ResNet18
from rwalk.guard import Guard
from rwalk.methods import RWalk

FORMS: dict[str, dict[str, Any]] = {
    "RWalk": {"method": RWalk()},
    "RWalk, proximal": {"method": RWalk(penalty="proximal")},
    "RWalk, 8 bit": {"method": RWalk(), "dtype": "8bit"},
}
Step = Callable[[], None]


def training(model: nn.Module, form: str | None, batch: int, *shape: int, held: bool = True) -> Step:
    """A step of the second task, when everything is held and observed; of the first, where nothing is held yet."""
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    guard = None if form is None else Guard(model, optimizer, **FORMS[form])
    x, y = torch.randn(batch, *shape), torch.randint(10, (batch,))

    def step() -> None:
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()

    step()
    if guard is not None and held:
        guard.consolidate()
    step()
    return step


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))


def peak(form: str | None) -> tuple[int, list[int]]:
    """In a process of its own: the peak of its memory, and the memory of each parameter, in bytes."""
    torch.set_num_threads(1)
    model = ResNet18((3, 32, 32), 100, 64)
    step = training(model, form, 2, 3, 32, 32)
    for _ in range(2 * RWalk().dt):
        step()
    # Linux's own mark of this program; getrusage's begins with the size of the process that started it.
    (mark,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:"))
    return int(mark.split()[1]) * 1024, [parameter.nbytes for parameter in model.parameters()]


@contextmanager
def processes(**malloc: int) -> Iterator[Callable[..., Any]]:
    """To call a function in a process of its own, with these settings of glibc's malloc."""
    settings = {f"MALLOC_{name.upper()}_": str(value) for name, value in malloc.items()}
    os.environ.update(settings)
    try:
        with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
            yield lambda function, *args: pool.apply(function, args)
    finally:
        for name in settings:
            del os.environ[name]


def peaks() -> dict[str, Any]:
    """Parameter-sized vectors more than without a guard, and what share of all parameters the largest is."""
    # Freed tensors are given back at once: the peak is that of tensors, not of what malloc keeps.
    with processes(mmap_threshold=2**16) as apart:
        plain, sizes = apart(peak, None)
        extra = {form: (apart(peak, form)[0] - plain) / sum(sizes) for form in FORMS}
    return {"vectors": extra, "largest": max(sizes) / sum(sizes)}


def ratio(
    model: Callable[[], nn.Module],
    steps: int,
    rounds: int,
    batch: int,
    *shape: int,
    form: str = "RWalk",
    **how: bool,
) -> float:
    """A step with a guard by one without, in turns, in the process's own seconds: a busy machine harms little."""

    def contender(step: Step) -> Contender:
        def work() -> float:
            start = process_time()
            for _ in range(steps):
                step()
            return (process_time() - start) / steps

        return work

    torch.set_num_threads(1)
    torch.manual_seed(0)
    plain, guarded = (contender(training(model(), each, batch, *shape, **how)) for each in (None, form))
    return beside(plain, {"guarded": guarded}, rounds)[1]["guarded"]


def mlp_ratio(held: bool) -> float:
    return ratio(mlp, 20, 30, 64, 784, held=held)


def resnet_ratio(form: str = "RWalk") -> float:
    return ratio(lambda: ResNet18((3, 32, 32), 100, 20), 1, 20, 64, 3, 32, 32, form=form)


def bench() -> dict[str, Any]:
    # Freed memory is kept: whether malloc returns Adam's temporary copies to the system, to allocate them again in
    # the next step, is chance, and changes the time of a step by half, with a guard or without.
    with processes(mmap_threshold=2**30, trim_threshold=2**32) as apart:
        found = {
            "ratio": apart(resnet_ratio),
            "ratio_8bit": apart(resnet_ratio, "RWalk, 8 bit"),
            "mlp": {
                "before the first task's end": apart(mlp_ratio, False),
                "after the first task's end": apart(mlp_ratio, True),
            },
        }
    return found | peaks()


def main() -> int:
    results = {"guard": bench()}
    Console().print(bars.table(results))
    return 1 if any(row.met is False for row in bars.rows(results)) else 0


if __name__ == "__main__":
    sys.exit(main())
