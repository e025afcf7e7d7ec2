"""A language model learns one language, then another: what is kept, and what it costs.

    python -m benchmarks.language_model MODEL first.txt second.txt --out rows.jsonl [--other third.txt]

MODEL is a folder of Hugging Face's, with safetensors and a tokenizer; the texts are plain. From each seed the
model learns the first text once; from there on it learns the second in every way there is a row for:

held      budgets × learning rates × RWalk, EWC and Anchor: is the budget kept, from below and from above?
frontier  plainly, at several learning rates; by LoRA, where peft is installed; held by L2-SP, EWC (importance from
          the model's own samples), RWalk (importance from learning the first text) and Anchor (own samples), each
          at several strengths and with budgets; and with its own samples replayed; from every seed

Rows are written and printed as they come, the most telling first, and those that are there are not made again: a
run that was stopped, or that --minutes ended, goes on when it is started again. --folder keeps what a seed has
prepared, and lets the same command run several times side by side: each process takes the next way that nobody
walks.
"""

from __future__ import annotations

import argparse
import math
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from copy import deepcopy
from dataclasses import asdict
from pathlib import Path
from statistics import mean
from typing import Any

import torch
import torch.nn.functional as F
from filelock import FileLock
from torch import Tensor, nn

from benchmarks.language_page import summary
from benchmarks.language_rows import Rows, Way, plan
from rwalk import EWC, Anchor, Guard, RWalk, own_samples
from rwalk.errors import InputError
from rwalk.guard.drift.probes import Probes
from rwalk.methods.l2 import L2SP

HELD_OUT = 0.1  # of each text, at its end
SETTINGS = ("steps", "batch", "tokens", "probes", "probe_tokens", "every", "anchor_tokens")


