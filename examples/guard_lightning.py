"""
Guard in Lightning
==================

A network knows the digits 0 to 4 and learns 5 to 9. The callback is all that is new.

.. code-block:: console

   $ pip install 'rwalk[lightning]'
   $ python examples/guard_lightning.py
"""

from __future__ import annotations

import logging

import lightning.pytorch as pl
import torch
import torch.nn.functional as F
from old_and_new import accuracies, new, probes, show, trained
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from rwalk.integrations.lightning import GuardCallback

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
