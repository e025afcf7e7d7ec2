"""The demonstration's guard: `rwalk.Guard` with its defaults, around a plain training loop on the same tasks.

A guard needs no fleet and is no method of a study, so its accuracies are kept in a file beside the rows.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

import rwalk
from rwalk.atomic_files import checked_json, with_checksum, write_atomically
from rwalk.data.streams import Stream
from rwalk.demonstration import story
from rwalk.demonstration.story import Way
from rwalk.engine.architectures import MLP
from rwalk.guard import Guard
from rwalk.part_names import GUARD
from rwalk.seeds import generator, seeded

FILE = "guard.json"
PROBES = 128  # inputs of every task, without labels


def way(folder: Path, tell: Callable[[str], None]) -> Way:
    """Accuracies from the folder's file, or measured now and written there."""
    every = story.runs()
    settings = {"rwalk": rwalk.__version__, "torch": version("torch"), "probes": PROBES, "run": every[0].hash()}
    kept = read(folder / FILE)
    seeds = len({run.seed for run in every})
    if kept.pop("settings", None) != settings or np.shape(kept.get("accuracies", ())) != (
        seeds,
        story.TASKS,
        story.TASKS,
    ):
        stream, found = every[0].stream.build(), []
        for seed in range(seeds):
            tell(f"Guard around a plain training loop, seed {seed + 1} of {seeds}")
            found.append(accuracies(stream, seed).tolist())
        kept = {"accuracies": found}
        with suppress(OSError):  # a folder that cannot be written to: measured again next time
            write_atomically(folder / FILE, with_checksum({**kept, "settings": settings}))
    return way_of(kept["accuracies"])


def way_of(found: Any) -> Way:
    """From accuracies [seed, after task, on task] between 0 and 1."""
    percent = 100 * np.asarray(found, dtype=float)
    return Way(GUARD, percent[:, :, 0], percent[:, -1].mean(1))


def read(path: Path) -> dict[str, Any]:
    """What a file of accuracies holds; nothing if it is missing or damaged."""
    try:
        record, sealed = checked_json(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return dict(record) if sealed and isinstance(record, dict) else {}


def accuracies(stream: Stream, seed: int) -> NDArray[np.float64]:
    """Train one network on all tasks, with a guard from the second task on; [after task, on task]."""
    training = story.runs()[0].training
    with seeded(seed):
        model = MLP(stream.shape, stream.classes)
    guard: Guard | None = None
    after = np.empty((len(stream.tasks), len(stream.tasks)))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the network is too small to share out
    try:
        for number, task in enumerate(stream.tasks):
            optimizer = torch.optim.Adam(model.parameters(), training.lr)
            if guard is not None:
                guard.attach(optimizer)
            for epoch in range(training.epochs):
                order = torch.randperm(len(task.train), generator=generator(seed, "guarded", number, epoch))
                for batch in order.split(training.batch):
                    x, y = stream.batch(task.train[batch])
                    nn.functional.cross_entropy(model(x), y).backward()
                    optimizer.step()
                    optimizer.zero_grad()
            probes, _ = stream.batch(task.train[:PROBES])
            if guard is None:
                guard = Guard(model, optimizer, probes=probes)
            else:
                guard.consolidate(probes=probes)
            after[number] = [_accuracy(model, *stream.test_batch(each.test)) for each in stream.tasks]
    finally:
        torch.set_num_threads(threads)
        if guard is not None:
            guard.detach()
    return after


@torch.no_grad()
def _accuracy(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> float:
    return float((model(x).argmax(1) == y).double().mean())
