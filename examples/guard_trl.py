"""
Guard in TRL's SFTTrainer, with adapters
========================================

A tiny language model is trained on one kind of text, and its adapter learns another. The probes are texts that the
model writes itself when training begins: no old data are needed.

.. code-block:: console

   $ pip install 'rwalk[huggingface,peft]' trl
   $ python examples/guard_trl.py
"""

from __future__ import annotations

from tempfile import TemporaryDirectory
from typing import Any

import torch
from datasets import Dataset
from peft import LoraConfig
from tokenizers import Regex, Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import SFTConfig, SFTTrainer

from rwalk.integrations.huggingface import GuardCallback

# %%
# A model that can count
# ----------------------
# One character is one token. The old texts count digits upwards, the new ones count downwards.

words = Tokenizer(models.WordLevel({chr(n): n for n in range(128)}, unk_token=chr(0)))
words.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, bos_token=chr(1), eos_token=chr(2), pad_token=chr(2))
old_texts = [chr(1) + "0123456789" * 3] * 16
new_texts = ["9876543210" * 3] * 64


def tokens(texts: list[str]) -> torch.Tensor:
    return torch.tensor(tokenizer(texts)["input_ids"])


def trained() -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=128, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
        max_position_embeddings=512, bos_token_id=1, eos_token_id=2, pad_token_id=2,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    optimizer = torch.optim.AdamW(model.parameters(), 5e-3)
    ids = tokens(old_texts)
    for _ in range(40):
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return model


@torch.no_grad()
def loss(model: Any, texts: list[str]) -> float:
    ids = tokens(texts[:4])
    return float(model(input_ids=ids, labels=ids).loss)


# %%
# One callback
# ------------


def compare() -> dict[str, tuple[float, float]]:
    """The losses on old and new texts; they are printed as well."""
    found = {}
    for name, callbacks in {"no guard": [], "guard": [GuardCallback(probes="own-samples")]}.items():
        model = trained()
        with TemporaryDirectory() as folder:
            args = SFTConfig(
                output_dir=folder, max_steps=60, per_device_train_batch_size=4, learning_rate=1e-2, use_cpu=True,
                bf16=False, max_length=32, save_strategy="no", logging_strategy="no", report_to=[],
                disable_tqdm=True,
            )  # fmt: skip
            trainer = SFTTrainer(
                model, args, train_dataset=Dataset.from_dict({"text": new_texts}), processing_class=tokenizer,
                peft_config=LoraConfig(r=4, lora_alpha=8, target_modules="all-linear"), callbacks=callbacks,
            )  # fmt: skip
            trainer.train()
        trainer.model.eval()
        found[name] = loss(trainer.model, old_texts), loss(trainer.model, new_texts)
        print(f"{name:10} loss on old texts {found[name][0]:.3f}   on new texts {found[name][1]:.3f}")
    return found


if __name__ == "__main__":
    torch.set_num_threads(1)
    compare()
