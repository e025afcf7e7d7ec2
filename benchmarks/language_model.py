"""A language model learns one language, then another: what is kept, and what it costs.

    python -m benchmarks.language_model MODEL first.txt second.txt --out rows.jsonl [--other third.txt]

MODEL is a folder of Hugging Face's, with safetensors and a tokenizer; the texts are plain. From each seed the
model learns the first text once; from there on it learns the second in every way there is a row for:

held      budgets × learning rates × RWalk, EWC and Anchor: is the budget kept, from below and from above?
frontier  plainly, at several learning rates; by LoRA, where peft is installed; held by L2-SP, EWC (importance from
          the model's own samples), RWalk (importance from learning the first text) and Anchor (own samples), each
          at several strengths and with budgets; and with its own samples replayed; from every seed

Rows are written as they come, the most telling first, and those there are are not made again: a run that was
stopped, or that --minutes ended, goes on when it is started again, and --folder keeps what a seed has prepared.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from copy import deepcopy
from dataclasses import asdict, dataclass
from importlib.util import find_spec
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
RATES = (1e-4, 3e-4, 3e-5)
BUDGETS = (0.05, 0.02, 0.1, 0.2)
HOLDING = ("rwalk", "ewc", "anchor")  # what must keep its budgets
STRENGTHS: dict[str, tuple[float, ...]] = {
    "l2": (0.1, 1.0),
    "ewc": (1e2, 1e3),
    "rwalk": (1e1, 1e2),
    "anchor": (0.3, 1.0),
}
LORA_RATE = 1e-3  # adapters start at nothing, and learn at ten times the rate


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


def held() -> list[Way]:
    """All that must be shown of budgets; one seed will do."""
    plain = [Way("plain", rate) for rate in RATES]
    return plain + [Way(name, rate, budget=b) for b in BUDGETS for rate in RATES for name in HOLDING]


def frontier() -> list[Way]:
    plain = [Way("plain", rate) for rate in RATES]
    budgets = [Way(name, rate, budget=b) for rate in RATES[:2] for b in (0.05, 0.1) for name in STRENGTHS]
    strengths = [Way(name, RATES[0], s) for name, each in STRENGTHS.items() for s in each]
    adapters = [Way("lora", LORA_RATE), Way("lora", RATES[1]), Way("lora+anchor", LORA_RATE, budget=0.05)]
    return [*plain, *budgets, Way("replay", RATES[0]), *strengths, *(adapters if find_spec("peft") else [])]


def plan(seeds: int, only: str | None) -> list[tuple[int, Way]]:
    """The telling ones first, for a run that time ends."""
    first = [(0, way) for way in (held() if only != "frontier" else [])]
    rest = [(seed, way) for seed in range(seeds) for way in (frontier() if only != "held" else [])]
    return list(dict.fromkeys([*first[:12], *rest[: len(frontier())], *first, *rest]))


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
        if not prepared.exists():
            torch.save(self._prepared(), prepared)
        kept = torch.load(prepared, map_location=lab.device)
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
        return {"weights": lab.model.state_dict(), "samples": samples["input_ids"]}

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
            options |= {"budget": way.budget, "probes": self.probes, "every": lab.options.every}
        if way.method in ("plain", "replay", "lora"):
            return None
        if way.method in self.files:
            method = {"rwalk": RWalk, "ewc": EWC}[way.method](**given)
            return Guard.load(self.files[way.method], lab.model, optimizer, method, **options)
        if way.method.endswith("anchor"):
            options |= {"probes": self.probes, "every": lab.options.every}
            batch = max(1, lab.options.anchor_tokens // lab.options.probe_tokens)
            return Guard(lab.model, optimizer, Anchor(weight=way.strength or 1.0, batch=batch), **options)
        return Guard(lab.model, optimizer, L2SP(**given), **{"probes": self.probes, **options})


def _strength(guard: Guard) -> float:
    method = guard.method
    return float(method.weight if isinstance(method, Anchor) else method.lam)


def missing(done: Sequence[dict[str, Any]], seeds: int, only: str | None) -> Iterator[tuple[int, Way]]:
    made = {(row["seed"], *(row[name] for name in ("method", "rate", "strength", "budget"))) for row in done}
    for seed, way in plan(seeds, only):
        if (seed, *asdict(way).values()) not in made:
            yield seed, way


def summary(rows: Sequence[dict[str, Any]]) -> str:
    """One line per way, means over the seeds."""
    plain = {(row["seed"], row["rate"]): row for row in rows if row["method"] == "plain"}
    heads = ("way", "seeds", "first text", "second text", "drift", "of budget", "held out", "λ", "× time")
    lines = [f"| {' | '.join(heads)} |", "|" + "---|" * len(heads)]
    for way in dict.fromkeys(Way(*(row[name] for name in Way.__dataclass_fields__)) for row in rows):
        found = [r for r in rows if all(r[name] == value for name, value in asdict(way).items())]
        beside = [(r, plain[r["seed"], r["rate"]]) for r in found if (r["seed"], r["rate"]) in plain]
        first, second = (mean(r["after"][name] for r in found) for name in ("first", "second"))
        rise = mean(r["after"]["first"] - r["before"]["first"] for r in found)
        drift = mean(r["drift"] for r in found)
        share = "" if way.budget is None else "–".join(f"{b:.2f}" for b in _range(found, way.budget))
        lam = f"{mean(r['lam'] for r in found):.3g}" if "lam" in found[0] else ""
        times = f"{mean(r['train_s'] / other['train_s'] for r, other in beside):.2f}" if beside else ""
        lines.append(
            f"| {way} | {len(found)} | {first:.3f} ({rise:+.3f}) | {second:.3f} | {drift:.3f} | {share} "
            f"| {mean(r['held_out_drift'] for r in found):.3f} | {lam} | {times} |"
        )
    return "\n".join([*lines, "", _verdict(rows, plain)])


def _range(found: Sequence[dict[str, Any]], budget: float) -> list[float]:
    """The drift in units of the budget: one value, or the smallest and the largest."""
    shares = sorted({round(row["drift"] / budget, 2) for row in found})
    return [shares[0], shares[-1]] if len(shares) > 1 else shares


def _verdict(rows: Sequence[dict[str, Any]], plain: Mapping[tuple[int, float], dict[str, Any]]) -> str:
    """How many budgets were held: at most 1.2 times, and at least 0.8 times where training would exceed them."""
    budgets = [row for row in rows if row["budget"] is not None and row["method"] in HOLDING]
    missed = []
    for row in budgets:
        share, free = row["drift"] / row["budget"], plain.get((row["seed"], row["rate"]))
        exceeds = free is None or free["drift"] > row["budget"]
        if share > 1.2 or (exceeds and share < 0.8):
            missed.append(f"{row['method']} {row['budget']:g} at {row['rate']:g}: {share:.2f}")
    said = f"budgets held: {len(budgets) - len(missed)} of {len(budgets)}"
    return "; not ".join([said, ", ".join(missed)]) if missed else said


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="a folder of Hugging Face's")
    parser.add_argument("first", type=Path)
    parser.add_argument("second", type=Path)
    parser.add_argument("--other", type=Path, help="a text that is never learned, only tested on")
    parser.add_argument("--out", type=Path, required=True, help="rows, one JSON object per line")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", choices=("held", "frontier"), help="these rows alone; both, without")
    parser.add_argument("--folder", type=Path, help="where to keep what seeds have prepared; nowhere, without")
    parser.add_argument("--precision", choices=("autocast", "float32"), default="autocast", help="on a GPU")
    parser.add_argument("--minutes", type=float, default=math.inf, help="begin no row after so long")
    parser.add_argument("--steps", type=int, default=150, help="per text")
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
    with tempfile.TemporaryDirectory() as passing:
        folder = options.folder or Path(passing)
        folder.mkdir(parents=True, exist_ok=True)
        for number, way in missing(rows, options.seeds, options.only):
            if time.perf_counter() - start > 60 * options.minutes:
                print("time is up: start again to go on", flush=True)
                break
            if seed is None or seed.seed != number:
                seed = Seed(lab, number, folder)
                print(f"seed {number}: before {seed.before}, {time.perf_counter() - start:.0f} s", flush=True)
            rows.append(seed.row(way))
            with options.out.open("a") as file:
                file.write(json.dumps(rows[-1]) + "\n")
            after = {name: round(loss, 3) for name, loss in rows[-1]["after"].items()}
            spent, drift = time.perf_counter() - start, rows[-1]["drift"]
            print(f"{spent:6.0f} s  {way}: {after} drift {drift:.4f}", flush=True)
    print(summary(rows))


if __name__ == "__main__":
    main()
