"""The callbacks in the real trainers give the numbers of the plain loop; the examples run and remember."""

from __future__ import annotations

import contextlib
import gc
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

import rwalk
from rwalk.errors import InputError
from rwalk.guard import Guard
from rwalk.methods import EWC, Method, RWalk

pl = pytest.importorskip("lightning.pytorch")
transformers = pytest.importorskip("transformers")

from rwalk.integrations import huggingface, lightning  # noqa: E402

STEPS, CLIP, RATE = 10, 0.1, 0.02
METHODS: list[Method] = [RWalk(lam=5.0, dt=3), EWC(lam=50.0)]
EVERY_METHOD = pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)


@pytest.fixture(autouse=True, scope="module")
def quick_garbage_collection() -> Iterator[None]:
    """Hugging Face's Trainer collects garbage whenever it starts: not among all modules imported so far."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(autouse=True)
def quiet_and_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Trainers talk, and write where they stand."""
    monkeypatch.chdir(tmp_path)
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class Model(nn.Module):
    """A model for Hugging Face: called with a batch's columns, returning the loss."""

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
        disable_tqdm=True,
        **{"save_strategy": "no", "logging_strategy": "no", "report_to": [], **options},
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


# Both, with probes


def known() -> Tensor:
    return task(0).tensors[0]


def logits(model: Any, x: Tensor) -> Tensor:
    found: Tensor = getattr(model, "model", model).net(x)
    return found


def probes() -> rwalk.Probes:
    return rwalk.Probes(known(), call=logits)


@pytest.mark.parametrize("callback", [lightning.GuardCallback, huggingface.GuardCallback])
@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "give|needs something to hold the model by: probes="),
        ({"method": EWC()}, "give losses=lambda model"),
        ({"method": "ewc"}, "give losses=lambda model"),
        ({"probes": torch.zeros(1), "bugdet": 0.05}, "no option 'bugdet'"),
        ({"probes": rwalk.Probes(torch.zeros(1)), "outputs": "logits"}, "to rwalk.Probes"),
    ],
)
def test_callback_that_could_hold_nothing_is_refused_when_made(callback: Any, given: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        callback(**given)


def test_huggingface_metrics_reach_tensorboard_as_read_at_the_pull(tmp_path: Path) -> None:
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    guarding = huggingface.GuardCallback(rwalk.Anchor(every=2), probes=probes(), budget=0.01)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path / "logs"))
        options = {"logging_strategy": "steps", "logging_steps": 2, "report_to": ["tensorboard"]}
        trainer = huggingface_trainer(Model(), guarding, 1, tmp_path, **options)
        trainer.train()
    events = reader.EventAccumulator(str(tmp_path / "logs"))
    events.Reload()
    assert guarding.guard is not None and guarding.guard.last_report is not None
    readings = guarding.guard.last_report.readings
    assert len(readings) == STEPS / 2
    logged = [event.value for event in events.Scalars("train/guard/drift")]
    assert logged == pytest.approx([reading.drift for reading in readings], rel=1e-6)
    history = [entry["guard/drift"] for entry in trainer.state.log_history if "loss" in entry]
    assert history == [reading.drift for reading in readings]


def test_lightning_logs_drift() -> None:
    guarding = lightning.GuardCallback(rwalk.Anchor(every=1), probes=probes())
    trainer = lightning_trainer(guarding)
    trainer.log_every_n_steps = 1
    trainer.fit(Lit(), loader(1))
    assert guarding.guard is not None and guarding.guard.last_report is not None
    assert trainer.callback_metrics["guard/drift"] == guarding.guard.last_report.readings[-1].drift > 0


def run_huggingface(guarding: Any, model: Model, number: int, folder: Path) -> None:
    huggingface_trainer(model, guarding, number, folder).train()


def run_lightning(guarding: Any, model: Lit, number: int, folder: Path) -> None:
    lightning_trainer(guarding).fit(model, loader(number))


