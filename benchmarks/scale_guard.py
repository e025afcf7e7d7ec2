"""What a guard costs around models of 0.1 to 7 billion parameters: time, memory, and a formula for the latter.

    python -m benchmarks.scale_guard --out OUT --minutes 4     on one GPU, small models first
    python -m benchmarks.scale_guard --plan 13                 what a model of 13 billion parameters would take

Models have Llama's form and random weights. Steps of AdamW (fused) take 8 × 512 tokens, from three billion
parameters on 4 × 512, in bfloat16 by autocast; with LoRA, the frozen weights are bfloat16 themselves. Each row is
appended to scale.jsonl as soon as it is measured. Where the formula says that it cannot fit, it is not tried.
"""

from __future__ import annotations

import argparse
import gc
import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import mean, median
from typing import Any

import torch
from torch import nn

from benchmarks.language_ways import adapt
from benchmarks.meter import meter
from rwalk import Anchor, Guard, RWalk, StateOptions

EVERY = 8  # steps from one pull to the next
PROBES, PROBE_TOKENS, PULLED = 64, 256, 2048
RANK = 8
WARM_UP, STEPS = 8, 16
GIB = 2**30
FLOAT, NARROW = 4, 2  # bytes


@dataclass(frozen=True)
class Shape:
    """A model of Llama's form, whose outputs are tied to its embedding, and its training batches."""

    layers: int
    width: int
    heads: int
    groups: int
    inner: int
    words: int = 49152
    rows: int = 8
    length: int = 512

    @property
    def narrow(self) -> int:
        """The width of keys and of values."""
        return self.width // self.heads * self.groups

    @property
    def linear(self) -> int:
        """Parameters of the linear layers."""
        return self.layers * (2 * self.width**2 + 2 * self.width * self.narrow + 3 * self.width * self.inner)

    @property
    def parameters(self) -> int:
        return self.linear + self.words * self.width + (2 * self.layers + 1) * self.width

    @property
    def adapter(self) -> int:
        """Parameters of adapters at every linear layer."""
        widths = 4 * self.width + 2 * (self.width + self.narrow) + 3 * (self.width + self.inner)
        return self.layers * RANK * widths

    @property
    def tokens(self) -> int:
        return self.rows * self.length


SHAPES = {
    "0.1": Shape(30, 576, 9, 3, 1536),
    "0.5": Shape(24, 1280, 20, 5, 3456),
    "1": Shape(16, 2048, 32, 8, 8192),
    "3": Shape(28, 3072, 24, 8, 8192, rows=4),
    "7": Shape(32, 4096, 32, 32, 11008, rows=4),
}
WAYS = (
    "no guard", "Guard", "RWalk", "RWalk, 8 bit", "LoRA", "LoRA, Guard",
    "no guard, checkpointing", "Guard, checkpointing",
)  # fmt: skip
STATE = {"Guard": (1.0, 1.0), "RWalk": (6.0, 2.0), "RWalk, 8 bit": (2.3, 1.1)}  # vectors: kept, and in a step


# ── the formula ───────────────────────────────────────────────────────────────────────────────────────────────


def predicted(shape: Shape, way: str) -> float:
    """The most bytes on the device.

    With P parameters, of which T are trained: weights 4P (frozen ones 2P) and AdamW 8T are always there,
    gradients 4T from the backward pass to the step. A forward pass adds rounded weights (2 bytes of each that is
    float32) and activations, which shrink while gradients grow. An anchor keeps its last pull, 4T, and adds it to
    a copy of the gradients, 4T. A pull has a pass of its own while the task's gradients wait. It is never
    checkpointed, because transformers does that in training mode alone. RWalk keeps 6 vectors and needs 2 more in
    a step; 2.3 and 1.1 in 8 bits.
    """
    adapted = way.startswith("LoRA")
    trained = shape.adapter if adapted else shape.parameters
    kept, working = STATE.get(way.removesuffix(", checkpointing").removeprefix("LoRA, "), (0.0, 0.0))
    always = (2 + kept) * FLOAT * trained
    always += FLOAT * trained + NARROW * shape.parameters if adapted else FLOAT * shape.parameters
    rounded = NARROW * (shape.adapter if adapted else shape.linear + shape.words * shape.width)
    gradients = FLOAT * trained
    embedding = shape.words * shape.width
    in_training = rounded + activations(shape, shape.tokens, adapted)
    if "checkpointing" in way:  # each layer's input is kept; logits come before any layer is computed again
        in_training = shape.tokens * 4.0 * shape.width * (shape.layers + 2)
        in_training += max(
            rounded + 8 * shape.words * shape.tokens, 6 * embedding + HEAD * shape.words * shape.tokens
        )
    most = max(in_training, gradients + 2 * FLOAT * embedding, gradients + working * FLOAT * trained)
    if "Guard" in way:
        always += PROBES * PROBE_TOKENS * KEPT
        in_pull = rounded + activations(shape, PULLED, adapted) - kept * FLOAT * trained  # the last one is gone
        most = max(most, gradients + in_pull)
    return always + most


