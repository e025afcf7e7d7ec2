"""Training killed at random steps and resumed ends with the same bits: weights and guard, in each trainer."""

from __future__ import annotations

import gc
import logging
import os
import random
import signal
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector
from torch.utils.data import DataLoader, TensorDataset

import rwalk
from processes import Child

pl = pytest.importorskip("lightning.pytorch")
transformers = pytest.importorskip("transformers")
accelerate = pytest.importorskip("accelerate")

from rwalk.integrations import huggingface, lightning  # noqa: E402

STEPS, SAVE = 12, 2
ANCHOR, BUDGET = rwalk.Anchor(every=2, batch=4), 0.002  # a budget that raises the weight, three batches in turn
Ended = tuple[Tensor, dict[str, Any]]
Run = Callable[[Path, bool, int | None], Ended]  # the folder, whether to resume, the step to be killed in


class Model(nn.Module):
    """With dropout, so that random numbers have to be right as well."""

    def __init__(self, dropout: float = 0.2) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.Dropout(dropout), nn.Linear(16, 3))

    def forward(self, x: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        logits = self.net(x)
        return (
            {"logits": logits} if labels is None else {"loss": F.cross_entropy(logits, labels), "logits": logits}
        )


def rows() -> TensorDataset:
    generator = torch.Generator().manual_seed(1)
    return TensorDataset(torch.randn(24, 6, generator=generator), torch.randint(3, (24,), generator=generator))


def known() -> dict[str, Tensor]:
    return {"x": torch.randn(12, 6, generator=torch.Generator().manual_seed(2))}


def ended(model: nn.Module, guard: rwalk.Guard | None) -> Ended:
    assert guard is not None and guard.last_report is not None
    assert guard.last_report.steps == STEPS
    tensors = [*model.parameters(), *(buffer.float() for buffer in model.buffers())]
    return parameters_to_vector(tensors).detach(), {
        "guard": guard.state_dict(probes=True),
        "report": guard.last_report.to_dict(),
    }


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


# The loops


def plain(folder: Path, resume: bool, kill: int | None) -> Ended:
    model = Model()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    start = 0
    if resume and (folder / "last.pt").exists():
        saved = torch.load(folder / "last.pt")
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        torch.set_rng_state(saved["random"])
        start = saved["step"]
        guard = rwalk.Guard.load(saved["guard"], model, optimizer, probes=known())
    else:
        guard = rwalk.Guard(model, optimizer, ANCHOR, probes=known(), budget=BUDGET)
    x, y = rows().tensors
    for step in range(start, STEPS):
        batch = torch.randperm(24)[:8]
        model(x[batch], y[batch])["loss"].backward()
        if step == kill:
            die()
        optimizer.step()
        optimizer.zero_grad()
        if (step + 1) % SAVE == 0:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step + 1}
            state |= {"guard": guard.state_dict(), "random": torch.get_rng_state()}
            torch.save(state, folder / "new.pt")
            (folder / "new.pt").replace(folder / "last.pt")
    guard.finish()
    return ended(model, guard)


def accelerated(folder: Path, resume: bool, kill: int | None) -> Ended:
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2)
    model = Model()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    model, optimizer = accelerator.prepare(model, optimizer)
    guard = rwalk.Guard(model, optimizer, ANCHOR, probes=known(), budget=BUDGET)
    accelerator.register_for_checkpointing(guard)
    start = 0
    if resume and (found := sorted(folder.glob("done-*"))):
        accelerator.load_state(str(found[-1]))
        start = int(found[-1].name.removeprefix("done-"))
    x, y = rows().tensors
    for step in range(start, 2 * STEPS):
        with accelerator.accumulate(model):
            batch = torch.randperm(24)[:8]
            accelerator.backward(model(x[batch], y[batch])["loss"])
            if step == kill:
                die()
            optimizer.step()
            optimizer.zero_grad()
        if (step + 1) % (2 * SAVE) == 0:
            accelerator.save_state(str(folder / "new"))
            (folder / "new").rename(folder / f"done-{step + 1:04d}")
    guard.finish()
    return ended(model, guard)


class Killer(transformers.TrainerCallback):  # type: ignore[misc, name-defined]
    def __init__(self, step: int | None) -> None:
        self.step = step

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **trained: Any) -> None:
        if state.global_step == self.step:
            die()


def arguments(kind: Any, folder: Path, **options: Any) -> Any:
    return kind(
        output_dir=str(folder), max_steps=STEPS, per_device_train_batch_size=4, gradient_accumulation_steps=2,
        learning_rate=0.02, use_cpu=True, report_to=[], disable_tqdm=True, logging_strategy="no",
        save_strategy="steps", save_steps=SAVE, **options,
    )  # fmt: skip


def trained(trainer: Any, folder: Path, resume: bool) -> None:
    trainer.train(resume_from_checkpoint=True if resume and list(folder.glob("checkpoint-*")) else None)


def hugging_face(folder: Path, resume: bool, kill: int | None, method: Any = None) -> Ended:
    model = Model()
    options = {"method": ANCHOR, "budget": BUDGET} if method is None else {"method": method}
    guarding = huggingface.GuardCallback(probes=known(), **options)
    data = [{"x": x, "labels": y} for x, y in rows()]
    args = arguments(transformers.TrainingArguments, folder)
    trainer = transformers.Trainer(model, args, train_dataset=data, callbacks=[guarding, Killer(kill)])
    trained(trainer, folder, resume)
    return ended(model, guarding.guard)


