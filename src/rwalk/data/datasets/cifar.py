"""CIFAR's files: pixels and labels out of pickles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from rwalk.data.arrays import unit_interval
from rwalk.data.datasets.pickles import unpickled
from rwalk.data.streams import Dataset

CIFAR10_BATCHES = tuple(f"data_batch_{number}" for number in range(1, 6))


def read_cifar10(name: str, files: Mapping[str, bytes]) -> Dataset:
    batches = [unpickled(files[file], file) for file in CIFAR10_BATCHES]
    train = {
        "data": np.concatenate([batch["data"] for batch in batches]),
        "labels": [label for batch in batches for label in batch["labels"]],
    }
    test, meta = (unpickled(files[file], file) for file in ("test_batch", "batches.meta"))
    return _cifar(name, train, test, "labels", meta["label_names"])


def read_cifar100(name: str, files: Mapping[str, bytes], centred: bool = True) -> Dataset:
    train, test, meta = (unpickled(files[file], file) for file in ("train", "test", "meta"))
    return _cifar(name, train, test, "fine_labels", meta["fine_label_names"], centred)


def _cifar(
    name: str, train: Any, test: Any, labels: str, class_names: Sequence[str], centred: bool = True
) -> Dataset:
    """Pixels in [0, 1], minus the mean training image if they are to be centred."""
    mean = torch.from_numpy(train["data"].mean(0) / 255).float()  # of bytes, so summed in float64
    x, x_test = (unit_interval(part["data"]).sub_(mean * centred).view(-1, 3, 32, 32) for part in (train, test))
    y, y_test = (torch.tensor(part[labels]) for part in (train, test))
    return Dataset(name, x, y, x_test, y_test, tuple(class_names))