def activations(shape: Shape, tokens: int, adapted: bool = False) -> float:
    """Bytes that a forward pass keeps for the backward pass, and the logits with their gradients."""
    wide = (
        16 * shape.width + 14 * RANK if adapted else 30 * shape.width
    )  # residuals of an adapted model are bfloat16
    of_layer = wide + 4 * shape.narrow + 8 * shape.inner + 4 * shape.heads + 8
    layers = shape.layers * of_layer
    return float(tokens * (layers + HEAD * shape.words + 8 * shape.width))


KEPT = 8 * 129  # bytes of old outputs for each token of the probes: the most probable 128, and the others together
HEAD = 12.0  # bytes for each logit: float32, its logarithm and its gradient


# ── one row ───────────────────────────────────────────────────────────────────────────────────────────────────


def built(shape: Shape, way: str, device: str) -> nn.Module:
    import transformers

    config = transformers.LlamaConfig(
        vocab_size=shape.words, hidden_size=shape.width, intermediate_size=shape.inner, use_cache=False,
        num_hidden_layers=shape.layers, num_attention_heads=shape.heads, num_key_value_heads=shape.groups,
        tie_word_embeddings=True,
    )  # fmt: skip
    torch.manual_seed(0)
    adapted = way.startswith("LoRA")
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16 if adapted else torch.float32)
    try:
        with torch.device(device):
            model = transformers.LlamaForCausalLM(config)
    finally:
        torch.set_default_dtype(before)
    if adapted:
        adapt(model, RANK)
        for each in model.parameters():
            if each.requires_grad:
                each.data = each.data.float()
    if "checkpointing" in way:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    return model.train()


