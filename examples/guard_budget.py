"""
A budget instead of λ
=====================

A network knows the digits 0 to 4 and learns 5 to 9. How strongly must it be held? Nobody knows λ in advance, but
everyone can say how far the old predictions may drift. The guard finds λ while it trains.

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
x, y = torch.tensor(data.data / 16).float(), torch.tensor(data.target)
old, new = y < 5, y >= 5


def learn(model: nn.Module, optimizer: torch.optim.Optimizer, which: Tensor, outputs: slice, steps: int) -> None:
    """A plain loop; the loss compares the outputs of these classes only."""
    inputs, labels = x[which], y[which] - outputs.start
    for _ in range(steps):
        batch = torch.randint(len(inputs), (32,))
        F.cross_entropy(model(inputs[batch])[:, outputs], labels[batch]).backward()
        optimizer.step()
        optimizer.zero_grad()


def trained() -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    learn(model, torch.optim.Adam(model.parameters(), 3e-3), old, slice(0, 5), 300)
    return model


# %%
# New digits, with four budgets
# -----------------------------
# Probes are 128 old images, without their labels. ``None`` is training without a guard. Accuracy is that of each
# half among its own five digits.


def right(model: nn.Module, which: Tensor, outputs: slice) -> float:
    with torch.no_grad():
        said = model(x[which])[:, outputs].argmax(-1) + outputs.start
    return (said == y[which]).float().mean().item()


budgets = (None, 0.2, 0.05, 0.02)
probes = x[old][:128]
drifts = {}
print("budget   drift   old digits   new digits")
for budget in budgets:
    model = trained()
    before = model(probes).detach().log_softmax(-1)
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    if budget is not None:
        guard = rwalk.Guard(model, optimizer, budget=budget, probes=probes, every=1)
    drifts[budget] = []
    for _ in range(30):
        learn(model, optimizer, new, slice(5, 10), 10)
        now = model(probes).detach().log_softmax(-1)
        drifts[budget].append(F.kl_div(now, before, log_target=True, reduction="batchmean").item())
    scores = right(model, old, slice(0, 5)), right(model, new, slice(5, 10))
    print(f"{budget or 'none':>6}  {drifts[budget][-1]:6.3f}  {scores[0]:11.1%}  {scores[1]:11.1%}")

# %%
# The picture
# -----------
# Dotted lines are the budgets.

_, axes = plt.subplots(figsize=(7, 4), layout="constrained")
for budget, line in drifts.items():
    (drawn,) = axes.plot(range(10, 310, 10), line, label="no guard" if budget is None else f"budget {budget}")
    if budget is not None:
        axes.axhline(budget, linestyle=":", color=drawn.get_color())
axes.set(xlabel="steps on the new digits", ylabel="drift of the old predictions, nats", yscale="log")
axes.legend(frameon=False)
axes.spines[["top", "right"]].set_visible(False)
plt.show()