def tokenizer() -> Any:
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers

    words = Tokenizer(models.WordLevel({chr(n): n for n in range(128)}, unk_token=chr(0)))
    words.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    marks = {"bos_token": chr(1), "eos_token": chr(2), "pad_token": chr(2)}
    return transformers.PreTrainedTokenizerFast(tokenizer_object=words, **marks)


def trl_sft(folder: Path, resume: bool, kill: int | None) -> Ended:
    """The supervised trainer of TRL, with adapters, which alone are in its checkpoints, and own samples."""
    trl = pytest.importorskip("trl")
    datasets = pytest.importorskip("datasets")
    peft = pytest.importorskip("peft")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=128, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=512, bos_token_id=1, eos_token_id=2, pad_token_id=2,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config)
    guarding = huggingface.GuardCallback(rwalk.Anchor(every=2), probes="own-samples", budget=1e-7)
    data = datasets.Dataset.from_dict({"text": [word * 3 for word in ("abcd", "bcde", "cdef", "defg") * 6]})
    trainer = trl.SFTTrainer(
        model, arguments(trl.SFTConfig, folder, max_length=16, bf16=False), train_dataset=data,
        processing_class=tokenizer(), callbacks=[guarding, Killer(kill)],
        peft_config=peft.LoraConfig(r=2, lora_alpha=8, lora_dropout=0.1, target_modules="all-linear"),
    )  # fmt: skip
    trained(trainer, folder, resume)
    return ended(trainer.model, guarding.guard)


class Lit(pl.LightningModule):  # type: ignore[misc, name-defined]
    """Without dropout: Lightning does not put random numbers back."""

    def __init__(self) -> None:
        super().__init__()
        self.model = Model(dropout=0.0)

    def forward(self, **batch: Tensor) -> Any:
        return self.model(**batch)

    def training_step(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        loss: Tensor = self.model(*batch)["loss"]
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=0.02)


class Kill(pl.Callback):  # type: ignore[misc, name-defined]
    def __init__(self, step: int | None) -> None:
        self.step = step

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        if trainer.global_step == self.step:
            die()


def fitted(folder: Path, resume: bool, kill: int | None) -> Ended:
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    module = Lit()
    guarding = lightning.GuardCallback(ANCHOR, probes=known(), budget=BUDGET)
    saving = pl.callbacks.ModelCheckpoint(folder, "{step:04d}", every_n_train_steps=SAVE, save_top_k=-1)
    trainer = pl.Trainer(
        max_steps=STEPS, max_epochs=-1, callbacks=[guarding, saving, Kill(kill)], accelerator="cpu", logger=False,
        enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    found = sorted(folder.glob("*.ckpt"))
    loader = DataLoader(rows(), batch_size=24)
    trainer.fit(module, loader, ckpt_path=str(found[-1]) if resume and found else None)
    return ended(module, guarding.guard)


RUNS: dict[str, Run] = {
    "plain": plain,
    "accelerate": accelerated,
    "huggingface": hugging_face,
    "huggingface-rwalk": partial(hugging_face, method=rwalk.RWalk(dt=5)),
    "trl": trl_sft,
    "lightning": fitted,
}


# Killed, resumed, compared


@pytest.fixture(autouse=True, scope="module")
def quick_garbage_collection() -> Iterator[None]:
    """Hugging Face's Trainer collects garbage whenever it starts: not among all modules imported so far."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(autouse=True)
def small_and_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("rwalk.guard.drift.probes.OWN", 8)
    monkeypatch.setattr("rwalk.guard.drift.probes.OWN_TOKENS", 8)


def killed(run: Run, folder: Path, resume: bool, step: int) -> None:
    """In a process of its own, which kills itself within a step."""
    child = Child(lambda: run(folder, resume, step), folder.with_suffix(".txt"))
    assert child.result() == -signal.SIGKILL, child.said()


def assert_equal(mine: Any, theirs: Any, at: str = "") -> None:
    assert type(mine) is type(theirs), at
    if isinstance(theirs, Tensor):
        assert mine.dtype == theirs.dtype and torch.equal(mine, theirs), at
    elif isinstance(theirs, Mapping):
        assert mine.keys() == theirs.keys(), at
        for key, value in theirs.items():
            assert_equal(mine[key], value, f"{at}/{key}")
    elif isinstance(theirs, list | tuple):
        assert len(mine) == len(theirs), at
        for number, value in enumerate(theirs):
            assert_equal(mine[number], value, f"{at}/{number}")
    else:
        assert mine == theirs, at


def check(name: str, folder: Path, kills: int) -> None:
    """One run killed at as many random steps, each time resumed, and one that is left alone."""
    run = RUNS[name]
    (folder / "alone").mkdir()
    (folder / "killed").mkdir()
    alone = run(folder / "alone", False, None)
    last = 2 * STEPS if name == "accelerate" else STEPS
    # In order, so that every resumed run gets as far as its own kill.
    for number, step in enumerate(sorted(random.Random(name).sample(range(last), kills))):
        killed(run, folder / "killed", number > 0, step)
    weights, guard = run(folder / "killed", True, None)
    assert torch.equal(weights, alone[0])
    assert_equal(guard, alone[1])


@pytest.mark.parametrize("name", RUNS)
def test_run_killed_at_two_random_steps_ends_with_the_same_bits(name: str, tmp_path: Path) -> None:
    check(name, tmp_path, 2)


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_run_killed_at_ten_random_steps_ends_with_the_same_bits(name: str, tmp_path: Path) -> None:
    check(name, tmp_path, 10)
