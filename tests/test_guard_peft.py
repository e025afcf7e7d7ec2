"""Guard with adapters (PEFT) and in TRL's trainer, through the same callback as in Hugging Face's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import rwalk

pytestmark = pytest.mark.slow  # for what these libraries take to be imported
peft = pytest.importorskip("peft")
transformers = pytest.importorskip("transformers")


def tiny_model() -> Any:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=128, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=64, bos_token_id=1, eos_token_id=2, pad_token_id=2,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config)


def adapted(model: Any) -> Any:
    return peft.get_peft_model(model, peft.LoraConfig(r=4, lora_alpha=8, target_modules="all-linear"))


def tokenizer() -> Any:
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers

    words = Tokenizer(models.WordLevel({chr(n): n for n in range(128)}, unk_token=chr(0)))
    words.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    marks = {"bos_token": chr(1), "eos_token": chr(2), "pad_token": chr(2)}
    return transformers.PreTrainedTokenizerFast(tokenizer_object=words, **marks)


def trained(model: Any, guarded: Any) -> rwalk.Guard:
    """Adapters learn to count, from a random base; the guard is that of their optimizer."""
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=2e-2)
    guard: rwalk.Guard = guarded(optimizer)
    ids = 5 + torch.arange(12).repeat(4, 1)
    for _ in range(60):
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return guard


def test_a_budget_is_held_by_adapters_alone() -> None:
    """The base is frozen: what the guard holds, and what drifts, is the adapters' doing."""
    probes = torch.randint(3, 100, (16, 12), generator=torch.Generator().manual_seed(0))
    base = tiny_model()
    base.lm_head.weight.data *= 20  # so that it has something to say
    model = adapted(base)
    start = {name: p.detach().clone() for name, p in model.named_parameters()}
    options: dict[str, Any] = {"probes": probes, "params": "*lora_*", "every": 1}
    free = trained(model, lambda optimizer: rwalk.Guard(model, optimizer, "vanilla", **options))
    assert free.drift() > 0.02
    free.detach()
    for method in ("ewc", "anchor"):
        model.load_state_dict(start, strict=False)
        held = trained(model, lambda optimizer, m=method: rwalk.Guard(model, optimizer, m, budget=0.01, **options))
        assert len(held.names) == {"ewc": 14, "anchor": 28}[method]  # seven matrices, or factors, in two layers
        assert 0.8 * 0.01 <= held.drift() <= 1.2 * 0.01
        held.detach()
    moved = [name for name, p in model.named_parameters() if not torch.equal(p, start[name])]
    assert moved and all("lora_" in name for name in moved)


def test_trls_trainer_guards_adapters_and_logs_what_is_held(tmp_path: Path) -> None:
    trl = pytest.importorskip("trl")
    datasets = pytest.importorskip("datasets")
    from rwalk.integrations.huggingface import GuardCallback

    model = tiny_model()
    probes = rwalk.own_samples(model, 1, 8, tokens=8)
    guarding = GuardCallback(rwalk.Anchor(), params="*lora_*", budget=0.01, probes=probes, every=1)
    words = datasets.Dataset.from_dict({"text": ["le chien et le chat vont dans la maison"] * 64})
    options = trl.SFTConfig(
        output_dir=str(tmp_path), max_steps=40, per_device_train_batch_size=4, learning_rate=1e-2, use_cpu=True,
        logging_steps=5, report_to=[], save_strategy="no", max_length=32, bf16=False,
    )  # fmt: skip
    trainer = trl.SFTTrainer(
        model, options, train_dataset=words, processing_class=tokenizer(), callbacks=[guarding],
        peft_config=peft.LoraConfig(r=4, lora_alpha=8, target_modules="all-linear"),
    )  # fmt: skip
    trainer.train()
    logged = [entry for entry in trainer.state.log_history if "guard/drift" in entry]
    assert len(logged) == 8
    assert logged[-1]["loss"] < logged[0]["loss"] and logged[-1]["guard/drift"] <= 1.2 * 0.01
