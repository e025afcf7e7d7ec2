"""Guard in a loop of plain PyTorch: five tasks on digits, with and without it.

    python examples/guard_plain.py

The loop is the same twice; with a guard it has two lines more. λ = 1 is the method's default, not tuned here. The
learning rate is one at which the unguarded loop forgets; at a tenth of it there is little to protect (2.5 %
forgotten without a guard, 1.1 % with it).
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from digits import MultiHead, Task, accuracy, tasks
from numpy.typing import NDArray

import rwalk
from rwalk.guard import Guard

EPOCHS, BATCH, LEARNING_RATE = 20, 32, 1e-2


def train(stream: list[Task], seed: int, method: rwalk.Method | None) -> NDArray[np.float64]:
    """Learn the tasks in turn; the accuracy of every task after every task."""
    torch.manual_seed(seed)
    model = MultiHead(len(stream))
    optimizer = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE)
    guard = None if method is None else Guard(model, optimizer, method=method)
    accuracies = np.full((len(stream), len(stream)), np.nan)
    for task in stream:
        x, y = task.train.tensors
        for _ in range(EPOCHS):
            for batch in torch.randperm(len(x)).split(BATCH):
                loss = F.cross_entropy(model(x[batch], task.number), y[batch])
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
        if guard is not None:
            guard.consolidate()
        seen = stream[: task.number + 1]
        accuracies[task.number, : len(seen)] = [accuracy(model, each) for each in seen]
    return accuracies


def compare(seeds: range = range(5)) -> dict[str, tuple[float, float]]:
    """Forgetting and final average accuracy of both loops, means over the seeds."""
    stream = tasks()
    figures = {}
    for name, method in (("without", None), ("Guard(RWalk)", rwalk.RWalk(lam=1.0))):
        runs = np.stack([train(stream, seed, method) for seed in seeds])
        forgotten, known = rwalk.metrics.forgetting(runs), rwalk.metrics.average_accuracy(runs)
        figures[name] = (float(forgotten.mean()), float(known.mean()))
    return figures


if __name__ == "__main__":
    torch.set_num_threads(1)  # the network is too small to share out
    for name, (forgotten, known) in compare().items():
        print(f"{name:14} forgetting {forgotten:6.1%}   accuracy after five tasks {known:6.1%}")
