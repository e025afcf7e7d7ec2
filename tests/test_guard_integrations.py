"""The callbacks in the real trainers do what the plain loop does; the examples run and remember."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_, parameters_to_vector
from torch.utils.data import DataLoader, TensorDataset

from rwalk.errors import InputError
from rwalk.guard import Guard
from rwalk.methods import EWC, Method, RWalk

pl = pytest.importorskip("lightning.pytorch")
transformers = pytest.importorskip("transformers")

from rwalk.integrations import huggingface, lightning  # noqa: E402

STEPS, CLIP, RATE = 10, 0.1, 0.02
METHODS: list[Method] = [RWalk(lam=5.0, dt=3), EWC(lam=50.0)]
EVERY_METHOD = pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)


@pytest.fixture(autouse=True)
def quiet_and_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Trainers talk, and write where they stand."""
    monkeypatch.chdir(tmp_path)
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class Model(nn.Module):
    """As Hugging Face wants it: called with a batch's columns, returning the loss."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).double()

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        return {"loss": F.cross_entropy(self.net(x), labels)}


def task(number: int) -> TensorDataset:
    """Sixteen examples, always seen all together, so that no trainer's order matters."""
    generator = torch.Generator().manual_seed(number)
    return TensorDataset(
        torch.randn(16, 6, generator=generator).double(), torch.randint(3, (16,), generator=generator)
    )


def losses(number: int) -> Callable[[Any], Iterator[Tensor]]:
    return lambda model: (getattr(model, "model", model)(*each)["loss"] for each in [task(number).tensors])


def expected(method: Method, make: type[torch.optim.Optimizer], tasks: int = 2) -> tuple[Tensor, Guard]:
    """The plain loop, with clipping."""
    model, guard = Model(), None
    for number in range(tasks):
        optimizer = make(model.parameters(), lr=RATE, weight_decay=0.0)  # type: ignore[call-arg]
        if guard is None:
            guard = Guard(model, optimizer, method)
        guard.attach(optimizer)
        for _ in range(STEPS):
            model(*task(number).tensors)["loss"].backward()
            clip_grad_norm_(model.parameters(), CLIP)
            optimizer.step()
            optimizer.zero_grad()
        guard.consolidate(losses(number)(model) if method.data_pass else None)
    assert guard is not None
    return parameters_to_vector(model.parameters()).detach(), guard


def assert_same(model: nn.Module, guard: Guard | None, method: Method, make: type[torch.optim.Optimizer]) -> None:
    theta, alike = expected(method, make)
    assert guard is not None and guard.tasks == 2
    torch.testing.assert_close(parameters_to_vector(model.parameters()), theta, rtol=0, atol=1e-9)
    mine, theirs = (each.state_dict()["tensors"] for each in (guard, alike))
    for name, vector in theirs.items():
        torch.testing.assert_close(
            mine[name.replace("/", "/model.")] if isinstance(model, Lit) else mine[name], vector
        )


# Lightning: closures always, clipping inside them


class Lit(pl.LightningModule):  # type: ignore[misc, name-defined]
    def __init__(self) -> None:
        super().__init__()
        self.model = Model()

    def training_step(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        return self.model(*batch)["loss"]

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=RATE)


def lightning_trainer(guarding: lightning.GuardCallback, epochs: int = STEPS) -> Any:
    return pl.Trainer(
        max_epochs=epochs,
        callbacks=[guarding],
        accelerator="cpu",
        precision="64-true",
        gradient_clip_val=CLIP,
        accumulate_grad_batches=2,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )


def loader(number: int) -> DataLoader[tuple[Tensor, ...]]:
    return DataLoader(task(number), batch_size=8)


@EVERY_METHOD
def test_lightning_does_what_the_plain_loop_does(method: Method) -> None:
    model, current = Lit(), 0
    guarding = lightning.GuardCallback(
        method, losses=(lambda module: losses(current)(module)) if method.data_pass else None
    )
    for number in range(2):
        current = number
        lightning_trainer(guarding).fit(model, loader(number))
    assert_same(model, guarding.guard, method, torch.optim.Adam)


def test_a_resumed_fit_goes_on_with_its_guard(tmp_path: Path) -> None:
    method = METHODS[0]
    model, guarding = Lit(), lightning.GuardCallback(method)
    lightning_trainer(guarding).fit(model, loader(0))

    class Interrupted(pl.Callback):  # type: ignore[misc, name-defined]
        def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
            if trainer.current_epoch == 4:
                trainer.save_checkpoint(tmp_path / "last.ckpt")

    trainer = lightning_trainer(guarding)
    trainer.callbacks.append(Interrupted())
    trainer.fit(model, loader(1))

    model, guarding = Lit(), lightning.GuardCallback(method)
    lightning_trainer(guarding).fit(model, loader(1), ckpt_path=tmp_path / "last.ckpt")
    assert_same(model, guarding.guard, method, torch.optim.Adam)


# Hugging Face: Accelerate's optimizer around the real one, clipping before the step