BOTH = pytest.mark.parametrize(
    ("callback", "make", "run"),
    [(huggingface.GuardCallback, Model, run_huggingface), (lightning.GuardCallback, Lit, run_lightning)],
    ids=["huggingface", "lightning"],
)


@BOTH
def test_last_report_is_from_before_the_task_was_consolidated(
    callback: Any, make: Any, run: Any, tmp_path: Path
) -> None:
    guarding = callback(rwalk.Anchor(every=4), probes=probes())
    run(guarding, make(), 1, tmp_path)
    report = guarding.guard.last_report
    assert report.steps == STEPS and report.drift > 0
    assert guarding.guard.drift() == 0


@BOTH
def test_model_trains_without_guard_after_the_trainer_is_done(
    callback: Any, make: Any, run: Any, tmp_path: Path
) -> None:
    model = make()
    guarding = callback("rwalk")
    run(guarding, model, 0, tmp_path)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    getattr(model, "model", model)(*task(1).tensors)["loss"].backward()
    optimizer.step()
    assert (guarding.guard.tasks, guarding.guard.steps) == (1, 0)


@BOTH
def test_one_callback_over_fresh_models_starts_a_guard_for_each(
    callback: Any, make: Any, run: Any, tmp_path: Path
) -> None:
    """As in cross-validation: the guard of a fold does not depend on the folds before it."""
    guarding = callback(rwalk.Anchor(every=2), probes=probes())
    found = []
    for fold in range(3):
        model = make()
        with contextlib.nullcontext() if fold == 0 else pytest.warns(UserWarning, match="a new guard begins"):
            run(guarding, model, 1, tmp_path)
        found.append((parameters_to_vector(model.parameters()).detach(), guarding.guard.tasks))
    for theta, tasks in found:
        assert tasks == found[0][1]
        torch.testing.assert_close(theta, found[0][0], rtol=0, atol=0)


@BOTH
def test_model_read_again_from_its_weights_continues_as_the_next_task(
    callback: Any, make: Any, run: Any, tmp_path: Path
) -> None:
    guarding, model = callback("rwalk"), make()
    run(guarding, model, 0, tmp_path)
    again = make()
    again.load_state_dict(model.state_dict())
    run(guarding, again, 1, tmp_path)
    assert guarding.guard.tasks == 2


@BOTH
def test_load_keeps_method_and_options_of_the_file(callback: Any, make: Any, run: Any, tmp_path: Path) -> None:
    first = callback(rwalk.Anchor(weight=0.5, every=3), probes=probes(), budget=0.02, params="*net.0*")
    model = make()
    run(first, model, 1, tmp_path)
    first.guard.save(tmp_path / "skills.safetensors")
    again = callback(load=tmp_path / "skills.safetensors", probes=probes())
    run(again, model, 2, tmp_path)
    assert again.guard._anchor == rwalk.Anchor(weight=0.5, every=3)
    assert again.guard.budget == 0.02 and again.guard.names == first.guard.names
    assert again.guard.tasks == first.guard.tasks + 1


def test_huggingface_writes_the_consolidated_guard_where_training_ended(tmp_path: Path) -> None:
    """The last checkpoint's file is from within the task, for resuming; the one beside it is for the next task."""
    model, folder = Model(), tmp_path / "out"
    guarding = huggingface.GuardCallback(METHODS[0])
    huggingface_trainer(model, guarding, 0, folder, save_strategy="steps", save_steps=STEPS).train()
    with pytest.warns(UserWarning, match="saved within a task"):
        early = huggingface.GuardCallback(load=folder / f"checkpoint-{STEPS}")
        huggingface_trainer(model, early, 1, tmp_path / "early").train()

    model = Model()
    guarding = huggingface.GuardCallback(METHODS[0])
    huggingface_trainer(model, guarding, 0, folder, save_strategy="steps", save_steps=STEPS).train()
    guarding = huggingface.GuardCallback(load=folder)
    huggingface_trainer(model, guarding, 1, tmp_path / "next").train()
    assert_same(model, guarding.guard, METHODS[0], torch.optim.AdamW)


