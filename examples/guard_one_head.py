"""Guard and one head: digits 0 to 4, then 5 to 9, all ten told apart by the same outputs.

    python examples/guard_one_head.py

What the loss compares matters as much as the guard. Against all outputs, the new classes' examples push the old
ones' outputs down, and no importance of weights can hold that up; against the task's own, nothing does. A few old
examples in every batch are worth more than either.
"""

from __future__ import annotations

from collections.abc import Iterator

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


def batches(task: Examples, kept: Examples | None) -> Iterator[Examples]:
    """Of the task alone or, with exemplars, half and half."""
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


def compare(seeds: range = range(5)) -> dict[tuple[str, str], tuple[float, float]]:
    """Accuracies on old and new classes by loop, with and without a guard: means over the seeds."""
    found = {}
    for loop in LOOPS:
        for name, method in (("without", None), ("Guard(RWalk)", rwalk.RWalk(lam=1.0))):
            old, new = torch.tensor([train(loop, seed, method) for seed in seeds]).mean(0).tolist()
            found[loop, name] = old, new
    return found


if __name__ == "__main__":
    torch.set_num_threads(1)  # the network is too small to share out
    for (loop, name), (old, new) in compare().items():
        print(f"{loop:31} {name:13} old {old:6.1%}   new {new:6.1%}   both {(old + new) / 2:6.1%}")
