"""Handwritten digits in five tasks of two classes each, as plain PyTorch datasets: real data that ships."""

from __future__ import annotations

from typing import NamedTuple

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn
from torch.utils.data import TensorDataset


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
    """A shared trunk and one head a task."""

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
