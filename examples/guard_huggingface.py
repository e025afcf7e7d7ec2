"""
Guard in the Hugging Face Trainer
=================================

A network trained on the digits 0 to 4 learns 5 to 9. The callback is all that is new, and a run that was stopped
resumes with the same lines.

.. code-block:: console

   $ pip install 'rwalk[huggingface]'
   $ python examples/guard_huggingface.py
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn
from transformers import Trainer, TrainingArguments

from rwalk.integrations.huggingface import GuardCallback

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
# A model that returns its loss
# -----------------------------


class Module(nn.Module):
    """Trainer calls a model with the columns of a batch, and takes the loss from its output."""

    def __init__(self) -> None:
        super().__init__()
        self.model = trained()

    def forward(self, x: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        logits = self.model(x)
        if labels is None:
            return {"logits": logits}
        return {"loss": F.cross_entropy(logits, labels), "logits": logits}


rows = [{"x": image, "labels": label} for image, label in zip(*new, strict=True)]

# %%
# One callback
# ------------


def train(folder: str, guarded: bool, resume: bool = False) -> tuple[Module, list[GuardCallback]]:
    module = Module()
    callbacks = [GuardCallback(probes={"x": probes})] if guarded else []
    args = TrainingArguments(
        output_dir=folder, max_steps=300, per_device_train_batch_size=32, learning_rate=3e-3, use_cpu=True,
        save_steps=100, logging_strategy="no", report_to=[], disable_tqdm=True, seed=0,
    )  # fmt: skip
    trainer = Trainer(module, args, train_dataset=rows, callbacks=callbacks)
    trainer.train(resume_from_checkpoint=resume or None)
    return module, callbacks


# %%
# Without a guard, with one, and resumed
# --------------------------------------
# Every checkpoint has a ``guard.safetensors``. With the last checkpoint gone, the resumed run starts at step 200
# and ends with the same weights, bit for bit.


def compare() -> dict[str, tuple[float, float]]:
    """The accuracies on old and new digits; they are printed as well."""
    found = {}
    with TemporaryDirectory() as folder:
        module, _ = train(folder, guarded=False)
        show("no guard", module.model)
        found["no guard"] = accuracies(module.model)
    with TemporaryDirectory() as folder:
        module, (guarding,) = train(folder, guarded=True)
        show("guard", module.model)
        found["guard"] = accuracies(module.model)
        assert guarding.guard is not None
        print(guarding.guard.last_report)
        (Path(folder) / "checkpoint-300").rename(Path(folder) / "gone")
        again, _ = train(folder, guarded=True, resume=True)
        same = all(map(torch.equal, module.parameters(), again.parameters()))
        print("resumed:", "the same weights" if same else "other weights")
        found["resumed"] = accuracies(again.model)
    return found


if __name__ == "__main__":
    torch.set_num_threads(1)
    compare()
