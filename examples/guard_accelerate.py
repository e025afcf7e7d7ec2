"""
Guard with Accelerate
=====================

A network trained on the digits 0 to 4 learns 5 to 9, in a plain loop that Accelerate prepares. Two batches are
accumulated for each step, and checkpoints hold the guard.

.. code-block:: console

   $ pip install 'rwalk[huggingface]'
   $ python examples/guard_accelerate.py
"""

from __future__ import annotations

from tempfile import TemporaryDirectory

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from sklearn.datasets import load_digits
from torch import Tensor, nn

import rwalk

# %%
# The data
# --------
# The digits 0 to 4 are old, 5 to 9 are new. All ten share the same outputs.

data = load_digits()
shuffled = torch.randperm(len(data.data), generator=torch.Generator().manual_seed(0))
x, y = torch.tensor(data.data / 16).float()[shuffled], torch.tensor(data.target)[shuffled]
held_out = torch.arange(len(x)) % 4 == 0
# Probes are 128 images of old digits, without their labels.
probes = x[~held_out & (y < 5)][:128]
new = x[~held_out & (y >= 5)], y[~held_out & (y >= 5)]


def trained() -> nn.Module:
    """A network trained on the digits 0 to 4."""
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
    """The accuracies on old and on new digits, among images held out of training."""
    right: Tensor = model(x).argmax(-1) == y
    old, later = (right[held_out & chosen].float().mean().item() for chosen in (y < 5, y >= 5))
    return old, later


def show(name: str, model: nn.Module) -> None:
    old, later = accuracies(model)
    print(f"{name:10} old digits {old:6.1%}   new digits {later:6.1%}")


# %%
# The loop
# --------
# The guard comes after ``prepare``. Registered for checkpointing, it is saved and loaded with model and optimizer.
# A resumed loop makes its guard in the same way, and ``load_state`` gives it the outputs that are to be held.


def train(folder: str, guarded: bool, start: int = 0) -> tuple[nn.Module, rwalk.Guard | None]:
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    model = trained()
    model, optimizer = accelerator.prepare(model, torch.optim.Adam(model.parameters(), 3e-3))
    guard = None
    if guarded:
        guard = rwalk.Guard(model, optimizer, probes=probes)
        accelerator.register_for_checkpointing(guard)
    if start:
        accelerator.load_state(f"{folder}/{start}")
    x, y = new
    for number in range(start, 600):
        if number == 400 and not start:
            accelerator.save_state(f"{folder}/400")
        with accelerator.accumulate(model):
            batch = torch.randint(len(x), (16,))
            accelerator.backward(F.cross_entropy(model(x[batch]), y[batch]))
            optimizer.step()
            optimizer.zero_grad()
    if guard is not None:
        guard.finish()
    return model, guard


# %%
# Without a guard, with one, and resumed
# --------------------------------------


def compare() -> dict[str, tuple[float, float]]:
    """The accuracies on old and new digits; they are printed as well."""
    found = {}
    with TemporaryDirectory() as folder:
        model, _ = train(folder, guarded=False)
        show("no guard", model)
        found["no guard"] = accuracies(model)
    with TemporaryDirectory() as folder:
        model, guard = train(folder, guarded=True)
        show("guard", model)
        found["guard"] = accuracies(model)
        assert guard is not None
        print(guard.last_report)
        again, _ = train(folder, guarded=True, start=400)
        same = all(map(torch.equal, model.parameters(), again.parameters()))
        print("resumed:", "the same weights" if same else "other weights")
        found["resumed"] = accuracies(again)
    return found


if __name__ == "__main__":
    torch.set_num_threads(1)
    compare()
