"""
A budget for drift
==================

A network trained on the digits 0 to 4 learns 5 to 9, with the same ten outputs. How far may its outputs on
old digits move? Without a guard, with one, and with three budgets.

.. code-block:: console

   $ python examples/guard_budget.py

It takes a few seconds on one core.
"""

from __future__ import annotations

import matplotlib.pyplot as plt
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn

import rwalk

torch.set_num_threads(1)

# %%
# A model that was trained earlier
# --------------------------------

data = load_digits()
shuffled = torch.randperm(len(data.data), generator=torch.Generator().manual_seed(0))
x, y = torch.tensor(data.data / 16).float()[shuffled], torch.tensor(data.target)[shuffled]
old, new = y < 5, y >= 5


def learn(model: nn.Module, optimizer: torch.optim.Optimizer, which: Tensor, steps: int) -> None:
    """A plain loop."""
    inputs, labels = x[which], y[which]
    for _ in range(steps):
        batch = torch.randint(len(inputs), (32,))
        F.cross_entropy(model(inputs[batch]), labels[batch]).backward()
        optimizer.step()
        optimizer.zero_grad()


def trained() -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    learn(model, torch.optim.Adam(model.parameters(), 3e-3), old, 300)
    return model


# %%
# New digits
# ----------
# Probes are 128 old images, without their labels. Drift is measured on other old images.


def right(model: nn.Module, which: Tensor) -> float:
    with torch.no_grad():
        return (model(x[which]).argmax(-1) == y[which]).float().mean().item()


ways: dict[str, dict[str, float] | None] = {
    "no guard": None,
    "guard": {},
    **{f"budget {budget}": {"budget": budget} for budget in (0.2, 0.05, 0.02)},
}
drifts: dict[str, list[float]] = {}
print("               drift   old digits   new digits")
for name, options in ways.items():
    model = trained()
    others = rwalk.Probes(x[old][128:])
    others.keep(model)
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    guard = None if options is None else rwalk.Guard(model, optimizer, probes=x[old][:128], **options)
    drifts[name] = []
    for _ in range(30):
        learn(model, optimizer, new, 10)
        drifts[name].append(others.drift(model))
    if guard is not None:
        guard.finish()  # interpolates back to the budget
    drifts[name].append(others.drift(model))
    print(f"{name:12}  {drifts[name][-1]:6.3f}  {right(model, old):11.1%}  {right(model, new):11.1%}")

# %%
# The picture
# -----------
# The last point is drift after ``finish``. Dotted lines are the budgets.

_, axes = plt.subplots(figsize=(7, 4), layout="constrained")
for (name, line), options in zip(drifts.items(), ways.values(), strict=True):
    (drawn,) = axes.plot(range(10, 320, 10), line, label=name)
    if options:
        axes.axhline(options["budget"], linestyle=":", color=drawn.get_color())
axes.set(xlabel="steps on the new digits", ylabel="drift on old digits that are no probes, nats", yscale="log")
axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
axes.spines[["top", "right"]].set_visible(False)
plt.show()
