"""Guard with adapters (PEFT) and in TRL's trainers, through the same callback as in Hugging Face's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import rwalk
from test_guard_resume import quick_garbage_collection, tokenizer  # noqa: F401 - a fixture

peft = pytest.importorskip("peft")
transformers = pytest.importorskip("transformers")

from rwalk.integrations.huggingface import GuardCallback  # noqa: E402


def tiny_model() -> Any:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=128, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=64, bos_token_id=1, eos_token_id=2, pad_token_id=2,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config)
    model.lm_head.weight.data *= 20  # so that its predictions are not all alike
    return model


LORA = {"r": 4, "lora_alpha": 8, "target_modules": "all-linear", "task_type": "CAUSAL_LM"}


def adapted(model: Any) -> Any:
    return peft.get_peft_model(model, peft.LoraConfig(**LORA))


def known() -> dict[str, Tensor]:
    return {"input_ids": torch.randint(3, 100, (16, 12), generator=torch.Generator().manual_seed(0))}


def trained(model: Any, guard: rwalk.Guard) -> rwalk.Guard:
    """Adapters learn to count, from a random base."""
    ids = 5 + torch.arange(12).repeat(4, 1)
    for _ in range(16):
        model(input_ids=ids, labels=ids).loss.backward()
        guard.optimizer.step()
        guard.optimizer.zero_grad()
    return guard


def guarded(model: Any, *args: Any, **options: Any) -> rwalk.Guard:
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=2e-2)
    return rwalk.Guard(model, optimizer, *args, **options)


def test_adapters_take_state_of_their_own_size_by_default() -> None:
    """RWalk keeps six vectors per parameter at most: here of the factors, not of the weights that they adapt."""
    model = adapted(tiny_model())
    adapter = sum(p.nbytes for p in model.parameters() if p.requires_grad)
    guard = trained(model, guarded(model, "rwalk", params="*lora_*"))
    guard.consolidate()
    assert len(guard.names) == 28 and all("lora_" in name for name in guard.names)  # seven pairs in two layers
    assert guard.nbytes <= 6 * adapter
    guard.detach()


def test_budget_is_kept_by_adapters_alone() -> None:
    model = adapted(tiny_model())
    start = {name: p.detach().clone() for name, p in model.named_parameters()}
    free = trained(model, guarded(model, "vanilla", probes=known()))
    free.detach()
    assert free.drift() > 0.1
    model.load_state_dict(start, strict=False)
    held = guarded(model, probes=known(), budget=0.05)
    old = sum(p.nbytes for p in model.parameters() if p.requires_grad)
    assert held._reference is not None and held._reference.nbytes == old  # the base is frozen, and not copied
    report = trained(model, held).finish()
    assert report.drift is not None and 0 < report.drift <= 0.05
    moved = {name for name, p in model.named_parameters() if not torch.equal(p, start[name])}
    assert moved and all("lora_" in name for name in moved)


def merged_and_adapted_anew(model: Any) -> Any:
    return adapted(model.merge_and_unload())


def test_adapter_that_was_merged_leaves_the_way_back_to_the_next() -> None:
    """The old weights are now in the base, and the new adapter adds nothing: that is where rewind must lead."""
    model = adapted(tiny_model())
    guard = trained(model, guarded(model, probes=known(), budget=0.05))
    guard.consolidate()
    model = merged_and_adapted_anew(model)
    guard.attach(torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=2e-2), model)
    assert guard.drift() < 1e-6
    report = trained(model, guard).finish()
    assert report.drift is not None and 0 < report.drift <= 0.05


def test_adapter_that_was_thrown_away_is_told() -> None:
    model = adapted(tiny_model())
    guard = trained(model, guarded(model, "anchor", probes=known()))
    guard.consolidate()
    model = adapted(tiny_model())
    with pytest.warns(UserWarning, match="not where its last task left it .*merge an adapter"):
        guard.attach(torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=2e-2), model)
    guard.detach()


def test_factors_held_by_a_method_on_parameters_cannot_follow_a_merged_adapter() -> None:
    model = adapted(tiny_model())
    guard = trained(model, guarded(model, "rwalk", params="*lora_*"))
    guard.consolidate()
    model = merged_and_adapted_anew(model)
    with pytest.warns(UserWarning, match="adapters one after another need probes="):
        guard.attach(torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=2e-2), model)
    guard.detach()


# TRL


def settings(kind: Any, folder: Path, **options: Any) -> Any:
    return kind(
        output_dir=str(folder), per_device_train_batch_size=4, use_cpu=True, logging_steps=4, report_to=[],
        save_strategy="no", bf16=False, disable_tqdm=True, max_length=32, **options,
    )  # fmt: skip


def test_trls_supervised_trainer_holds_adapters_and_logs_drift(tmp_path: Path) -> None:
    """Its fused head makes no logits while training; the probes' pass does."""
    trl = pytest.importorskip("trl")
    datasets = pytest.importorskip("datasets")
    drifts = {}
    for weight in (1e-6, 1.0):
        guarding = GuardCallback(rwalk.Anchor(weight, every=2), probes=known())
        words = datasets.Dataset.from_dict({"text": ["le chien et le chat"] * 16})
        trainer = trl.SFTTrainer(
            tiny_model(), settings(trl.SFTConfig, tmp_path, max_steps=16, learning_rate=2e-2),
            train_dataset=words, processing_class=tokenizer(), callbacks=[guarding],
            peft_config=peft.LoraConfig(**LORA),
        )  # fmt: skip
        trainer.train()
        logged = [entry for entry in trainer.state.log_history if "guard/drift" in entry]
        assert len(logged) == 4 and logged[-1]["loss"] < logged[0]["loss"]
        assert guarding.guard is not None and guarding.guard.last_report is not None
        drifts[weight] = guarding.guard.last_report.drift
    assert drifts[1.0] < drifts[1e-6] / 2


@pytest.mark.parametrize(("adapters", "rate"), [(True, 1e-2), (False, 1e-3)])
def test_trls_preference_trainer_holds_the_model(adapters: bool, rate: float, tmp_path: Path) -> None:
    trl = pytest.importorskip("trl")
    datasets = pytest.importorskip("datasets")
    drifts = {}
    for weight in (1e-6, 1.0):
        guarding = GuardCallback(rwalk.Anchor(weight, every=2), probes=known())
        pairs = {"prompt": ["le chien "] * 16, "chosen": ["et le chat"] * 16, "rejected": ["dort bien"] * 16}
        trainer = trl.DPOTrainer(
            tiny_model(), ref_model=None if adapters else tiny_model(),
            args=settings(trl.DPOConfig, tmp_path, max_steps=8, learning_rate=rate),
            train_dataset=datasets.Dataset.from_dict(pairs), processing_class=tokenizer(), callbacks=[guarding],
            peft_config=peft.LoraConfig(**LORA) if adapters else None,
        )  # fmt: skip
        trainer.train()
        logged = [entry for entry in trainer.state.log_history if "guard/drift" in entry]
        assert len(logged) == 2 and logged[-1]["loss"] < logged[0]["loss"]
        assert guarding.guard is not None and guarding.guard.last_report is not None
        drifts[weight] = guarding.guard.last_report.drift
    assert drifts[1.0] < drifts[1e-6] / 2
