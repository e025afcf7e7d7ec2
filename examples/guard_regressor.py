"""
A regressor learns other inputs
===============================

A network completes handwritten digits: it predicts the 32 numbers of the lower half from the upper half. It knows
the digits 0 to 4 and learns 5 to 9. Does it still complete the old ones?

.. code-block:: console

   $ python examples/guard_regressor.py"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, NamedTuple

import matplotlib.pyplot as plt
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn

import rwalk


class Halves(NamedTuple):
    upper: Tensor  # [n, 32]
    lower: Tensor

    def __getitem__(self, chosen: Any) -> Halves:  # type: ignore[override]
        return Halves(self.upper[chosen], self.lower[chosen])


def train(
    model: nn.Module, optimizer: torch.optim.Optimizer, data: Halves, steps: int, replayed: Halves | None = None
) -> None:
    for _ in range(steps):
        batch = data[torch.randint(len(data.upper), (32,))]
        loss = F.mse_loss(model(batch.upper), batch.lower)
        if replayed is not None:
            old = replayed[torch.randint(len(replayed.upper), (32,))]
            loss = (loss + F.mse_loss(model(old.upper), old.lower)) / 2
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def r2(model: nn.Module, data: Halves) -> float:
    """The share of the variance that is explained."""
    with torch.no_grad():
        wrong = (model(data.upper) - data.lower).square().sum()
    return 1 - float(wrong / (data.lower - data.lower.mean(0)).square().sum())


def mae(model: nn.Module, data: Halves) -> float:
    """The mean absolute error."""
    with torch.no_grad():
        return float((model(data.upper) - data.lower).abs().mean())


# %%
# The new digits
# --------------


class Task(NamedTuple):
    model: nn.Module  # knows the old digits
    old: Halves
    new: Halves
    tested: dict[str, tuple[Halves, Halves]]  # old and new ones
    steps: int
    rate: float = 1e-3
    units: Sequence[float] = (1.0, 1.0)  # in which errors are told

    def scores(self, model: nn.Module, part: str = "test") -> dict[str, float]:
        """R² and mean absolute errors of the old digits and of the new ones."""
        old, new = self.tested[part]
        errors = {"old MAE": self.units[0] * mae(model, old), "new MAE": self.units[1] * mae(model, new)}
        return {"old": r2(model, old), **errors, "new": r2(model, new)}

    def probes(self, which: str, n: int = 128) -> Tensor:
        return (self.old if which == "old" else self.new).upper[:n]


def prepare(seed: int, quick: bool = False) -> Task:
    torch.manual_seed(seed)
    data = load_digits()
    order = torch.randperm(len(data.target))
    images, first = torch.tensor(data.data / 16).float()[order], torch.tensor(data.target < 5)[order]
    old, new = (Halves(part[:, :32], part[:, 32:]) for part in (images[first], images[~first]))
    tested = {"validation": (old[:150], new[:150]), "test": (old[150:350], new[150:350])}
    return trained(old[350:], new[350:], tested, quick)


def trained(old: Halves, new: Halves, tested: dict[str, tuple[Halves, Halves]], quick: bool) -> Task:
    """A network that knows the old examples."""
    width, numbers = old.upper.shape[1], old.lower.shape[1]
    model = nn.Sequential(
        nn.Linear(width, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, numbers)
    )
    train(model, torch.optim.Adam(model.parameters(), 1e-3), old, 10 if quick else 1500)
    return Task(model, old, new, tested, 10 if quick else 600)


def learn(
    task: Task, probes: Any = None, rate: float = 1.0, frozen: bool = False, replay: int = 0, **options: Any
) -> nn.Module:
    """The network after training on the new digits. The guard sees that the loss is one of numbers: no option."""
    model = copy.deepcopy(task.model)
    if frozen:
        model[:-1].requires_grad_(False)  # type: ignore[index]
    optimizer = torch.optim.Adam(model.parameters(), rate * task.rate)
    guard = None if probes is None else rwalk.Guard(model, optimizer, probes=probes, **options)
    train(model, optimizer, task.new, task.steps, task.old[:replay] if replay else None)
    if guard is not None:
        guard.finish()
    return model


# %%
# What comes out
# --------------


def compare(task: Task) -> dict[str, nn.Module]:
    ways = {
        "no guard": {},
        "guard, new inputs": {"probes": task.probes("new")},
        "guard, old inputs": {"probes": task.probes("old")},
    }
    models = {"before": task.model}
    for name, options in ways.items():
        torch.manual_seed(0)
        models[name] = learn(task, **options)
    for name, model in models.items():
        scores = task.scores(model)
        print(f"{name:18} R² of old digits {scores['old']:6.3f}   new digits {scores['new']:6.3f}")
    return models


def picture(task: Task, models: dict[str, nn.Module], shown: int = 8) -> None:
    """Old digits, and how each network completes them."""
    upper, lower = task.tested["test"][0][:shown]
    with torch.no_grad():
        rows = {"true": lower} | {name: model(upper) for name, model in models.items()}
    _, axes = plt.subplots(len(rows), shown, figsize=(shown * 0.8 + 1.5, len(rows) * 0.8), layout="constrained")
    for line, (name, row) in zip(axes, rows.items(), strict=True):
        for place, whole in zip(line, torch.cat([upper, row], 1), strict=True):
            place.imshow(whole.view(8, 8), cmap="gray_r", vmin=0, vmax=1)
            place.set(xticks=[], yticks=[])
        line[0].set_ylabel(name, rotation=0, ha="right", va="center")
    plt.show()


if __name__ == "__main__":
    torch.set_num_threads(1)
    task = prepare(0)
    picture(task, compare(task))
