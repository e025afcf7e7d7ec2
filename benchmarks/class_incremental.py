"""CIFAR-100 class by class, from scratch, without exemplars: the figures of docs/class-incremental.md.

    python -m benchmarks.class_incremental measure --data PATH --map noise --size 100 --tasks 10 100 --orders 2
    python -m benchmarks.class_incremental            # the table from the stored rows, written into the page

Classes come in the order `numpy.random.RandomState(seed).permutation(100)`, for the seeds 1993, 1994 and so on,
equally many in every task. After each task the test images of all classes so far are predicted; the task is not
given. "Last" is the accuracy after the last task, "average" the mean over tasks. Images are not augmented.

The feature map is made of the first task's images ("first call"), or of noise ("noise"): then it has seen no
image, and depends neither on the order nor on the number of tasks. A map never changes, so the features of all
images are computed once per map. Everything else is done as in `IncrementalClassifier`.
"""

from __future__ import annotations

import argparse
import json
import lzma
import re
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.record import commit
from rwalk.closed_form.examples import Examples
from rwalk.closed_form.features import Recipe, placed
from rwalk.closed_form.model import Model
from rwalk.closed_form.solution import Rule
from rwalk.closed_form.solve import FOR_CLASSES
from rwalk.data import datasets

FIRST_ORDER = 1993  # the seed of the order that most papers use
MAPS = "first call", "noise"
ROWS = Path(__file__).parent / "class_incremental.jsonl.xz"
PAGE = Path(__file__).parents[1] / "docs" / "class-incremental.md"
NOISE = 3000  # images of noise


@dataclass(frozen=True)
class Computed:
    """A map of image numbers to features that were computed before."""

    features: Tensor
    kind = "images"

    def __call__(self, x: Tensor) -> Tensor:
        return self.features[x[:, 0].long()]

    @property
    def blocks(self) -> list[int]:
        return [1] * self.features.shape[1]


def features(images: Tensor, made_of: Tensor, size: int | None, device: str) -> Tensor:
    """The features of all images, by a map made of some."""
    made = Recipe(size=size).make(made_of.to(device), torch.ones(len(made_of), dtype=torch.float64, device=device))
    chart = placed(made, torch.float32, torch.device(device))
    return torch.cat([chart(rows.to(device)) for rows in images.split(256)])


def accuracies(phi: Tensor, y: Tensor, learned: int, order: Any, tasks: list[int]) -> Iterator[tuple[int, float]]:
    """Classes known and the accuracy, wherever a task ends; the first images are the learned ones."""
    model = Model(Recipe(), (1,), len(order), Rule(share=FOR_CLASSES), device=phi.device)
    model.take(Computed(phi))
    column, numbers = torch.from_numpy(np.argsort(order))[y], torch.arange(len(y), dtype=torch.float64)[:, None]
    for known in range(1, len(order) + 1):
        mine = (column[:learned] == known - 1).nonzero()[:, 0]
        model.learn(Examples(numbers[mine], column[mine], torch.ones(len(mine), dtype=torch.float64)))
        if any(known % (len(order) // each) == 0 for each in tasks):
            asked = learned + (column[learned:] < known).nonzero()[:, 0]
            best = model.scores(numbers[asked])[:, :known].argmax(1)
            yield known, 100 * float((best == column[asked]).double().mean())


def measure(data: str | None, kind: str, size: int | None, tasks: list[int], orders: int, device: str) -> None:
    """Add the rows that are missing."""
    dataset = datasets.load("cifar100-pixels", data)
    images, y = torch.cat([dataset.x, dataset.x_test]), torch.cat([dataset.y, dataset.y_test])
    learned, phi, seconds = len(dataset.x), None, 0.0
    for order in range(FIRST_ORDER, FIRST_ORDER + orders):
        classes = np.random.RandomState(order).permutation(100)
        for together in [tasks] if kind == "noise" else [[each] for each in tasks]:
            key = {"map": kind, "size": size, "order": order, "device": device}
            if all(any({**key, "tasks": each}.items() <= row.items() for row in rows()) for each in together):
                continue
            start = time.process_time()
            if kind == "first call":
                first = np.isin(dataset.y.numpy(), classes[: 100 // together[0]])
                phi = features(images, dataset.x[torch.from_numpy(first)], size, device)
            elif phi is None:
                phi = features(
                    images,
                    torch.rand(NOISE, *images.shape[1:], generator=torch.Generator().manual_seed(0)),
                    size,
                    device,
                )
            if time.process_time() - start > 1:
                seconds = time.process_time() - start
            start = time.process_time()
            found = dict(accuracies(phi, y, learned, classes, together))
            solving = round(time.process_time() - start)
            for each in together:
                ends = range(100 // each, 101, 100 // each)
                row: dict[str, Any] = {
                    **key,
                    "tasks": each,
                    "accuracy": [round(found[known], 2) for known in ends],
                }
                row |= {"features_seconds": round(seconds), "solving_seconds": solving, "commit": commit()}
                store(row)
                print(key, f"T = {each}: last {row['accuracy'][-1]}, {seconds:.0f} + {solving} s", flush=True)


def rows() -> list[dict[str, Any]]:
    text = lzma.decompress(ROWS.read_bytes()).decode() if ROWS.exists() else ""
    return [json.loads(line) for line in text.splitlines()]


def store(row: dict[str, Any]) -> None:
    text = "".join(json.dumps(each) + "\n" for each in [*rows(), row])
    ROWS.write_bytes(lzma.compress(text.encode(), preset=9))


def table() -> str:
    """Last and average accuracy by map, patches and number of tasks, over orders."""
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows():
        groups.setdefault((MAPS.index(row["map"]), row["size"], row["tasks"]), []).append(row)
    lines = ["| map | patches | T | orders | last, % | average, % |", "|---|---|---|---|---|---|"]
    for (kind, size, tasks), group in sorted(groups.items()):
        last = [row["accuracy"][-1] for row in group]
        average = [statistics.mean(row["accuracy"]) for row in group]
        figures = f"{_spread(last)} | {_spread(average)}"
        lines.append(f"| {MAPS[kind]} | {size:,} | {tasks} | {len(group)} | {figures} |")
    return "\n".join(lines)


def _spread(values: list[float]) -> str:
    mean = f"{statistics.mean(values):.1f}"
    return mean if len(values) == 1 else f"{mean} ± {statistics.stdev(values):.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", choices=["measure", "table"], default="table")
    parser.add_argument("--data", default=None, help="folder of the official files")
    parser.add_argument("--map", choices=MAPS, default=MAPS[0])
    parser.add_argument("--size", type=int, default=800, help="patches")
    parser.add_argument("--tasks", type=int, nargs="+", default=[10, 20, 50, 100])
    parser.add_argument("--orders", type=int, default=5, help="number of orders of the classes")
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    if args.what == "measure":
        measure(args.data, args.map, args.size, args.tasks, args.orders, args.device)
    text = PAGE.read_text(encoding="utf-8")
    text = re.sub(r"(?s)(<!-- ours -->\n).*(<!-- /ours -->)", lambda m: f"{m[1]}{table()}\n{m[2]}", text)
    PAGE.write_text(text, encoding="utf-8")
    print(table())


if __name__ == "__main__":
    main()
