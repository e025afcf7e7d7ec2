"""
The data of the trainers' examples: old digits and new ones
===========================================================

A network that knows the digits 0 to 4 learns 5 to 9, told apart by the same ten outputs. The trainers' examples
import this file.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn

data = load_digits()
shuffled = torch.randperm(len(data.data), generator=torch.Generator().manual_seed(0))
x, y = torch.tensor(data.data / 16).float()[shuffled], torch.tensor(data.target)[shuffled]
held_out = torch.arange(len(x)) % 4 == 0

# %%
# Probes are 128 images of old digits, without their labels.

probes = x[~held_out & (y < 5)][:128]
new = x[~held_out & (y >= 5)], y[~held_out & (y >= 5)]


def trained() -> nn.Module:
    """A network that knows the digits 0 to 4."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    inputs, labels = x[~held_out & (y < 5)], y[~held_out & (y < 5)]
    for _ in range(300):
        batch = torch.randint(len(inputs), (32,))
        F.cross_entropy(model(inputs[batch]), labels[batch]).backward()
        optimizer.step()
        optimizer.zero_grad()
    return model


@torch.no_grad()
def accuracies(model: nn.Module) -> tuple[float, float]:
    """The shares of old and of new digits told right, among images held out of training."""
    right: Tensor = model(x).argmax(-1) == y
    old, later = (right[held_out & chosen].float().mean().item() for chosen in (y < 5, y >= 5))
    return old, later


def show(name: str, model: nn.Module) -> None:
    old, later = accuracies(model)
    print(f"{name:10} old digits {old:6.1%}   new digits {later:6.1%}")


if __name__ == "__main__":
    show("at first", trained())
