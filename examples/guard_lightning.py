"""
Guard in Lightning
==================

Five tasks of digits, one ``fit`` each. The callback is all that is new.

.. code-block:: console

   $ pip install 'rwalk[lightning]'
   $ python examples/guard_lightning.py
"""

from __future__ import annotations

import logging

import lightning.pytorch as pl
import matplotlib.pyplot as plt
import torch
import torch.nn.functional as F
from digits import MultiHead, accuracy, tasks
from torch import Tensor
from torch.utils.data import DataLoader

import rwalk
from rwalk.integrations.lightning import GuardCallback

# %%
# The module is as ever
# ----------------------


class Module(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.model = MultiHead()
        self.task = 0

    def training_step(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        x, y = batch
        return F.cross_entropy(self.model(x, self.task), y)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=1e-2)


# %%
# One fit per task, with the same callback
# ----------------------------------------


def train(epochs: int = 10) -> list[float]:
    """Accuracies of all tasks after the last one."""
    pl.seed_everything(0, verbose=False)
    module, stream = Module(), tasks()
    guarding = GuardCallback(rwalk.RWalk(lam=1.0))
    for task in stream:
        module.task = task.number
        trainer = pl.Trainer(
            max_epochs=epochs,
            callbacks=[guarding],
            accelerator="cpu",
            gradient_clip_val=1.0,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(module, DataLoader(task.train, batch_size=32, shuffle=True))
    return [accuracy(module.model, task) for task in stream]


def picture(accuracies: list[float]) -> None:
    _, axes = plt.subplots(figsize=(5, 3), layout="constrained")
    bars = axes.bar([f"task {number}" for number in range(1, 6)], [100 * each for each in accuracies])
    axes.bar_label(bars, fmt="%.1f")
    axes.set(ylabel="accuracy at the end, %", ylim=(0, 110))
    axes.spines[["top", "right"]].set_visible(False)
    plt.show()


# %%
# What comes out
# --------------

if __name__ == "__main__":
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    torch.set_num_threads(1)
    known = train()
    print("after five tasks:", ", ".join(f"{each:.1%}" for each in known))
    picture(known)