def test_huggingface_finished_checkpoint_resumed_ends_as_it_did(tmp_path: Path) -> None:
    """Nothing is left to train, and the task is consolidated once."""
    options = {"save_strategy": "steps", "save_steps": STEPS}
    model, guarding = Model(), huggingface.GuardCallback(METHODS[0])
    huggingface_trainer(model, guarding, 0, tmp_path, **options).train()
    again, resumed = Model(), huggingface.GuardCallback(METHODS[0])
    huggingface_trainer(again, resumed, 0, tmp_path, **options).train(resume_from_checkpoint=True)
    assert resumed.guard is not None and guarding.guard is not None
    assert resumed.guard.tasks == 1
    mine, theirs = (each.guard.state_dict()["tensors"] for each in (resumed, guarding))
    assert all(torch.equal(mine[name], vector) for name, vector in theirs.items())


def test_huggingface_resumed_from_a_checkpoint_without_guard_is_refused(tmp_path: Path) -> None:
    options = {"save_strategy": "steps", "save_steps": 4}
    trainer = huggingface_trainer(Model(), transformers.TrainerCallback(), 0, tmp_path, **options)
    trainer.train()
    guarding = huggingface.GuardCallback(probes=probes())
    with pytest.raises(InputError, match=r"checkpoint-8 has no guard.safetensors.*delete the folder and resume"):
        huggingface_trainer(Model(), guarding, 0, tmp_path, **options).train(
            resume_from_checkpoint=str(tmp_path / "checkpoint-8")
        )


def test_huggingface_resumed_from_another_folder_takes_the_guard_there(tmp_path: Path) -> None:
    """Another run's checkpoint of the same step lies in output_dir: it must not be taken."""
    options = {"save_strategy": "steps", "save_steps": 4}
    for name, weight in (("mine", 0.5), ("other", 2.0)):
        guarding = huggingface.GuardCallback(rwalk.Anchor(weight), probes=probes())
        huggingface_trainer(Model(), guarding, 1, tmp_path / name, **options).train()
    guarding = huggingface.GuardCallback(probes=probes())
    trainer = huggingface_trainer(Model(), guarding, 1, tmp_path / "other", **options)
    trainer.train(resume_from_checkpoint=str(tmp_path / "mine" / "checkpoint-4"))
    assert guarding.guard is not None and guarding.guard._anchor == rwalk.Anchor(0.5)


def test_lightning_resumed_from_a_checkpoint_without_guard_is_refused(tmp_path: Path) -> None:
    trainer = lightning_trainer(pl.Callback())
    trainer.fit(Lit(), loader(0))
    trainer.save_checkpoint(tmp_path / "last.ckpt")
    with pytest.raises(InputError, match="its checkpoint holds no guard"):
        lightning_trainer(lightning.GuardCallback(probes=probes()), 2 * STEPS).fit(
            Lit(), loader(0), ckpt_path=tmp_path / "last.ckpt"
        )


def test_lightning_checkpoint_read_for_testing_does_not_change_the_next_fit(tmp_path: Path) -> None:
    class Tested(Lit):
        def test_step(self, batch: tuple[Tensor, Tensor]) -> None:
            self.model(*batch)

    guarding = lightning.GuardCallback("rwalk")
    trainer = lightning_trainer(guarding)
    trainer.fit(Tested(), loader(0))
    trainer.save_checkpoint(tmp_path / "last.ckpt")
    fresh = lightning.GuardCallback("rwalk")
    trainer = lightning_trainer(fresh)
    trainer.test(Tested(), loader(0), ckpt_path=tmp_path / "last.ckpt", verbose=False)
    lightning_trainer(fresh).fit(Tested(), loader(0))
    assert fresh.guard is not None and fresh.guard.tasks == 1


# Lightning: manual optimisation, two optimizers, precision plugins


