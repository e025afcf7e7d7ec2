"""The cost of a Guard around a language model on a GPU: the time of a step, kernels, memory.

    python -m benchmarks.guard_gpu                  # all of them, in about five minutes
    python -m benchmarks.guard_gpu RWalk EWC        # only these

A model of SmolLM2-135M's form, with random weights: 272 tensors, of which the smallest have 576 numbers and the
largest has 28 million. Steps with and without a guard take turns, in bfloat16 by autocast, on 16 × 512 tokens with
AdamW. Where the host takes longer to launch kernels than the device takes to run them, that measures the host; the
device's own time is given beside it. Memory is measured on a few tokens, so that parameters
and guard state are most of it. Each guard is measured alone, and printed as soon as it is measured.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from time import perf_counter
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks import bars
from benchmarks.meter import meter
from benchmarks.rounds import Contender, Missing, beside
from rwalk import EWC, PI, Anchor, Guard, RWalk, StateOptions
from rwalk.methods.mas import MAS

ROUNDS, STEPS = 9, 10  # a round is a window of RWalk's path score
OBSERVING = ("RWalk", "PI")  # before a task's end the others do the same as these, or nothing
Made = tuple[Callable[[], None], Guard | None]


@dataclass(frozen=True)
class Form:
    """A model of SmolLM2's kind, and the size of its training batches."""

    layers: int = 30
    width: int = 576
    heads: int = 9
    groups: int = 3  # of keys and values
    inner: int = 1536
    words: int = 49152
    batch: int = 16
    length: int = 512