class Lab:
    """A model, its texts and its device: everything that all ways share."""

    def __init__(self, options: argparse.Namespace) -> None:
        from transformers import AutoModelForCausalLM, AutoTokenizer

        self.options = options
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.tokenizer = AutoTokenizer.from_pretrained(options.model)
        loaded = AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.float32)
        self.model: nn.Module = loaded.to(self.device)
        self.beginning = deepcopy(self.model.state_dict())
        if options.compile:
            torch.compiler.set_stance("force_eager")  # all but training steps
            for block in (each for each in self.model.modules() if type(each).__name__.endswith("DecoderLayer")):
                block.compile()
        self.texts = {name: self._tokens(path) for name, path in self._paths().items()}

    @property
    def settings(self) -> dict[str, int]:
        """What a row depends on beside its way and its seed."""
        return {name: getattr(self.options, name) for name in SETTINGS}

    def _paths(self) -> dict[str, Path]:
        paths = {"first": self.options.first, "second": self.options.second}
        return paths if self.options.other is None else {**paths, "other": self.options.other}

    def _tokens(self, path: Path) -> tuple[Tensor, Tensor]:
        """Sequences to train on, and to test on, [n, tokens]."""
        ids = torch.tensor(self.tokenizer(path.read_text(encoding="utf-8"))["input_ids"])
        rows = ids[: len(ids) // self.options.tokens * self.options.tokens].view(-1, self.options.tokens)
        cut = len(rows) - max(1, int(HELD_OUT * len(rows)))
        return rows[:cut].to(self.device), rows[cut:][: self.options.test].to(self.device)

    def autocast(self) -> AbstractContextManager[Any]:
        narrow = self.device.type == "cuda" and self.options.precision == "autocast"
        return torch.autocast("cuda", torch.bfloat16) if narrow else nullcontext()

    def predict(self, model: Any, batch: dict[str, Tensor]) -> Tensor:
        with self.autocast():
            logits: Tensor = model(**batch, use_cache=False).logits
        return logits

    def loss(self, ids: Tensor) -> Tensor:
        logits = self.predict(self.model, {"input_ids": ids})
        return F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), ids[:, 1:].flatten())

    @torch.no_grad()
    def test_loss(self, name: str) -> float:
        self.model.eval()
        losses = [self.loss(rows).item() for rows in self.texts[name][1].split(self.options.batch)]
        self.model.train()
        return mean(losses)

    def train(
        self, name: str, optimizer: torch.optim.Optimizer, seed: int, replayed: Tensor | None = None
    ) -> float:
        """All the steps of a text, at a rate that falls to a tenth; the seconds they took."""
        self.model.train()
        generator = torch.Generator().manual_seed(seed)
        rows, steps = self.texts[name][0], self.options.steps
        falling = torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda step: 0.1 + 0.45 * (1 + math.cos(math.pi * step / steps))
        )
        adapted = any("lora" in name for name, _ in self.model.named_parameters())
        compiled = self.options.compile and not adapted  # adapters would be compiled anew for every row
        start = time.perf_counter()
        for _ in range(steps):
            batch = rows[torch.randint(len(rows), (self.options.batch,), generator=generator).to(rows.device)]
            with torch.compiler.set_stance("default") if compiled else nullcontext():
                if replayed is not None:
                    drawn = torch.randint(len(replayed), (self.options.batch // 2,), generator=generator)
                    loss = (self.loss(batch[: len(batch) // 2]) + self.loss(replayed[drawn.to(rows.device)])) / 2
                else:
                    loss = self.loss(batch)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            falling.step()
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - start

    def adamw(self, rate: float) -> torch.optim.Optimizer:
        trained = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        return torch.optim.AdamW(trained, lr=rate, fused=self.device.type == "cuda")

    @contextmanager
    def adapted(self) -> Iterator[None]:
        """With adapters of rank 16 on all linear layers, and all else frozen."""
        import peft

        config = peft.LoraConfig(r=16, lora_alpha=32, target_modules="all-linear")
        adapted = peft.get_peft_model(self.model, config)  # type: ignore[arg-type]
        try:
            yield
        finally:
            adapted.unload()  # type: ignore[operator]
            self.model.requires_grad_(True)


class Seed:
    """A model that has learned the first text: its weights, the importances of RWalk and EWC, its own samples."""

    def __init__(self, lab: Lab, seed: int, folder: Path) -> None:
        self.lab, self.seed = lab, seed
        self.files = {name: folder / f"{seed}-{name}.safetensors" for name in ("rwalk", "ewc")}
        prepared = folder / f"{seed}.pt"
        with FileLock(folder / f"{seed}.lock"):  # one process prepares, the others wait
            if not prepared.exists():
                begun = folder / f"{seed}.part"
                torch.save(self._prepared(), begun)
                begun.replace(prepared)
        kept = torch.load(prepared, map_location=lab.device)
        if kept["settings"] != lab.settings:
            raise InputError(f"{folder} was prepared with {kept['settings']}: take another --folder")
        self.weights, samples = kept["weights"], kept["samples"]
        lab.model.load_state_dict(self.weights)
        self.samples, held_out = samples.split(lab.options.probes)
        self.probes = {"input_ids": self.samples}
        self.own, self.held_out = Probes(self.probes, lab.predict), Probes({"input_ids": held_out}, lab.predict)
        for probes in (self.own, self.held_out):
            probes.keep(lab.model)
        self.before = {name: lab.test_loss(name) for name in lab.texts}

    def _prepared(self) -> dict[str, Any]:
        lab, options = self.lab, self.lab.options
        lab.model.load_state_dict(lab.beginning)
        optimizer = lab.adamw(1e-4)
        guard = Guard(lab.model, optimizer, RWalk())
        lab.train("first", optimizer, self.seed)
        guard.consolidate()
        guard.save(self.files["rwalk"])
        guard.detach()
        samples = own_samples(lab.model, lab.tokenizer, 2 * options.probes, options.probe_tokens, self.seed)
        known = {"input_ids": samples["input_ids"][: options.probes]}
        guard = Guard(lab.model, optimizer, EWC(), probes=known, predict=lab.predict)
        guard.save(self.files["ewc"])
        guard.detach()
        kept = {"weights": lab.model.state_dict(), "samples": samples["input_ids"]}
        return {**kept, "settings": lab.settings}

    def row(self, way: Way) -> dict[str, Any]:
        lab = self.lab
        lab.model.load_state_dict(self.weights)
        start = time.perf_counter()
        with lab.adapted() if way.method.startswith("lora") else nullcontext():
            optimizer = lab.adamw(way.rate)
            guard = self._guard(way, optimizer)
            begun = time.perf_counter() - start
            seconds = lab.train("second", optimizer, self.seed, self.samples if way.method == "replay" else None)
            row = {
                **asdict(way),
                "seed": self.seed,
                "settings": lab.settings,
                "before": self.before,
                "after": {name: lab.test_loss(name) for name in lab.texts},
                "drift": self.own.drift(lab.model),
                "held_out_drift": self.held_out.drift(lab.model),
                "begin_s": begun,
                "train_s": seconds,
            }
            if guard is not None:
                history = guard._work.keeper.history
                row |= {"lam": _strength(guard), "readings": len(history), "report": str(guard.report())}
                if guard._work.keeper.sets:
                    row["drift"] = guard.drift()  # an Anchor's, of probes it does not pull on
                row["path"] = [(each.step, round(each.drift, 5), each.lam) for each in history]
                guard.detach()
        return row

    def _guard(self, way: Way, optimizer: torch.optim.Optimizer) -> Guard | None:
        lab, given = self.lab, {} if way.strength is None else {"lam": way.strength}
        options: dict[str, Any] = {"predict": lab.predict}
        if way.budget is not None:
            options |= {"budget": way.budget, "probes": self.probes, "every": lab.options.every or None}
        if way.method in ("plain", "replay", "lora"):
            return None
        if way.method in self.files:
            method = {"rwalk": RWalk, "ewc": EWC}[way.method](**given)
            return Guard.load(self.files[way.method], lab.model, optimizer, method, **options)
        if way.method == "lora+ewc":  # of the weights that the adapters make, from own samples
            return Guard(lab.model, optimizer, EWC(**given), **{"probes": self.probes, **options})
        if way.method.endswith("anchor"):
            options |= {"probes": self.probes, "every": lab.options.every or None}
            batch = max(1, lab.options.anchor_tokens // lab.options.probe_tokens)
            return Guard(lab.model, optimizer, Anchor(weight=way.strength or 1.0, batch=batch), **options)
        return Guard(lab.model, optimizer, L2SP(**given), **{"probes": self.probes, **options})


def _strength(guard: Guard) -> float:
    method = guard.method
    return float(method.weight if isinstance(method, Anchor) else method.lam)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="a folder of Hugging Face's")
    parser.add_argument("first", type=Path)
    parser.add_argument("second", type=Path)
    parser.add_argument("--other", type=Path, help="a text that is never learned, only tested on")
    parser.add_argument("--out", type=Path, required=True, help="rows, one JSON object per line")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", choices=("held", "frontier"), help="these rows alone; both, without")
    parser.add_argument("--folder", type=Path, help="for what seeds have prepared, and processes share")
    parser.add_argument("--precision", choices=("autocast", "float32"), default="autocast", help="on a GPU")
    parser.add_argument("--compile", action="store_true", help="the blocks of the model, for training steps")
    parser.add_argument("--minutes", type=float, default=math.inf, help="begin no row after so long")
    parser.add_argument("--steps", type=int, default=150, help="per text")
    parser.add_argument("--batch", type=int, default=16, help="sequences per step")
    parser.add_argument("--tokens", type=int, default=512, help="per sequence")
    parser.add_argument("--test", type=int, default=32, help="sequences to test on")
    parser.add_argument("--probes", type=int, default=64, help="own samples to measure drift on")
    parser.add_argument("--probe-tokens", type=int, default=256)
    parser.add_argument("--every", type=int, default=2, help="steps between two readings; 0: as a guard chooses")
    parser.add_argument("--anchor-tokens", type=int, default=2048, help="of probes in each pull of Anchor")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as passing:
        folder = options.folder or Path(passing)
        folder.mkdir(parents=True, exist_ok=True)
        rows = Rows(options.out, folder)
        walk(options, folder, rows)
    print(summary(rows.all()))


def walk(options: argparse.Namespace, folder: Path, rows: Rows) -> None:
    """Every way that has no row yet, until time is up."""
    start = time.perf_counter()
    lab, seed = Lab(options), None
    for number, way in rows.missing(plan(options.seeds, options.only)):
        if time.perf_counter() - start > 60 * options.minutes:
            print("time is up: start again to go on", flush=True)
            break
        if seed is None or seed.seed != number:
            seed = Seed(lab, number, folder)
            print(f"seed {number}: before {seed.before}, {time.perf_counter() - start:.0f} s", flush=True)
        row = seed.row(way)
        rows.add(row)
        after = {name: round(loss, 3) for name, loss in row["after"].items()}
        print(f"{time.perf_counter() - start:6.0f} s  {way}: {after} drift {row['drift']:.4f}", flush=True)


if __name__ == "__main__":
    main()
