"""CIFAR-100 class by class, from scratch, without exemplars: the figures of docs/class-incremental.md.

    python -m benchmarks.class_incremental --data PATH --tasks 10 50 --orders 2 --size 800 --out rows.jsonl

Every task is one call of `partial_fit` with as many classes as any other, without augmentation. Classes come
in the order `numpy.random.RandomState(seed).permutation(100)`, for the seeds 1993, 1994 and so on. After each
task the test images of all classes so far are predicted; the task is not given. "Last" is the accuracy after the
last task, "average" the mean over tasks. A run that is in the file `--out` already is not repeated.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rwalk import IncrementalClassifier
from rwalk.data import datasets

FIRST_ORDER = 1993  # the seed of the order that most papers use


def run(data: str | None, tasks: int, order: int, size: int | None, device: str) -> dict[str, Any]:
    """Accuracies after every task, in percent, and the seconds that learning and predicting took."""
    dataset = datasets.load("cifar100-pixels", data)
    x, y, x_test, y_test = (part.numpy() for part in (dataset.x, dataset.y, dataset.x_test, dataset.y_test))
    classes = np.random.RandomState(order).permutation(100)
    wall, processor = time.perf_counter(), time.process_time()
    clf = IncrementalClassifier(size=size, device=device, random_state=0)
    features = torch.empty(0)
    accuracies: list[float] = []
    for task in np.split(classes, tasks):
        mine = np.isin(y, task)
        clf.partial_fit(x[mine], y[mine])
        model = clf._sums()._model
        if not accuracies:  # the map never changes: test images go through it once
            features = torch.cat([*model.features(torch.from_numpy(x_test))])
        asked = np.isin(y_test, clf.classes_)
        best = model.fit.scores(features[torch.from_numpy(asked)]).argmax(1).numpy()
        accuracies.append(100 * float((clf.classes_[best] == y_test[asked]).mean()))
    return {
        "accuracy": [round(each, 2) for each in accuracies],
        "seconds": round(time.perf_counter() - wall),
        "processor_seconds": round(time.process_time() - processor),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default=None, help="folder of the official files")
    parser.add_argument("--tasks", type=int, nargs="+", default=[10, 20, 50, 100])
    parser.add_argument("--orders", type=int, default=5, help="number of orders of the classes")
    parser.add_argument("--size", type=int, default=None, help="patches; otherwise the default")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, default=Path("class-incremental.jsonl"))
    args = parser.parse_args()
    lines = args.out.read_text(encoding="utf-8").splitlines() if args.out.exists() else []
    rows = [json.loads(line) for line in lines]
    for tasks in args.tasks:
        for order in range(FIRST_ORDER, FIRST_ORDER + args.orders):
            key = {"tasks": tasks, "order": order, "size": args.size, "device": args.device}
            row = next((row for row in rows if key.items() <= row.items()), None)
            if row is None:
                row = {**key, **run(args.data, tasks, order, args.size, args.device)}
                with args.out.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(row) + "\n")
            accuracy = row["accuracy"]
            print(
                f"T = {tasks}, order {order}: last {accuracy[-1]:.1f}, average {np.mean(accuracy):.1f}, "
                f"{row['seconds']} s ({row['processor_seconds']} s of processor time)",
                flush=True,
            )


if __name__ == "__main__":
    main()
