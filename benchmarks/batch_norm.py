"""Batch norm's running statistics drift too: left alone, frozen after the first task, or kept for each task.

    python -m benchmarks.batch_norm [--seeds 3]

A small convolutional network learns scikit-learn's digits in two tasks, plainly and with a guard: other classes
(0 to 4, then 5 to 9, each compared with their own task's outputs), or the same classes as other images (dark on
bright, at half the contrast). Printed are test accuracies of both tasks at the end, means over the seeds.
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Sequence
from statistics import mean

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rwalk import Guard, RWalk

FORMS = ("free", "frozen", "per task")
HELD: dict[str, dict[str, float] | None] = {
    "without a guard": None,
    "RWalk, λ = 1": {"lam": 1.0},
    "RWalk, λ = 100": {"lam": 100.0},
    "RWalk, budget 0.05": {"budget": 0.05},
}
Task = tuple[Tensor, Tensor, Tensor]  # inputs, labels, and 0 or −∞ for each output


def tasks(kind: str, seed: int) -> list[tuple[Task, Task]]:
    """For each task, what to train and what to test on."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    x, y = torch.tensor(digits.images, dtype=torch.float32)[:, None] / 16, torch.tensor(digits.target)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
    x, y = x[order], y[order]
    if kind == "classes":
        parts = [(x[y < 5], y[y < 5], range(5)), (x[y >= 5], y[y >= 5], range(5, 10))]
    else:
        parts = [(x, y, range(10)), (1 - 0.5 * x, y, range(10))]
    found = []
    for inputs, labels, classes in parts:
        mask = torch.full((10,), -torch.inf)
        mask[list(classes)] = 0
        cut = len(inputs) * 4 // 5
        found.append(((inputs[:cut], labels[:cut], mask), (inputs[cut:], labels[cut:], mask)))
    return found


def network(seed: int) -> nn.Module:
    torch.manual_seed(seed)

    def block(inputs: int, outputs: int) -> list[nn.Module]:
        return [nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU()]

    return nn.Sequential(*block(1, 16), *block(16, 16), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(256, 10))


def train(model: nn.Module, optimizer: torch.optim.Optimizer, task: Task, seed: int, steps: int = 150) -> None:
    x, y, mask = task
    generator = torch.Generator().manual_seed(seed)
    model.train()
    for _ in range(steps):
        batch = torch.randint(len(x), (32,), generator=generator)
        F.cross_entropy(model(x[batch]) + mask, y[batch]).backward()
        optimizer.step()
        optimizer.zero_grad()
    model.eval()


@torch.no_grad()
def accuracy(model: nn.Module, task: Task) -> float:
    x, y, mask = task
    return 100 * (model(x) + mask).argmax(1).eq(y).double().mean().item()


def freeze(model: nn.Module) -> None:
    """Freeze the statistics from here on, in training too."""
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.register_forward_pre_hook(lambda module, _: module.train(False) and None)


def outcome(kind: str, form: str, held: dict[str, float] | None, seed: int) -> tuple[float, float]:
    (first, test), (second, other_test) = tasks(kind, seed)
    model = network(seed)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    budget = None if held is None else held.get("budget")
    method = RWalk() if budget else RWalk(lam=(held or {}).get("lam", 0.0))
    guard = Guard(model, optimizer, method, budget=budget, every=2) if held else None
    train(model, optimizer, first, seed)
    if guard is not None:
        guard.consolidate(probes=first[0][:256])
    statistics = copy.deepcopy(dict(model.named_buffers()))
    if form == "frozen":
        freeze(model)
    train(model, optimizer, second, seed)
    new = accuracy(model, other_test)
    if form == "per task":
        for name, buffer in model.named_buffers():
            buffer.copy_(statistics[name])
    return accuracy(model, test), new


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args(arguments)
    print("| second task | | statistics | first task | second task | mean |\n|" + "---|" * 6)
    for kind in ("classes", "images"):
        for name, held in HELD.items():
            for form in FORMS:
                old, new = zip(*(outcome(kind, form, held, seed) for seed in range(options.seeds)), strict=True)
                both = (mean(old) + mean(new)) / 2
                print(
                    f"| other {kind} | {name} | {form} | {mean(old):.1f} | {mean(new):.1f} | {both:.1f} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
