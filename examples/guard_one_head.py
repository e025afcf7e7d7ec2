"""
One head: a guard alone is not enough
=====================================

Digits 0 to 4, then 5 to 9, all ten with the same outputs.

.. code-block:: console

   $ python examples/guard_one_head.py

The choice of outputs in the loss matters as much as the guard. If it compares all outputs, examples of the new
classes push the old classes' outputs down, and no importance of weights can hold them up. If it compares the
task's own outputs, nothing pushes them. A few old examples in every batch are worth more than either."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import matplotlib.pyplot as plt
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn

import rwalk
from rwalk.guard import Guard

EPOCHS, BATCH, KEPT = 20, 32, 10  # examples kept of every old class
LOOPS = ("all outputs", "the task's own outputs", "all outputs, with old examples")

Examples = tuple[Tensor, Tensor]


# %%
# The loop, in three variants
# ---------------------------


def batches(task: Examples, kept: Examples | None) -> Iterator[Examples]:
    """Batches of the task alone or, with exemplars, half and half."""
    x, y = task
    for batch in torch.randperm(len(x)).split(BATCH if kept is None else BATCH // 2):
        if kept is None:
            yield x[batch], y[batch]
        else:
            old = torch.randint(len(kept[0]), (len(batch),))
            yield torch.cat([x[batch], kept[0][old]]), torch.cat([y[batch], kept[1][old]])


def train(loop: str, seed: int, method: rwalk.Method | None) -> tuple[float, float]:
    """Learn both halves in turn; the accuracy on the old and on the new one, of ten classes each."""
    torch.manual_seed(seed)
    data = load_digits()
    split = train_test_split(data.data / 16, data.target, test_size=0.25, random_state=seed, stratify=data.target)
    x, x_test, y, y_test = (torch.tensor(each).float() if each.ndim > 1 else torch.tensor(each) for each in split)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    guard = None if method is None else Guard(model, optimizer, method=method)
    kept: Examples | None = None
    for classes in (range(5), range(5, 10)):
        outputs = torch.zeros(10)
        if loop == "the task's own outputs":
            outputs = torch.full((10,), -torch.inf)
            outputs[list(classes)] = 0
        here = torch.isin(y, torch.tensor(list(classes)))
        for _ in range(EPOCHS):
            for inputs, labels in batches((x[here], y[here]), kept):
                F.cross_entropy(model(inputs) + outputs, labels).backward()
                optimizer.step()
                optimizer.zero_grad()
        if guard is not None:
            guard.consolidate()
        if loop == "all outputs, with old examples":
            some = torch.cat([(y == label).nonzero().flatten()[:KEPT] for label in classes])
            kept = x[some], y[some]
    right = (model(x_test).argmax(1) == y_test).float()
    return right[y_test < 5].mean().item(), right[y_test >= 5].mean().item()


# %%
# With and without a guard
# ------------------------


def compare(seeds: range = range(5)) -> dict[tuple[str, str], tuple[float, float]]:
    """Accuracies on old and new classes by loop, with and without a guard: means over the seeds."""
    found = {}
    for loop in LOOPS:
        for name, method in (("without", None), ("Guard(RWalk)", rwalk.RWalk(lam=1.0))):
            old, new = torch.tensor([train(loop, seed, method) for seed in seeds]).mean(0).tolist()
            found[loop, name] = old, new
    return found


def picture(found: dict[tuple[str, str], tuple[float, float]]) -> None:
    """Old classes against new ones: top right is best."""
    _, axes = plt.subplots(figsize=(6.5, 4.5), layout="constrained")
    for loop, colour in zip(LOOPS, ("tab:red", "tab:orange", "tab:blue"), strict=True):
        before, after = found[loop, "without"], found[loop, "Guard(RWalk)"]
        move = {"arrowstyle": "->", "color": colour, "shrinkA": 6, "shrinkB": 6}
        axes.annotate("", [100 * each for each in after], [100 * each for each in before], arrowprops=move)
        axes.plot(100 * before[0], 100 * before[1], "o", color=colour, markerfacecolor="white")
        axes.plot(100 * after[0], 100 * after[1], "o", color=colour, label=loop)
    axes.set(
        xlabel="accuracy on the old classes, %",
        ylabel="accuracy on the new classes, %",
        xlim=(-3, 103),
        ylim=(60, 103),
    )
    axes.legend(title="the loss compares (from without a guard, to with it)", loc="lower left", frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    plt.show()


# %%
# What comes out
# --------------

if __name__ == "__main__":
    torch.set_num_threads(1)  # the network is too small to share out
    warnings.filterwarnings("ignore", message="rwalk holds nothing in its first task")  # as intended here
    found = compare()
    for (loop, name), (old, new) in found.items():
        print(f"{loop:31} {name:13} old {old:6.1%}   new {new:6.1%}   both {(old + new) / 2:6.1%}")
    picture(found)