class Two(Lit):
    """Manual optimisation with an optimizer for the trunk and one for the head."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch: tuple[Tensor, Tensor]) -> None:
        loss = self.model(*batch)["loss"]
        optimizers = self.optimizers()
        self.manual_backward(loss)
        for optimizer in optimizers if isinstance(optimizers, list) else [optimizers]:
            optimizer.step()
            optimizer.zero_grad()

    def configure_optimizers(self) -> Any:
        trunk, _, head = self.model.net
        return [torch.optim.Adam(trunk.parameters(), lr=RATE), torch.optim.SGD(head.parameters(), lr=RATE)]


class Manual(Two):
    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.parameters(), lr=RATE)


def manual_trainer(*callbacks: Any, **options: Any) -> Any:
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    return pl.Trainer(
        max_epochs=STEPS, callbacks=list(callbacks), accelerator="cpu", enable_model_summary=False,
        **{"precision": "64-true", **quiet, **options},
    )  # fmt: skip


def plain_loop(module: Any, make: Callable[[Any], list[tuple[Any, Any]]]) -> Tensor:
    """The same steps without Lightning; `make` returns optimizers, each with the guard of it that lives on."""
    pairs = make(module)
    for _ in range(STEPS):
        for x, y in loader(1):
            module.model(x, y)["loss"].backward()
            for optimizer, _ in pairs:
                optimizer.step()
                optimizer.zero_grad()
    return parameters_to_vector(module.parameters()).detach()


def test_lightning_manual_optimisation_does_what_the_plain_loop_does() -> None:
    guarding, module = lightning.GuardCallback(rwalk.Anchor(every=2), probes=probes()), Manual()
    manual_trainer(guarding).fit(module, loader(1))

    def make(module: Any) -> list[tuple[Any, Any]]:
        optimizer = module.configure_optimizers()
        return [(optimizer, Guard(module, optimizer, rwalk.Anchor(every=2), probes=probes()))]

    assert torch.equal(parameters_to_vector(module.parameters()), plain_loop(Manual(), make))


def test_lightning_two_optimizers_take_a_callback_each() -> None:
    patterns = ["*net.0*", "*net.2*"]
    callbacks = [
        lightning.GuardCallback(rwalk.Anchor(every=2), probes=probes(), params=pattern) for pattern in patterns
    ]
    module = Two()
    trainer = manual_trainer(*callbacks)
    trainer.log_every_n_steps = 1
    trainer.fit(module, loader(1))
    assert [len(each.guard.names) for each in callbacks if each.guard] == [2, 2]

    def make(module: Any) -> list[tuple[Any, Any]]:
        return [
            (optimizer, Guard(module, optimizer, rwalk.Anchor(every=2), probes=probes(), params=pattern))
            for optimizer, pattern in zip(module.configure_optimizers(), patterns, strict=True)
        ]

    assert torch.equal(parameters_to_vector(module.parameters()), plain_loop(Two(), make))


def test_lightning_two_optimizers_under_one_callback_are_refused() -> None:
    with pytest.raises(InputError, match="2 of 2 optimizers hold the parameters to guard: give params="):
        manual_trainer(lightning.GuardCallback("rwalk")).fit(Two(), loader(1))


@pytest.mark.parametrize("precision", ["32-true", "64-true", "bf16-true", "bf16-mixed"])
def test_lightning_probes_are_called_in_the_trainers_precision(precision: Any) -> None:
    seen = []

    def call(model: Any, x: Tensor) -> Tensor:
        outputs = model.model.net(x)
        seen.append((x.dtype, outputs.dtype))
        return outputs

    module = Lit().float()
    guarding = lightning.GuardCallback(
        rwalk.Anchor(every=2), probes=rwalk.Probes(known().float(), call=call), budget=0.5
    )
    rows = TensorDataset(task(1).tensors[0].float(), task(1).tensors[1])
    trainer = manual_trainer(guarding, precision=precision)
    trainer.fit(module, DataLoader(rows, batch_size=8))
    assert guarding.guard is not None and guarding.guard.last_report is not None
    assert guarding.guard.last_report.drift is not None and 0 < guarding.guard.last_report.drift < 0.5
    bf16, f32 = torch.bfloat16, torch.float32
    expected = {"bf16-true": (bf16, bf16), "bf16-mixed": (f32, bf16), "64-true": (torch.float64,) * 2}
    assert set(seen) == {expected.get(precision, (f32, f32))}


# Hugging Face: language models, own samples


def hide_logits(model: Any, args: Any, output: Any) -> None:
    """As fused heads do it: no logits while training."""
    if model.training:
        output.logits = None


def language_model() -> Any:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=64, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=512, bos_token_id=1, eos_token_id=2, pad_token_id=2,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config)


def texts() -> list[dict[str, Tensor]]:
    ids = torch.randint(3, 64, (8, 6), generator=torch.Generator().manual_seed(0))
    return [{"input_ids": row, "labels": row} for row in ids]


def language_trainer(model: Any, guarding: Any, folder: Path, steps: int = 4) -> Any:
    arguments = transformers.TrainingArguments(
        output_dir=str(folder), max_steps=steps, per_device_train_batch_size=4, learning_rate=1e-2, use_cpu=True,
        report_to=[], disable_tqdm=True, logging_strategy="no", save_strategy="steps", save_steps=2,
    )  # fmt: skip
    return transformers.Trainer(model, arguments, train_dataset=texts(), callbacks=[guarding])


def test_huggingface_own_samples_are_drawn_once_and_come_from_the_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rwalk.guard.drift.probes.OWN", 4)
    monkeypatch.setattr("rwalk.guard.drift.probes.OWN_TOKENS", 8)
    guarding = huggingface.GuardCallback(rwalk.Anchor(every=2), probes="own-samples")
    assert guarding.guard is None
    model = language_model()
    fresh = rwalk.own_samples(model, None, 4, 8)["input_ids"]
    language_trainer(model, guarding, tmp_path).train()
    assert guarding.guard is not None
    drawn = torch.cat([batch["input_ids"] for batch in guarding.guard._sets[0].batches])
    assert torch.equal(drawn, fresh)

    resumed = huggingface.GuardCallback(rwalk.Anchor(every=2), probes="own-samples")
    trainer = language_trainer(language_model(), resumed, tmp_path)
    trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert resumed.guard is not None
    assert torch.equal(torch.cat([batch["input_ids"] for batch in resumed.guard._sets[0].batches]), drawn)
    for name, parameter in trainer.model.named_parameters():
        assert torch.equal(parameter, model.get_parameter(name)), name


def test_huggingface_model_without_logits_in_training_is_held_by_those_of_eval_mode(tmp_path: Path) -> None:
    found = []
    for hidden in (False, True):
        model = language_model()
        if hidden:
            model.register_forward_hook(hide_logits)
        probes = {"input_ids": torch.randint(3, 64, (4, 6), generator=torch.Generator().manual_seed(1))}
        guarding = huggingface.GuardCallback(rwalk.Anchor(every=2), probes=probes)
        language_trainer(model, guarding, tmp_path / str(hidden)).train()
        assert guarding.guard is not None and guarding.guard.last_report is not None
        assert guarding.guard.last_report.readings[-1].drift > 0
        found.append(parameters_to_vector(model.parameters()).detach())
    assert torch.equal(*found)


# The examples


@pytest.fixture
def examples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parent.parent / "examples")


@pytest.mark.usefixtures("examples")
@pytest.mark.parametrize("name", ["guard_lightning", "guard_huggingface", "guard_accelerate"])
def test_example_in_a_trainer_keeps_the_old_digits(name: str) -> None:
    found = importlib.import_module(name).compare()
    (forgotten, alone), (old, new) = found["no guard"], found["guard"]
    assert forgotten < 0.1 and alone > 0.9
    assert old > 0.8 and new > 0.85
    assert found.get("resumed", found["guard"]) == found["guard"]


@pytest.mark.usefixtures("examples")
def test_example_with_adapters_in_trl_keeps_the_old_texts() -> None:
    pytest.importorskip("trl")
    found = importlib.import_module("guard_trl").compare()
    (forgotten, alone), (old, new) = found["no guard"], found["guard"]
    assert forgotten > 2 and old < forgotten / 4
    assert max(alone, new) < 2


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
