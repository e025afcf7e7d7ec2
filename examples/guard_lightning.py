"""
Guard in Lightning
==================

A network trained on the digits 0 to 4 learns 5 to 9. The callback is all that is new.

.. code-block:: console

   $ pip install 'rwalk[lightning]'
   $ python examples/guard_lightning.py
"""

from __future__ import annotations

import logging

import lightning.pytorch as pl
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from rwalk.integrations.lightning import GuardCallback

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
# The module is as usual
# ----------------------
# Probes are given to ``forward``.


class Module(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.model = trained()

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.model(x)
        return logits

    def training_step(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        x, y = batch
        return F.cross_entropy(self(x), y)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=3e-3)


# %%
# One callback
# ------------
# Lightning's checkpoints hold the guard, and ``fit(…, ckpt_path=…)`` continues with it.


def compare() -> dict[str, tuple[float, float]]:
    """The accuracies on old and new digits; they are printed as well."""
    found = {}
    guarding = GuardCallback(probes=probes)
    for name, callbacks in {"no guard": [], "guard": [guarding]}.items():
        pl.seed_everything(0, verbose=False)
        module = Module()
        trainer = pl.Trainer(
            max_steps=300, callbacks=callbacks, accelerator="cpu", logger=False, enable_checkpointing=False,
            enable_progress_bar=False, enable_model_summary=False,
        )  # fmt: skip
        trainer.fit(module, DataLoader(TensorDataset(*new), batch_size=32, shuffle=True))
        show(name, module.model)
        found[name] = accuracies(module.model)
    assert guarding.guard is not None
    print(guarding.guard.last_report)
    return found


if __name__ == "__main__":
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    torch.set_num_threads(1)
    compare()
