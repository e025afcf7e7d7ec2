"""A language model learns one language, then another: what is kept, and what it costs.

    python -m benchmarks.language_model MODEL first.txt second.txt --out rows.jsonl [--other third.txt]

MODEL is a folder of Hugging Face's, with safetensors and a tokenizer; the texts are plain. From each seed the
model learns the first text once; from there on it learns the second in every way there is a row for: plainly, at
several learning rates; held by L2-SP, EWC (importance from the model's own samples), RWalk (importance from
learning the first text) and Anchor (own samples), each at several strengths and with budgets; and with its own
samples replayed. Rows are written as they come, seed by seed, and those there are are not made again: a run that
was stopped, or that --minutes ended, goes on when it is started again.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from copy import deepcopy
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rwalk import EWC, Anchor, Guard, RWalk, own_samples
from rwalk.guard.drift import Probes
from rwalk.methods.l2 import L2SP

HELD_OUT = 0.1  # of each text, at its end
RATES = (3e-5, 1e-4, 3e-4)
BUDGETS = (0.05, 0.1)
STRENGTHS: dict[str, tuple[float, ...]] = {
    "l2": (0.1, 1.0),
    "ewc": (1e2, 1e3),
    "rwalk": (1e1, 1e2),
    "anchor": (0.3, 1.0),
}


@dataclass(frozen=True)
class Way:
    """A way to learn the second text."""

    method: str
    rate: float
    strength: float | None = None
    budget: float | None = None

    def __str__(self) -> str:
        how = "" if self.strength is None else f" λ={self.strength:g}"
        return f"{self.method}{how}{'' if self.budget is None else f' budget={self.budget:g}'} at {self.rate:g}"


def ways(full: bool = False) -> list[Way]:
    """The telling ones first, for a run that time ends; `full` has every strength and budget at every rate."""
    rates = RATES if full else RATES[1:2]
    plain = [Way("plain", rate) for rate in RATES]
    budgets = [Way(name, rate, budget=BUDGETS[0]) for rate in RATES[1:] for name in STRENGTHS]
    replayed = [Way("replay", rate) for rate in rates]
    strengths = [Way(name, rate, s) for rate in rates for name, each in STRENGTHS.items() for s in each]
    more = [Way(name, rate, budget=b) for rate in rates for name in STRENGTHS for b in BUDGETS] if full else []
    return list(dict.fromkeys([*plain, *budgets, *replayed, *strengths, *more]))


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
        self.texts = {name: self._tokens(path) for name, path in self._paths().items()}

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
        return torch.autocast("cuda", torch.bfloat16) if self.device.type == "cuda" else nullcontext()

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
        start = time.perf_counter()
        for _ in range(steps):
            batch = rows[torch.randint(len(rows), (self.options.batch,), generator=generator).to(rows.device)]
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
        return torch.optim.AdamW(self.model.parameters(), lr=rate, fused=self.device.type == "cuda")


class Seed:
    """A model that has learned the first text: its weights, RWalk's importances, samples of its own."""

    def __init__(self, lab: Lab, seed: int, folder: Path) -> None:
        self.lab, self.seed = lab, seed
        lab.model.load_state_dict(lab.beginning)
        optimizer = lab.adamw(1e-4)
        guard = Guard(lab.model, optimizer, RWalk())
        lab.train("first", optimizer, seed)
        guard.consolidate()
        self.file = folder / f"{seed}.safetensors"
        guard.save(self.file)
        guard.detach()
        self.weights = deepcopy(lab.model.state_dict())
        samples = own_samples(lab.model, lab.tokenizer, 2 * lab.options.probes, lab.options.probe_tokens, seed)
        self.samples, held_out = samples["input_ids"].split(lab.options.probes)
        self.probes = {"input_ids": self.samples}
        self.held_out = Probes({"input_ids": held_out}, lab.predict)
        self.held_out.keep(lab.model)
        self.before = {name: lab.test_loss(name) for name in lab.texts}

    def row(self, way: Way) -> dict[str, Any]:
        lab = self.lab
        lab.model.load_state_dict(self.weights)
        optimizer = lab.adamw(way.rate)
        start = time.perf_counter()
        guard = self._guard(way, optimizer)
        begun = time.perf_counter() - start
        replayed = self.samples if way.method == "replay" else None
        seconds = lab.train("second", optimizer, self.seed, replayed)
        after = {name: lab.test_loss(name) for name in lab.texts}
        row = {
            **asdict(way),
            "seed": self.seed,
            "before": self.before,
            "after": after,
            "held_out_drift": self.held_out.drift(lab.model),
            "begin_s": begun,
            "train_s": seconds,
        }
        if guard is not None:
            row |= {"drift": guard.drift(), "lam": _strength(guard), "readings": len(guard._work.keeper.history)}
            guard.detach()
        return row

    def _guard(self, way: Way, optimizer: torch.optim.Optimizer) -> Guard | None:
        options: dict[str, Any] = {"budget": way.budget, "probes": self.probes, "predict": self.lab.predict}
        options["every"] = self.lab.options.every
        model, given = self.lab.model, {} if way.strength is None else {"lam": way.strength}
        if way.method in ("plain", "replay"):
            return None
        if way.method == "rwalk":
            return Guard.load(self.file, model, optimizer, RWalk(**given), **options)
        if way.method == "anchor":
            batch = max(1, self.lab.options.anchor_tokens // self.lab.options.probe_tokens)
            return Guard(model, optimizer, Anchor(weight=way.strength or 1.0, batch=batch), **options)
        return Guard(model, optimizer, {"l2": L2SP, "ewc": EWC}[way.method](**given), **options)


def _strength(guard: Guard) -> float:
    method = guard.method
    return float(method.weight if isinstance(method, Anchor) else method.lam)


def missing(done: Sequence[dict[str, Any]], seeds: int, full: bool) -> Iterator[tuple[int, Way]]:
    made = {(row["seed"], *(row[name] for name in ("method", "rate", "strength", "budget"))) for row in done}
    for seed in range(seeds):
        for way in ways(full):
            if (seed, *asdict(way).values()) not in made:
                yield seed, way


def summary(rows: Sequence[dict[str, Any]]) -> str:
    """One line per way, means over the seeds."""
    lines = ["| way | seeds | first text | second text | drift | own probes | λ | s |", "|" + "---|" * 8]
    for way in ways(full=True):
        found = [r for r in rows if all(r[name] == value for name, value in asdict(way).items())]
        if not found:
            continue

        def of(*keys: str, found: list[dict[str, Any]] = found) -> str:
            values = [r[keys[0]][keys[1]] if len(keys) > 1 else r.get(keys[0]) for r in found]
            numbers = [value for value in values if value is not None]
            return f"{mean(numbers):.3g}" if numbers else ""

        rise = mean(r["after"]["first"] - r["before"]["first"] for r in found)
        lines.append(
            f"| {way} | {len(found)} | {of('after', 'first')} ({rise:+.3f}) | {of('after', 'second')} "
            f"| {of('held_out_drift')} | {of('drift')} | {of('lam')} | {of('train_s')} |"
        )
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="a folder of Hugging Face's")
    parser.add_argument("first", type=Path)
    parser.add_argument("second", type=Path)
    parser.add_argument("--other", type=Path, help="a text that is never learned, only tested on")
    parser.add_argument("--out", type=Path, required=True, help="rows, one JSON object per line")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--full", action="store_true", help="every strength and budget at every learning rate")
    parser.add_argument("--minutes", type=float, default=math.inf, help="begin no row after so long")
    parser.add_argument("--steps", type=int, default=60, help="per text")
    parser.add_argument("--batch", type=int, default=16, help="sequences per step")
    parser.add_argument("--tokens", type=int, default=512, help="per sequence")
    parser.add_argument("--test", type=int, default=32, help="sequences to test on")
    parser.add_argument("--probes", type=int, default=64, help="own samples to measure drift on")
    parser.add_argument("--probe-tokens", type=int, default=256)
    parser.add_argument("--every", type=int, default=2, help="steps between two readings of the drift")
    parser.add_argument("--anchor-tokens", type=int, default=2048, help="of probes in each pull of Anchor")
    options = parser.parse_args(arguments)
    start = time.perf_counter()
    rows = [json.loads(line) for line in options.out.read_text().splitlines()] if options.out.exists() else []
    lab, seed = Lab(options), None
    with tempfile.TemporaryDirectory() as folder:
        for number, way in missing(rows, options.seeds, options.full):
            if time.perf_counter() - start > 60 * options.minutes:
                print("time is up: start again to go on", flush=True)
                break
            if seed is None or seed.seed != number:
                seed = Seed(lab, number, Path(folder))
                print(f"seed {number}: before {seed.before}, {time.perf_counter() - start:.0f} s", flush=True)
            rows.append(seed.row(way))
            with options.out.open("a") as file:
                file.write(json.dumps(rows[-1]) + "\n")
            after = {name: round(loss, 3) for name, loss in rows[-1]["after"].items()}
            spent, drift = time.perf_counter() - start, rows[-1]["held_out_drift"]
            print(f"{spent:6.0f} s  {way}: {after} drift {drift:.3f}", flush=True)
    print(summary(rows))


if __name__ == "__main__":
    main()
