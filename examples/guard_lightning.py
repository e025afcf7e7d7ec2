"""Guard in Lightning: five tasks on digits, one `fit` each.

pip install 'rwalk[lightning]'
python examples/guard_lightning.py
"""

from __future__ import annotations

import logging

import lightning.pytorch as pl
import torch
import torch.nn.functional as F
from digits import MultiHead, accuracy, tasks
from torch import Tensor
from torch.utils.data import DataLoader

import rwalk
from rwalk.integrations.lightning import GuardCallback


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


if __name__ == "__main__":
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    torch.set_num_threads(1)
    print("after five tasks:", ", ".join(f"{each:.1%}" for each in train()))
