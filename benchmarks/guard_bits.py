"""A hash of what guarded training ends with, for every optimizer, method and loop: is a change exact?

    python -m benchmarks.guard_bits                  print a hash for each of them
    python -m benchmarks.guard_bits --against REV    compare with another commit, in a checkout of its own

The hash covers the model, the optimizer's state and the guard's state after two tasks, bit by bit.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import os
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer

from rwalk import EWC, PI, Guard, RWalk, StateOptions

STEPS = 20
OPTIMIZERS: dict[str, Callable[[Any], Optimizer]] = {
    "Adam": lambda parameters: Adam(parameters, lr=1e-2),
    "AdamW": lambda parameters: AdamW(parameters, lr=1e-2),
    "SGD": lambda parameters: SGD(parameters, lr=0.05, momentum=0.9),
}
KINDS: dict[str, dict[str, Any]] = {
    "default": {},
    "budget": {"budget": 0.02},
    "EWC": {"method": EWC(lam=10.0)},
    "RWalk": {"method": RWalk(lam=10.0)},
    "PI": {"method": PI(lam=10.0)},
    "8 bit": {"method": RWalk(lam=10.0), "state": StateOptions(dtype="8bit")},
    "offload": {"method": RWalk(lam=10.0), "state": StateOptions(device="cpu")},
    "narrow": {"method": RWalk(lam=10.0)},
    "narrow, 8 bit": {"method": RWalk(lam=10.0), "state": StateOptions(dtype="8bit")},
    "LoRA": {"params": "*lora_*"},
    "LoRA, EWC": {"method": EWC(lam=10.0), "params": "*lora_*"},
}
LOOPS = ("plain", "closure", "accumulation", "mixed precision")


class Adapted(nn.Module):
    """A layer that stays as it is, beside a product of two small ones."""

    def __init__(self, layer: nn.Linear, rank: int = 3) -> None:
        super().__init__()
        self.layer = layer.requires_grad_(False)
        self.lora_A = nn.Parameter(torch.randn(rank, layer.in_features) * 0.1)
        self.lora_B = nn.Parameter(torch.zeros(layer.out_features, rank))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layer(x) + x @ self.lora_A.T @ self.lora_B.T
        return out


def model_of(kind: str) -> nn.Sequential:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(6, 160), nn.BatchNorm1d(160), nn.ReLU(), nn.Dropout(0.1), nn.Linear(160, 16), nn.ReLU()
    )
    model.append(nn.Linear(16, 4))
    if kind.startswith("LoRA"):
        model[0], model[4] = Adapted(model[0]), Adapted(model[4])  # type: ignore[arg-type]
    return model.to(precision_of(kind))


def precision_of(kind: str) -> torch.dtype:
    return torch.bfloat16 if kind.startswith("narrow") else torch.float32


def hashes() -> Iterator[tuple[str, str]]:
    for name, kind, loop in itertools.product(OPTIMIZERS, KINDS, LOOPS):
        model = model_of(kind)
        optimizer = OPTIMIZERS[name]([each for each in model.parameters() if each.requires_grad])
        x = torch.randn(40, 6).to(precision_of(kind))
        guard = Guard(model, optimizer, probes=x, **KINDS[kind])
        losses = {"losses": (F.cross_entropy(model(x[i::4]), x[i::4, :4].argmax(1)) for i in range(4))}
        for task in range(2):
            trained(model, optimizer, loop, task)
            guard.consolidate(**losses if "EWC" in kind and not task else {})
            if "EWC" in kind:
                break
        trained(model, optimizer, loop, 2)
        found = [model.state_dict(), optimizer.state_dict(), guard.state_dict(), guard.report().to_dict()]
        yield f"{name}, {kind}, {loop}", digest(found)


def trained(model: nn.Module, optimizer: Optimizer, loop: str, task: int) -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**40, growth_interval=4)  # some steps are skipped
    generator, precision = torch.Generator().manual_seed(task), next(model.parameters()).dtype
    for step in range(STEPS):
        x = torch.randn(16, 6, generator=generator).to(precision) + task
        y = (x[:, :4] * (1 - task)).argmax(1)

        def loss(x: Tensor = x, y: Tensor = y) -> Tensor:
            optimizer.zero_grad()
            value = F.cross_entropy(model(x), y)
            value.backward()
            return value

        if loop == "closure":
            optimizer.step(loss)  # type: ignore[arg-type]
        elif loop == "mixed precision":
            with torch.autocast("cpu", torch.bfloat16):
                value = F.cross_entropy(model(x).float(), y)
            scaler.scale(value).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        elif loop == "accumulation":
            F.cross_entropy(model(x), y).backward()
            if step % 2:
                optimizer.step()
                optimizer.zero_grad(set_to_none=False)
        else:
            loss()
            optimizer.step()


def digest(found: Any) -> str:
    """Of all numbers, names and texts in it, in their order."""
    total = hashlib.sha256()

    def add(value: Any) -> None:
        if isinstance(value, Tensor):
            whole = value.detach().cpu().contiguous().flatten()
            total.update(f"{tuple(value.shape)}{value.dtype}".encode() + whole.view(torch.uint8).numpy().tobytes())
        elif isinstance(value, dict):
            for key in sorted(value, key=str):
                total.update(str(key).encode())
                add(value[key])
        elif isinstance(value, list | tuple):
            for each in value:
                add(each)
        else:
            total.update(repr(value).encode())

    add(found)
    return total.hexdigest()[:16]


def at(revision: str) -> dict[str, str]:
    """The hashes of this very program in a checkout of another commit."""
    root = Path(__file__).parent.parent
    with tempfile.TemporaryDirectory() as folder:
        made = ["git", "-C", str(root), "worktree", "add", "--detach", folder, revision]
        subprocess.run(made, check=True, capture_output=True)
        try:
            environment = {**os.environ, "PYTHONPATH": f"{folder}/src"}
            command = [sys.executable, __file__]
            text = subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout
        finally:
            subprocess.run(["git", "-C", str(root), "worktree", "remove", "--force", folder], check=True)
    return {name: value for value, _, name in (line.partition(" ") for line in text.splitlines())}


def main() -> int:
    assert __doc__ is not None
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--against", metavar="REV", help="a commit to compare with")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    before = at(given.against) if given.against else None
    different = 0
    for name, value in hashes():
        differs = before is not None and before.get(name) != value
        different += differs
        print(value, name + " DIFFERENT" * differs, flush=True)
    if before is not None:
        print(f"{different} of {len(before)} differ")
    return int(different > 0)


if __name__ == "__main__":
    raise SystemExit(main())