def huggingface_trainer(model: Model, guarding: Any, number: int, folder: Path, **options: Any) -> Any:
    arguments = transformers.TrainingArguments(
        output_dir=str(folder),
        num_train_epochs=STEPS,
        per_device_train_batch_size=8,
        gradient_accumulation_steps=2,
        max_grad_norm=CLIP,
        learning_rate=RATE,
        lr_scheduler_type="constant",
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
        **{"save_strategy": "no", "logging_strategy": "no", **options},
    )
    rows = [{"x": x, "labels": y} for x, y in task(number)]
    return transformers.Trainer(model, arguments, train_dataset=rows, callbacks=[guarding])


@EVERY_METHOD
def test_hugging_face_does_what_the_plain_loop_does(method: Method, tmp_path: Path) -> None:
    model, current = Model(), 0
    guarding = huggingface.GuardCallback(
        method, losses=(lambda model: losses(current)(model)) if method.data_pass else None
    )
    for number in range(2):
        current = number
        huggingface_trainer(model, guarding, number, tmp_path).train()
    assert_same(model, guarding.guard, method, torch.optim.AdamW)


def test_a_checkpoint_holds_the_guard_to_resume_with(tmp_path: Path) -> None:
    method = METHODS[0]
    model, guarding = Model(), huggingface.GuardCallback(method)
    huggingface_trainer(model, guarding, 0, tmp_path / "0").train()
    huggingface_trainer(model, guarding, 1, tmp_path / "1", save_strategy="steps", save_steps=4).train()
    checkpoint = tmp_path / "1" / "checkpoint-4"

    model, guarding = Model(), huggingface.GuardCallback(method, load=checkpoint / huggingface.FILE)
    huggingface_trainer(model, guarding, 1, tmp_path / "1").train(resume_from_checkpoint=str(checkpoint))
    assert_same(model, guarding.guard, method, torch.optim.AdamW)


# Both


LOGGED = {"guard/lam", "guard/penalty", "guard/drift", "guard/pull"}


def probes(number: int) -> dict[str, Tensor]:
    x, y = task(number).tensors
    return {"x": x, "labels": y}


def predict(model: Any, batch: dict[str, Tensor]) -> Tensor:
    logits: Tensor = getattr(model, "model", model).net(batch["x"])
    return logits


def test_hugging_faces_logs_have_drift_and_lambda(tmp_path: Path) -> None:
    model = Model()
    guarding = huggingface.GuardCallback(METHODS[0], budget=0.01, probes=probes(0), predict=predict, every=1)
    options = {"logging_strategy": "steps", "logging_steps": 2}
    trainer = huggingface_trainer(model, guarding, 1, tmp_path, **options)
    trainer.train()
    logged = [entry for entry in trainer.state.log_history if "loss" in entry]
    assert len(logged) == 5 and all(entry.keys() >= LOGGED for entry in logged)
    assert guarding.guard is not None
    assert guarding.guard.report().readings[-1].drift == logged[-1]["guard/drift"]


def test_lightnings_logs_have_drift_and_lambda(tmp_path: Path) -> None:
    guarding = lightning.GuardCallback(METHODS[0], budget=0.01, probes=probes(0), predict=predict, every=1)
    trainer = lightning_trainer(guarding)
    trainer.log_every_n_steps = 1
    trainer.fit(Lit(), loader(1))
    assert trainer.callback_metrics.keys() >= LOGGED
    assert trainer.callback_metrics["guard/drift"] > 0


@pytest.mark.parametrize("callback", [lightning.GuardCallback, huggingface.GuardCallback])
def test_ewc_asks_for_losses_before_training(callback: Any) -> None:
    with pytest.raises(InputError, match="give losses=lambda model"):
        callback(EWC())


@pytest.fixture
def examples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parent.parent / "examples")


@pytest.mark.usefixtures("examples")
@pytest.mark.parametrize("name", ["guard_lightning", "guard_huggingface"])
def test_examples_remember_five_tasks(name: str) -> None:
    accuracies = importlib.import_module(name).train()
    assert len(accuracies) == 5 and sum(accuracies) / 5 > 0.95


@pytest.mark.usefixtures("examples")
def test_with_one_head_masks_and_old_examples_do_what_the_example_says() -> None:
    found = importlib.import_module("guard_one_head").compare(seeds=range(1))
    old = {key: accuracy for key, (accuracy, _) in found.items()}
    both = {key: (before + now) / 2 for key, (before, now) in found.items()}
    everything, own, replayed = dict.fromkeys(loop for loop, _ in found)
    assert old[everything, "without"] < 0.05 < old[everything, "Guard(RWalk)"] < 0.5
    assert old[own, "without"] + 0.05 < old[own, "Guard(RWalk)"]
    assert min(both[replayed, name] for name in ("without", "Guard(RWalk)")) > 0.9


@pytest.mark.slow
@pytest.mark.usefixtures("examples")
def test_a_guarded_loop_forgets_at_most_a_quarter() -> None:
    figures = importlib.import_module("guard_plain").compare()
    print(figures)
    (without, _), (guarded, known) = figures["without"], figures["Guard(RWalk)"]
    assert guarded <= without / 4
    assert known > 0.95
