"""
The data of these examples: digits in five tasks
================================================

Scikit-learn's 1,797 handwritten digits, in five tasks of two digits each. The guards' examples import this file.
In them the task of an image is known, so its label is only 0 or 1, and every task has outputs of its own: a
shared trunk with five heads."""

from __future__ import annotations

from typing import NamedTuple

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn
from torch.utils.data import TensorDataset

# %%
# A task
# ------


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


# %%
# The network
# -----------


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
# What the tasks look like
# ------------------------

if __name__ == "__main__":
    import matplotlib.pyplot as plt

    _, axes = plt.subplots(2, 5, figsize=(8, 3.6), layout="constrained")
    for task, column in zip(tasks(), axes.T, strict=True):
        images, labels = task.train.tensors
        for label, cell in enumerate(column):
            cell.imshow(images[labels == label][0].reshape(8, 8), cmap="Greys")
            cell.set(xticks=[], yticks=[], xlabel=f"label {label}")
        column[0].set_title(f"task {task.number + 1}")
        print(f"task {task.number + 1}: {len(images)} images to learn, {len(task.test)} to be asked about")
    plt.show()