class Training:
    """A model, its optimizer, and a guard."""

    def __init__(self, shape: Shape, way: str, device: str) -> None:
        self.shape, self.device = shape, device
        self.model = built(shape, way, device)
        self.trained = [each for each in self.model.parameters() if each.requires_grad]
        self.optimizer = torch.optim.AdamW(self.trained, lr=1e-4, fused=True)
        self.tokens = torch.randint(shape.words, (shape.rows, shape.length), device=device)
        self.guard: Guard | None = None
        if "Guard" in way:
            probes = torch.randint(shape.words, (PROBES, min(PROBE_TOKENS, shape.length)), device=device)
            with narrow(device):
                method = Anchor(every=EVERY)
                self.guard = Guard(self.model, self.optimizer, method, probes={"input_ids": probes})
        elif "RWalk" in way:
            state = StateOptions(dtype="8bit") if "8 bit" in way else None
            self.guard = Guard(self.model, self.optimizer, RWalk(), state=state)

    def step(self) -> None:
        with narrow(self.device):
            loss = self.model(input_ids=self.tokens, labels=self.tokens).loss
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def probe_pass(self) -> None:
        """A forward and a backward pass of as many tokens as a pull takes, and nothing else of it."""
        ids = self.tokens[:, :PROBE_TOKENS][: PULLED // PROBE_TOKENS]
        ids = ids.repeat(-(-PULLED // ids.numel()), 1)
        with narrow(self.device):
            loss = self.model(input_ids=ids, labels=ids).loss
        torch.autograd.grad(loss, self.trained)


def narrow(device: str) -> AbstractContextManager[Any]:
    return torch.autocast(torch.device(device).type, torch.bfloat16)


def measured(shape: Shape, way: str, device: str) -> dict[str, Any]:
    """Milliseconds of a step, on average and without a pull, and the most bytes of all."""
    cuda = device == "cuda"
    spent: list[float] = []
    counted: list[int] = []  # pulls up to each step
    with meter(device) as readings:
        training = Training(shape, way, device)

        def timed(work: Callable[[], None]) -> float:
            if cuda:
                torch.cuda.synchronize()
            start = time.perf_counter()
            work()
            if cuda:
                torch.cuda.synchronize()
            return 1e3 * (time.perf_counter() - start)

        def step() -> None:
            spent.append(timed(training.step))
            counted.append(0 if training.guard is None else training.guard._schedule.pulls)

        for _ in range(WARM_UP):
            step()
        if training.guard is not None and not isinstance(training.guard.method, Anchor):
            training.guard.consolidate()
        for _ in range(STEPS):
            step()
        readings.mark("all")
        alone = median(timed(training.probe_pass) for _ in range(3)) if "Guard" in way else None
    after = spent[WARM_UP:]
    found: dict[str, Any] = {"parameters": sum(each.numel() for each in training.model.parameters())}
    found |= {"peak": readings.readings["all"].peak, "step_ms": mean(after)}
    if "Guard" in way:
        pulls = [now > before for before, now in zip([0, *counted], counted, strict=False)]
        plain = median(each for each, pulled in zip(after, pulls[WARM_UP:], strict=True) if not pulled)
        pull = median(each for each, pulled in zip(after, pulls[WARM_UP:], strict=True) if pulled) - plain
        first = spent[pulls.index(True)] - plain
        found |= {"plain_ms": plain, "pull_ms": pull, "first_pull_ms": first, "pass_ms": alone}
        found["step_ms"] = plain + pull / EVERY
    return found


def rows(shapes: dict[str, Shape], device: str, room: float, end: float) -> Iterator[dict[str, Any]]:
    """Every way of every size, the smallest first; where it cannot fit, only what the formula says."""
    for size, shape in shapes.items():
        for way in WAYS:
            row: dict[str, Any] = {"size": size, "way": way, **asdict(shape), "predicted": predicted(shape, way)}
            if time.time() > end:
                return
            if row["predicted"] > 1.03 * room:
                yield {**row, "fits": False}
                continue
            try:
                yield {**row, "fits": True, **measured(shape, way, device)}
            except torch.OutOfMemoryError:
                yield {**row, "fits": False}
            gc.collect()
            if device == "cuda":
                torch.cuda.empty_cache()


def told(row: dict[str, Any]) -> str:
    text = f"{row['size']:>4} B  {row['way']:24} predicted {row['predicted'] / GIB:6.1f} GiB"
    if not row["fits"]:
        return f"{text}: does not fit"
    text += f", measured {row['peak'] / GIB:6.1f} ({row['predicted'] / row['peak']:.3f} ×)"
    text += f", {row['step_ms']:7.1f} ms a step"
    if "pull_ms" in row:
        text += f"; a pull {row['pull_ms']:.0f} ms, the first {row['first_pull_ms']:.0f}, its pass alone"
        text += f" {row['pass_ms']:.0f}"
    return text


def planned(billions: float) -> str:
    """What each way takes around a model of this size, with the batches of the largest one here."""
    shape = known = SHAPES["7"]
    factor = 1.0
    for _ in range(5):  # of width and depth alike
        factor *= (1e9 * billions / shape.parameters) ** (1 / 3)
        heads = round(known.heads * factor)
        inner = 128 * round(known.inner * factor / 128)
        shape = replace(
            known, layers=round(known.layers * factor), width=128 * heads, heads=heads, groups=8, inner=inner
        )
    lines = [f"{shape.parameters / 1e9:.1f} billion parameters, {shape.rows} × {shape.length} tokens per step"]
    return "\n".join([*lines, *(f"{way:26} {predicted(shape, way) / GIB:8.1f} GiB" for way in WAYS)])


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("build/scale-guard"))
    parser.add_argument("--minutes", type=float, default=10.0, help="begin nothing later than this")
    parser.add_argument("--plan", type=float, metavar="BILLIONS", help="print the formula's figures, and end")
    parser.add_argument("--tiny", action="store_true", help="one small model: does all of it run?")
    options = parser.parse_args(arguments)
    if options.plan:
        print(planned(options.plan))
        return
    device = "cuda" if torch.cuda.is_available() else "cpu"
    shapes = {"tiny": Shape(4, 128, 8, 4, 384, words=512, rows=4, length=128)} if options.tiny else SHAPES
    room = torch.cuda.mem_get_info()[0] if device == "cuda" else float("inf")
    options.out.mkdir(parents=True, exist_ok=True)
    for row in rows(shapes, device, room, time.time() + 60 * options.minutes):
        print(told(row), flush=True)
        with (options.out / "scale.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
