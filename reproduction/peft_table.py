"""PEFT's comparison of methods on MetaMathQA, with a guard: accuracy on GSM8K, and what is forgotten of Wikipedia.

    python -m reproduction.peft_table --model meta-llama/Llama-3.2-3B
    python -m reproduction.peft_table --model FOLDER --data FOLDER     with files, see below

It follows `method_comparison/MetaMathQA` of huggingface/peft: their data, prompts, defaults, measures and form of
result, one JSON file per run, so that their scripts read these files beside their own. Runs are LoRA of rank 32
and full fine-tuning, each without a guard, with `Guard(probes="own-samples")` and with a budget of 0.05. A run
whose file is there is not repeated.

"forgetting" is theirs: they compare the prediction after each token with this token, not with the next one. The
loss of next tokens stands beside it, as "forgetting, next tokens".

With --data nothing is downloaded. The folder holds metamath.jsonl (query, response), gsm8k-train.jsonl and
gsm8k-test.jsonl (question, answer), and wiki.jsonl (text).
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

import rwalk
from rwalk.atomic_files import write_atomically
from rwalk.errors import InputError

LONGEST = 1300  # characters of a question and its answer that are trained on
VALIDATION, ARTICLES, ARTICLE_TOKENS = 50, 100, 768
BUCKET = 20  # batches whose examples are sorted by length together
WARM_UP = 0.1  # of the steps
BUDGET = 0.05
ENDINGS = ("The answer is: ", "The answer is ", "The final answer is: ", "The final answer is ", "#### ")
GENERATED = {"max_length": 800, "max_new_tokens": 300}  # tokens
FILES = ("metamath", "gsm8k-train", "gsm8k-test", "wiki")


@dataclass(frozen=True)
class Config:
    """PEFT's defaults, under PEFT's names."""

    model_id: str
    dtype: str = "bfloat16"
    max_seq_length: int = 768
    batch_size: int = 4
    batch_size_eval: int = 50
    max_steps: int = 5000
    eval_steps: int = 250
    compile: bool = False
    use_gc: bool = False
    query_template: str = "Question: {query} Think step by step.\nAnswer:"
    seed: int = 0
    grad_norm_clip: float = 1.0
    optimizer_type: str = "AdamW"
    optimizer_kwargs: Mapping[str, Any] = field(default_factory=lambda: {"lr": 1e-4, "weight_decay": 0.1})
    lr_scheduler: str = "cosine"
    use_amp: bool = False
    autocast_adapter_dtype: bool = True
    generation_kwargs: Mapping[str, Any] = field(default_factory=lambda: dict(GENERATED))
    attn_implementation: str | None = None
    init_kv_cache_prefix: str | None = None


@dataclass(frozen=True)
class Experiment:
    """A row of the table.

    Args:
        method: PEFT's name of the kind of fine-tuning: "lora" or "full-finetuning".
        guard: "none", "guard" or "budget".
        rank: of the adapter.
        lr: the learning rate.
    """

    method: str
    guard: str
    rank: int | None
    lr: float

    def name(self, model: str) -> str:
        kind = "default" if self.rank is None else f"rank{self.rank}"
        return f"{self.method}/{Path(model).name}-{kind}{'' if self.guard == 'none' else f'-rwalk-{self.guard}'}"


EXPERIMENTS = [
    Experiment(method, guard, rank, lr)
    for method, rank, lr in (("lora", 32, 1e-4), ("full-finetuning", None, 1e-5))
    for guard in ("none", "guard", "budget")
]


# ── data ─────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Data:
    """Pairs of question and answer, and articles.

    Args:
        train: of MetaMathQA.
        valid: of GSM8K's training part.
        test: of GSM8K.
        articles: of Wikipedia.
    """

    train: list[tuple[str, str]]
    valid: list[tuple[str, str]]
    test: list[tuple[str, str]]
    articles: list[str]

    @classmethod
    def read(cls, folder: Path | None) -> Data:
        metamath, first, test, wiki = (_rows(name, folder) for name in FILES)
        chosen = np.arange(len(first))
        np.random.RandomState(0).shuffle(chosen)
        return cls(
            [(q, r) for q, r in _pairs(metamath, "query", "response") if len(q) + 1 + len(r) <= LONGEST],
            [_pairs(first, "question", "answer")[number] for number in chosen[:VALIDATION]],
            _pairs(test, "question", "answer"),
            [str(row["text"]) for row in wiki[:ARTICLES]],
        )


def _rows(name: str, folder: Path | None) -> list[Mapping[str, Any]]:
    if folder is not None:
        path = folder / f"{name}.jsonl"
        try:
            return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
        except (OSError, ValueError) as error:
            raise InputError(f"{path} cannot be read: {error}") from error
    try:
        import datasets  # type: ignore[import-untyped]
    except ImportError as error:
        raise InputError("downloads need the package datasets; or give --data, a folder with files") from error

    if name == "wiki":
        return list(datasets.load_dataset("HuggingFaceFW/finewiki", split="train", streaming=True).take(ARTICLES))
    if name == "metamath":
        return list(datasets.load_dataset("meta-math/MetaMathQA", split="train"))
    return list(datasets.load_dataset("openai/gsm8k", "main", split=name.removeprefix("gsm8k-")))


def _pairs(rows: Sequence[Mapping[str, Any]], question: str, answer: str) -> list[tuple[str, str]]:
    try:
        return [(str(row[question]), str(row[answer])) for row in rows]
    except (KeyError, TypeError) as error:
        raise InputError(f"every row needs {question!r} and {answer!r}") from error


def number_in(text: str) -> float | str | None:
    """The final answer in a text: a number if it is one, otherwise as it is written; None if there is none.

    >>> number_in("so it is 1/2. The answer is: 1/2."), number_in("#### 1"), number_in("no idea")
    (0.5, 1.0, None)
    """
    text = text.strip().rstrip(".!?")
    ending = next((each for each in ENDINGS if each in text), None)
    if ending is None:
        return None
    found = text.rpartition(ending)[-1].strip().split("\n", 1)[0].strip(" .!?$%")
    try:
        parts = [Decimal(part.strip()) for part in found.split("/")]
        if len(parts) > 2:
            return found
        return float(parts[0] / parts[1]) if len(parts) == 2 else float(parts[0])
    except (InvalidOperation, ZeroDivisionError):
        return found


def accuracy(given: Sequence[str], expected: Sequence[str]) -> float:
    pairs = [(number_in(one), number_in(other)) for one, other in zip(given, expected, strict=True)]
    return sum(one is not None and one == other for one, other in pairs) / len(pairs)


# ── a run ────────────────────────────────────────────────────────────────────────────────────────────────────


class Run:
    """One experiment."""

    def __init__(self, config: Config, experiment: Experiment, data: Data) -> None:
        from transformers import AutoModelForCausalLM, AutoTokenizer, get_cosine_schedule_with_warmup, set_seed

        self.config, self.experiment, self.data = config, experiment, data
        set_seed(config.seed)
        self.tokenizer: Any = AutoTokenizer.from_pretrained(config.model_id)
        self.tokenizer.pad_token = self.tokenizer.pad_token or self.tokenizer.eos_token
        device = "cuda" if torch.cuda.is_available() else "cpu"
        model: Any = AutoModelForCausalLM.from_pretrained(config.model_id, dtype=getattr(torch, config.dtype))
        model.to(device)
        self.adapter: Mapping[str, Any] | None = None
        if experiment.rank is not None:
            import peft

            settings = peft.LoraConfig(r=experiment.rank, lora_alpha=64, task_type="CAUSAL_LM")
            model = peft.get_peft_model(model, settings, autocast_adapter_dtype=config.autocast_adapter_dtype)
            self.adapter = dict(vars(settings))
        self.model: Any = model
        self.before = self._article_losses()
        self.optimizer = torch.optim.AdamW(
            [each for each in model.parameters() if each.requires_grad], **config.optimizer_kwargs
        )
        warm_up = int(WARM_UP * config.max_steps)
        self.schedule = get_cosine_schedule_with_warmup(self.optimizer, warm_up, config.max_steps)
        self.guard: rwalk.Guard | None = None
        if experiment.guard != "none":
            budget = BUDGET if experiment.guard == "budget" else None
            probes = rwalk.Probes("own-samples", tokenizer=self.tokenizer)
            self.guard = rwalk.Guard(model, self.optimizer, probes=probes, budget=budget)

    def train(self) -> Iterator[dict[str, Any]]:
        """Take every step; the measurements on the way, and at last those on the test data."""
        config, model = self.config, self.model
        losses: list[float] = []
        tokens: list[int] = []
        samples, spent, begun = 0, 0.0, time.perf_counter()
        model.train()
        for step, batch in zip(range(1, config.max_steps + 1), self._batches(), strict=False):
            start = time.perf_counter()
            samples += len(batch["input_ids"])
            tokens.append(int(batch["attention_mask"].sum()) + len(batch["input_ids"]))
            self.optimizer.zero_grad()
            loss = model(**batch).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), config.grad_norm_clip)
            self.optimizer.step()
            self.schedule.step()
            losses.append(float(loss.detach()))
            spent += time.perf_counter() - start
            if step % config.eval_steps == 0:
                start = time.perf_counter()
                yield {
                    "step": step,
                    "valid accuracy": self._accuracy(self.data.valid),
                    "train loss": float(np.mean(losses[-config.eval_steps :])),
                    "train samples": samples,
                    "train time": spent,
                    "eval time": time.perf_counter() - start,
                    "tokens / sec": sum(tokens[-config.eval_steps :]) / spent,
                    "mem allocated avg": torch.cuda.memory_allocated() if torch.cuda.is_available() else 0,
                    "mem reserved avg": torch.cuda.memory_reserved() if torch.cuda.is_available() else 0,
                    "elapsed time": time.perf_counter() - begun,
                }
                spent = 0.0
        if self.guard is not None:
            self.guard.finish()
        after = self._article_losses()
        yield {
            "step": len(losses),
            "test accuracy": self._accuracy(self.data.test),
            "train loss": float(np.mean(losses[-config.eval_steps :])),
            "train samples": samples,
            "train total tokens": sum(tokens),
            "forgetting": after[0] - self.before[0],
            "forgetting, next tokens": after[1] - self.before[1],
        }

    def _batches(self) -> Iterator[dict[str, Tensor]]:
        """Without end; examples of similar length together, the longest first."""
        config = self.config
        while True:
            for bucket in _parts(self.data.train, config.batch_size * BUCKET):
                texts = [config.query_template.format(query=query) + answer for query, answer in bucket]
                found = [ids[: config.max_seq_length] for ids in self.tokenizer(texts)["input_ids"]]
                found.sort(key=len, reverse=True)
                for rows in _parts(found, config.batch_size):
                    batch = self._padded(rows, "right")
                    labels = batch["input_ids"].clone()
                    for row, ids in enumerate(rows):  # the first token after a text ends it
                        labels[row, len(ids) + 1 :] = -100
                    yield batch | {"labels": labels}

    def _padded(self, rows: Sequence[list[int]], side: str) -> dict[str, Tensor]:
        padded = self.tokenizer.pad({"input_ids": list(rows)}, return_tensors="pt", padding_side=side)
        device = next(self.model.parameters()).device
        return {name: padded[name].to(device) for name in ("input_ids", "attention_mask")}

    @torch.no_grad()
    def _accuracy(self, pairs: Sequence[tuple[str, str]]) -> float:
        config, model, given = self.config, self.model, []
        model.eval()
        for part in _parts(pairs, config.batch_size_eval):
            texts = [config.query_template.format(query=query) for query, _ in part]
            batch = self._padded(
                [ids[: config.max_seq_length] for ids in self.tokenizer(texts)["input_ids"]], "left"
            )
            room = config.generation_kwargs["max_length"] - batch["input_ids"].shape[1]
            most = max(1, min(room, config.generation_kwargs["max_new_tokens"]))
            found = model.generate(
                **batch, max_new_tokens=most, do_sample=False, pad_token_id=self.tokenizer.pad_token_id
            )
            given += self.tokenizer.batch_decode(found, skip_special_tokens=True)
        model.train()
        return accuracy(given, [answer for _, answer in pairs])

    @torch.no_grad()
    def _article_losses(self) -> tuple[float, float]:
        """The mean loss of a token of Wikipedia: as PEFT measures it, and of next tokens."""
        model = self.model
        found: tuple[list[Tensor], list[Tensor]] = ([], [])
        model.eval()
        for part in _parts(self.data.articles, self.config.batch_size):
            batch = self._padded(
                self.tokenizer(part, truncation=True, max_length=ARTICLE_TOKENS)["input_ids"], "right"
            )
            logits, ids = model(**batch).logits.float(), batch["input_ids"]
            for shift, losses in enumerate(found):
                there = batch["attention_mask"][:, shift:].bool()
                predicted = logits[:, : logits.shape[1] - shift]
                losses.append(F.cross_entropy(predicted[there], ids[:, shift:][there], reduction="none").cpu())
        model.train()
        return float(torch.cat(found[0]).mean()), float(torch.cat(found[1]).mean())


def _parts(given: Sequence[Any], size: int) -> Iterator[Sequence[Any]]:
    for start in range(0, len(given), size):
        yield given[start : start + size]


def measured(config: Config, experiment: Experiment, data: Data) -> dict[str, Any]:
    """One run, as PEFT writes its results."""
    started, begun = datetime.now(UTC).isoformat(timespec="seconds"), time.perf_counter()
    cuda = torch.cuda.is_available()
    if cuda:
        torch.cuda.reset_peak_memory_stats()
    run = Run(config, experiment, data)
    reserved: list[int] = []
    metrics = []
    for row in run.train():
        metrics.append(row)
        reserved.append(torch.cuda.memory_reserved() if cuda else 0)
        print(json.dumps(row), flush=True)
    trained = sum(each.numel() for each in run.model.parameters() if each.requires_grad)
    width = next(each for each in run.model.parameters() if each.requires_grad).element_size()
    return {
        "run_info": {
            "created_at": started,
            "total_time": time.perf_counter() - begun,
            "experiment_name": experiment.name(config.model_id),
            "peft_branch": "main",
            "train_config": asdict(config),
            "peft_config": run.adapter and {name: _plain(value) for name, value in run.adapter.items()},
            "error_msg": "",
            "guard": _guard_info(run.guard),
        },
        "train_info": {
            "accelerator_memory_reserved_avg": int(np.mean(reserved)),
            "accelerator_memory_max": torch.cuda.max_memory_reserved() if cuda else 0,
            "accelerator_memory_reserved_99th": int(np.percentile(reserved, 99)),
            "train_time": sum(row.get("train time", 0.0) for row in metrics),
            "file_size": trained * width,
            "num_trainable_params": trained,
            "num_total_params": sum(each.numel() for each in run.model.parameters()),
            "status": "success",
            "metrics": metrics,
        },
        "meta_info": {
            "model_info": {"sha": None, "created_at": None},
            "dataset_info": {name: {"sha": None, "created_at": None} for name in ("metamath", "gsm8k")},
            "package_info": {
                f"{name}-version": _version(name) for name in ("transformers", "peft", "torch", "rwalk")
            },
            "system_info": {
                "system": platform.system(),
                "machine": platform.machine(),
                "accelerator": torch.cuda.get_device_name(0) if cuda else "cpu",
            },
            "pytorch_info": torch.__config__.show(),
        },
    }


def _plain(value: Any) -> Any:
    if isinstance(value, set):
        return sorted(value)
    return value if value is None or isinstance(value, bool | int | float | str | dict | list) else str(value)


def _guard_info(guard: rwalk.Guard | None) -> dict[str, Any] | None:
    if guard is None or guard.last_report is None:
        return None
    report = guard.last_report
    return {
        "method": str(guard.method),
        "budget": guard.budget,
        "left": report.left,
        "drift": report.drift,
    }


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="a folder in Hugging Face's format, or a name on its Hub")
    parser.add_argument("--data", type=Path, help="a folder with four .jsonl files, instead of downloads")
    parser.add_argument("--out", type=Path, default=Path("rwalk-studies/peft"), help="a folder for the results")
    parser.add_argument("--steps", type=int, default=5000, help="training steps; PEFT takes 5000")
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float32"))
    parser.add_argument("--only", help="experiments whose name contains this")
    options = parser.parse_args(arguments)
    try:
        data = Data.read(options.data)
        for experiment in EXPERIMENTS:
            name = experiment.name(options.model)
            file = options.out / f"{name.replace('/', '--')}.json"
            if options.only and options.only not in name:
                continue
            if file.exists():
                print(f"{file} is there already", flush=True)
                continue
            config = Config(
                options.model,
                dtype=options.dtype,
                max_steps=options.steps,
                eval_steps=min(250, options.steps),
                optimizer_kwargs={"lr": experiment.lr, "weight_decay": 0.1},
            )
            print(f"{name} …", flush=True)
            options.out.mkdir(parents=True, exist_ok=True)
            write_atomically(file, json.dumps(measured(config, experiment, data), indent=2) + "\n")
    except InputError as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