class Layer(nn.Module):
    def __init__(self, form: Form) -> None:
        super().__init__()
        self.form = form
        narrow = form.width // form.heads * form.groups
        self.query, self.out = (nn.Linear(form.width, form.width, bias=False) for _ in range(2))
        self.key, self.value = (nn.Linear(form.width, narrow, bias=False) for _ in range(2))
        self.gate, self.up = (nn.Linear(form.width, form.inner, bias=False) for _ in range(2))
        self.down = nn.Linear(form.inner, form.width, bias=False)
        self.before_attention, self.before_mlp = (nn.RMSNorm(form.width) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        seen = self.before_attention(x)
        heads = [each(seen).unflatten(-1, (-1, self.form.width // self.form.heads)).transpose(1, 2)
                 for each in (self.query, self.key, self.value)]  # fmt: skip
        attended = F.scaled_dot_product_attention(*heads, is_causal=True, enable_gqa=True)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        seen = self.before_mlp(x)
        mixed: Tensor = x + self.down(F.silu(self.gate(seen)) * self.up(seen))
        return mixed


class Model(nn.Module):
    """Outputs are tied to the embedding, as SmolLM2's are; positions have no parameters and are left out."""

    def __init__(self, form: Form) -> None:
        super().__init__()
        self.embedding = nn.Embedding(form.words, form.width)
        nn.init.normal_(self.embedding.weight, std=0.02)
        self.layers = nn.ModuleList(Layer(form) for _ in range(form.layers))
        self.last = nn.RMSNorm(form.width)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        logits: Tensor = F.linear(self.last(x), self.embedding.weight)
        return logits


def guards() -> dict[str, dict[str, Any]]:
    """The options of each guard in the comparison."""
    return {
        "RWalk": {"method": RWalk()},
        "EWC": {"method": EWC(lam=1e3)},
        "PI": {"method": PI()},
        "RWalk, proximal": {"method": RWalk(penalty="proximal")},
        "RWalk, 8 bit": {"method": RWalk(), "state": StateOptions("8bit")},
        "RWalk, offloaded": {"method": RWalk(), "state": StateOptions(device="cpu")},
        "RWalk, 8 bit, offloaded": {"method": RWalk(), "state": StateOptions("8bit", "cpu")},
        "RWalk, stiff": {"method": RWalk(lam=1e4)},  # λ beyond what AdamW's steps can follow
        "MAS": {"method": MAS()},
        "Anchor": {"method": Anchor()},
        "Anchor, every 16": {"method": Anchor(every=16)},
    }


def training(form: Form, device: str, options: Mapping[str, Any] | None) -> Made:
    """A step of a model that nothing is held of yet, and its guard."""
    torch.manual_seed(0)
    with torch.device(device):
        model = Model(form)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    tokens = torch.randint(form.words, (form.batch, form.length + 1), device=device)
    guard = None
    if options is not None:
        probes = tokens[:, : max(1, form.length // 2)] if isinstance(options["method"], Anchor) else None
        with narrow(device):
            guard = Guard(model, optimizer, probes=probes, **options)

    def step() -> None:
        with narrow(device):
            loss = F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    step()
    return step, guard


def narrow(device: str) -> AbstractContextManager[object]:
    return torch.autocast(torch.device(device).type, torch.bfloat16)


def end_task(guard: Guard, form: Form, device: str) -> None:
    """Give every method something to hold from here on."""
    tokens = torch.randint(form.words, (max(2, form.batch // 2), max(2, form.length // 2)), device=device)
    if not isinstance(guard.method, Anchor) and guard.method.data_pass:
        with narrow(device):
            guard.consolidate(guard.model(batch).square().mean() for batch in tokens.split(1))
    else:
        guard.consolidate()


def wait(device: str) -> None:
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize()


def contender(step: Callable[[], None], device: str, steps: int) -> Contender:
    def work() -> float:
        wait(device)
        start = perf_counter()
        for _ in range(steps):
            step()
        wait(device)
        return (perf_counter() - start) / steps

    return work


class Launched(NamedTuple):
    """Kernels of a step, and the milliseconds that the device is at work on them."""

    kernels: float
    busy_ms: float


def launched_by(step: Callable[[], None]) -> Launched:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(STEPS):
            step()
        torch.cuda.synchronize()
    on_device = [event for event in profile.events() if event.device_type == torch.autograd.DeviceType.CUDA]
    found = [event for event in on_device if not event.is_user_annotation]
    return Launched(len(found) / STEPS, sum(event.device_time for event in found) / STEPS / 1e3)


def waits(step: Callable[[], None]) -> bool:
    """Whether the host waits for the device anywhere in a step."""
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(STEPS):
            step()
    except RuntimeError:
        return True
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return False


def peak(form: Form, device: str, options: Mapping[str, Any] | None) -> tuple[int, int]:
    """The most bytes of two tasks and the step between them, and those of all parameters."""
    with meter(device) as readings:
        step, guard = training(form, device, options)
        for _ in range(2):
            for _ in range(STEPS + 1):
                step()
            if guard is not None:
                end_task(guard, form, device)
        wait(device)
        readings.mark("all")
        parameters = 0 if guard is None else sum(each.nbytes for each in guard.model.parameters())
    return readings.readings["all"].peak, parameters


def measured(
    device: str, form: Form, names: Sequence[str], rounds: int, steps: int
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Guard after guard, beside the same training without one."""
    few = Form(**{**vars(form), "batch": 1, "length": 8})
    without, _ = peak(few, device, None)
    plain, _ = training(form, device, None)
    base = contender(plain, device, steps)
    on_a_gpu = torch.device(device).type == "cuda"
    alone = launched_by(plain) if on_a_gpu else Launched(0, 0)
    for name in names:
        options = guards()[name]
        found: dict[str, Any] = {}
        step, guard = training(form, device, options)
        assert guard is not None
        anchored = isinstance(guard.method, Anchor)
        work = {name: contender(step, device, 16 if anchored else steps)}  # two pulls in every round
        if name in OBSERVING:
            found["before"] = beside(base, work, rounds)[1][name]
        end_task(guard, form, device)
        for _ in range(64 if anchored and on_a_gpu else 0):  # pulls come more often at a task's start
            step()
        seconds, by_plain = beside(base, work, rounds)
        found |= {"after": by_plain[name], "plain_ms": 1e3 * seconds}
        if on_a_gpu:
            with_it = launched_by(step)
            found |= {"kernels": with_it.kernels - alone.kernels, "busy": with_it.busy_ms / alone.busy_ms}
            found |= {"waits": waits(step)}
        del step, guard, work  # its memory is free for the next one
        most, parameters = peak(few, device, options)
        yield name, {**found, "vectors": (most - without) / parameters}


def bench(
    device: str = "cuda",
    form: Form | None = None,
    rounds: int = ROUNDS,
    steps: int = STEPS,
    names: Sequence[str] = (),
    tell: Callable[[dict[str, Any]], None] | None = None,
) -> dict[str, Any]:
    """By guard: steps by those without it, before and after something is held; kernels; vectors of memory.

    `tell` is called with the figures of each guard as soon as they are measured.
    """
    if torch.device(device).type == "cuda" and not torch.cuda.is_available():
        raise Missing("guard-gpu cannot be measured: there is no CUDA device here")
    for name in names:
        if name not in guards():
            raise Missing(f"there is no guard {name!r} (there are: {', '.join(guards())})")
    form = form or Form()
    with torch.device("meta"):
        sizes = [parameter.numel() for parameter in Model(form).parameters()]
    found: dict[str, Any] = {"tensors": len(sizes), "largest": max(sizes) / sum(sizes)}
    for name, of_guard in measured(device, form, names or list(guards()), rounds, steps):
        if tell is not None:
            tell({"tensors": found["tensors"], "largest": found["largest"], name: of_guard})
        found[name] = of_guard
    return found


def told(found: Mapping[str, Any]) -> None:
    for row in bars.rows({"guard-gpu": found}):
        mark = {True: "met", False: "MISSED", None: ""}[row.met]
        print(f"{row.what:72} {row.measured:>10} {row.bar:>9} {mark}", flush=True)


def main(names: Sequence[str] = ()) -> int:
    try:
        results = {"guard-gpu": bench(names=names, tell=told)}
    except Missing as reason:
        print(reason, file=sys.stderr)
        return 2
    return 1 if any(row.met is False for row in bars.rows(results)) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
