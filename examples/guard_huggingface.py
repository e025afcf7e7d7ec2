"""
Guard in the Hugging Face Trainer
=================================

Five tasks of digits, one ``train`` each. The callback is all that is new.

.. code-block:: console

   $ pip install 'rwalk[huggingface]'
   $ python examples/guard_huggingface.py
"""

from __future__ import annotations

from tempfile import TemporaryDirectory

import matplotlib.pyplot as plt
import torch
import torch.nn.functional as F
from digits import MultiHead, accuracy, tasks
from torch import Tensor, nn
from torch.utils.data import TensorDataset
from transformers import Trainer, TrainingArguments, set_seed

import rwalk
from rwalk.integrations.huggingface import GuardCallback

# %%
# A model that returns its loss
# -----------------------------


class Module(nn.Module):
    """Trainer wants a model that returns its loss."""

    def __init__(self) -> None:
        super().__init__()
        self.model = MultiHead()
        self.task = 0

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        logits = self.model(x, self.task)
        return {"loss": F.cross_entropy(logits, labels), "logits": logits}


def rows(data: TensorDataset) -> list[dict[str, Tensor]]:
    return [{"x": x, "labels": y} for x, y in data]


# %%
# One train per task, with the same callback
# ------------------------------------------


def train(epochs: int = 10) -> list[float]:
    """Accuracies of all tasks after the last one."""
    set_seed(0)
    module, stream = Module(), tasks()
    guarding = GuardCallback(rwalk.RWalk(lam=1.0))
    with TemporaryDirectory() as folder:
        args = TrainingArguments(
            output_dir=folder,
            num_train_epochs=epochs,
            per_device_train_batch_size=16,
            gradient_accumulation_steps=2,
            learning_rate=1e-2,
            lr_scheduler_type="constant",
            use_cpu=True,
            save_strategy="no",
            logging_strategy="no",
            report_to=[],
            disable_tqdm=True,
        )
        for task in stream:
            module.task = task.number
            Trainer(module, args, train_dataset=rows(task.train), callbacks=[guarding]).train()
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
    torch.set_num_threads(1)
    known = train()
    print("after five tasks:", ", ".join(f"{each:.1%}" for each in known))
    picture(known)
