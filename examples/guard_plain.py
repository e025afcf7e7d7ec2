"""
Guard in a plain PyTorch loop
=============================

Five tasks of digits, learned one after the other, with and without a guard. The loop is the same twice; with a
guard it has two lines more.

.. code-block:: console

   $ python examples/guard_plain.py

λ = 1 is the method's default, not tuned here. The learning rate is one at which the unguarded loop forgets. At a
tenth of it there is little to protect (2.5 % forgotten without a guard, 1.1 % with it)."""

from __future__ import annotations

import warnings
from typing import NamedTuple

import matplotlib.pyplot as plt
import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import rwalk
from rwalk.guard import Guard

EPOCHS, BATCH, LEARNING_RATE = 20, 32, 1e-2
NAMES = {"without": None, "Guard(RWalk)": rwalk.RWalk(lam=1.0)}

# %%
# The data and the network
# ------------------------
# Scikit-learn's digits in five tasks of two. The task of an image is known, so its label is only 0 or 1, and every
# task has outputs of its own: a shared trunk with five heads.


class Task(NamedTuple):
    number: int
    train: TensorDataset
    test: TensorDataset


def tasks() -> list[Task]:
    """Labels are 0 and 1 within each task: every task has a head of its own."""
    x, y = load_digits(return_X_y=True)
    images, digits = torch.tensor(x / 16.0, dtype=torch.float32), torch.tensor(y)
    train, test = train_test_split(torch.arange(len(digits)), test_size=0.25, random_state=0, stratify=y)

    def part(index: Tensor, number: int) -> TensorDataset:
        index = index[digits[index] // 2 == number]
        return TensorDataset(images[index], digits[index] % 2)

    return [Task(number, part(train, number), part(test, number)) for number in range(5)]


class MultiHead(nn.Module):
    """A shared trunk and one head per task."""

    def __init__(self, tasks: int = 5) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU())
        self.heads = nn.ModuleList(nn.Linear(128, 2) for _ in range(tasks))

    def forward(self, x: Tensor, task: int) -> Tensor:
        logits: Tensor = self.heads[task](self.trunk(x))
        return logits


@torch.no_grad()
def accuracy(model: MultiHead, task: Task) -> float:
    x, y = task.test.tensors
    return (model(x, task.number).argmax(-1) == y).float().mean().item()


# %%
# The loop
# --------
# Two lines are the guard's: the one that makes it, and ``guard.consolidate()`` at a task's end. The rest is
# PyTorch as usual.


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


# %%
# Five seeds
# ----------
# Forgetting is how far each task has fallen from the best it ever was.


def runs(seeds: range) -> dict[str, NDArray[np.float64]]:
    """Accuracy matrices [seed, after task, on task] of both loops."""
    stream = tasks()
    return {name: np.stack([train(stream, seed, method) for seed in seeds]) for name, method in NAMES.items()}


def summary(accuracies: NDArray[np.float64]) -> tuple[float, float]:
    """Forgetting and final average accuracy, means over the seeds."""
    forgotten, known = rwalk.metrics.forgetting(accuracies), rwalk.metrics.average_accuracy(accuracies)
    return float(forgotten.mean()), float(known.mean())


def compare(seeds: range = range(5)) -> dict[str, tuple[float, float]]:
    return {name: summary(accuracies) for name, accuracies in runs(seeds).items()}


def picture(found: dict[str, NDArray[np.float64]]) -> None:
    """What became of each task after it was learned."""
    _, axes = plt.subplots(1, 2, figsize=(8, 3.6), sharey=True, layout="constrained")
    for cell, (name, accuracies) in zip(axes, found.items(), strict=True):
        for task, line in enumerate(100 * accuracies.mean(0).T):
            cell.plot(range(1, 6), line, marker="o", label=f"task {task + 1}")
        cell.set(title=name, xlabel="tasks learned", xticks=range(1, 6))
        cell.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("accuracy on each task, %")
    axes[1].legend(frameon=False)
    plt.show()


# %%
# What comes out
# --------------

if __name__ == "__main__":
    torch.set_num_threads(1)  # the network is too small to share out
    warnings.filterwarnings("ignore", message="rwalk holds nothing in its first task")  # as intended here
    found = runs(range(5))
    for name, accuracies in found.items():
        forgotten, known = summary(accuracies)
        print(f"{name:14} forgetting {forgotten:6.1%}   accuracy after five tasks {known:6.1%}")
    picture(found)
