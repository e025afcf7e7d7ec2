"""The time of a step of LwF and of DER++, against bare loops that do the same arithmetic by hand.

The steps of benchmarks/steps.py, in the second of two tasks: LwF with its teacher, DER++ with 200 examples kept
with their logits, as many of them in every batch as new ones. The bare loops are plain PyTorch on tensors with
fused Adam; a second one has a compiled model, as one does it by hand.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.rounds import Contender, beside, timed
from benchmarks.steps import ROUNDS, STEPS, data, mlp, ours
from rwalk.compiled_programs import compiler_works
from rwalk.data import splits
from rwalk.data.memory import MemorySpec
from rwalk.data.streams import Stream
from rwalk.threads import few_threads

KEPT, BATCH = 200, 64
AT_END = MemorySpec(total=KEPT, sampler="uniform", replay="beside")
RESERVOIR = MemorySpec(total=KEPT, sampler="reservoir", replay="beside")
Loss = Callable[[Tensor], Tensor]  # of the numbers of a batch


def bench(steps: int = STEPS, rounds: int = ROUNDS, fuse: bool = True) -> dict[str, float]:
    """Milliseconds of the bare steps, and everybody's ratio to the bare step of the same loss."""
    found = {}
    with few_threads(1):
        x, y = data(max(steps * BATCH // 5, KEPT))
        stream = splits.from_arrays(x, y, *data(10), classes_per_task=5)
        cases = {"lwf": {"lwf": None}, "der++": {"der++": AT_END, "der++ with a reservoir": RESERVOIR}}
        for name, forms in cases.items():
            contenders: dict[str, Contender] = {}
            if fuse and compiler_works():
                contenders[f"bare {name}, compiled"] = bare(name, stream, steps, compiled=True)
            for words, memory in forms.items():
                contenders[words] = ours(name, stream, fuse, steps, memory)
                contenders |= {f"{words}, eager": ours(name, stream, False, steps, memory)} if fuse else {}
            seconds, ratios = beside(bare(name, stream, steps), contenders, rounds)
            found |= {f"bare {name}_ms": 1e3 * seconds, **ratios}
    return found


def bare(name: str, stream: Stream, steps: int, compiled: bool = False) -> Contender:
    """The loop by hand; like ours, it begins a task with a new optimizer."""
    model = mlp()
    called = torch.compile(model) if compiled else model
    loss = {"lwf": _lwf, "der++": _derpp}[name](model, called, stream)
    task = stream.tasks[1].train

    def train() -> None:
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
        for place in torch.randint(len(task), (steps, BATCH)):
            value = loss(task[place])
            optimizer.zero_grad()
            value.backward()
            optimizer.step()

    train()  # once, to compile and allocate
    return timed(train, steps)


def _lwf(model: nn.Module, called: Callable[[Tensor], Tensor], stream: Stream) -> Loss:
    teacher = copy.deepcopy(model).eval()

    def loss(index: Tensor) -> Tensor:
        x, y = stream.x[index], stream.y[index]
        with torch.no_grad():
            said = (teacher(x)[:, :5] / 2).softmax(1)
        logits = called(x)
        apart = -(said * (logits[:, :5] / 2).log_softmax(1)).sum(1).mean()
        return F.cross_entropy(logits[:, 5:], y - 5) + 4 * apart

    return loss


def _derpp(model: nn.Module, called: Callable[[Tensor], Tensor], stream: Stream) -> Loss:
    kept = stream.tasks[0].train[:KEPT]
    with torch.no_grad():
        stored = model(stream.x[kept])

    def loss(index: Tensor) -> Tensor:
        place = torch.randint(len(kept), (len(index),))
        both = torch.cat([index, kept[place]])
        logits, y = called(stream.x[both]), stream.y[both]
        new, old = logits.split(len(index))
        moved = F.mse_loss(old, stored[place])
        return F.cross_entropy(new, y[: len(index)]) + 0.1 * moved + 0.5 * F.cross_entropy(old, y[len(index) :])

    return loss


if __name__ == "__main__":
    print(bench())
