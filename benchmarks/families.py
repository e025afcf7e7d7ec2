"""Closed form, networks, and the choice between them: the table of `method="auto"` in docs/classifier.md.

    python -m benchmarks.families digits mnist FILE.npz interactions --data PATH --seeds 2

Classes come in calls of their own, in an order drawn by the seed; accuracy on the test data of all classes after
the last call. Networks, and the judges of "auto", have ten exemplars per class. "interactions" are drawn, four
calls of all classes: products of columns among many that say nothing, which a network finds.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from rwalk import IncrementalClassifier
from rwalk.data import datasets

METHODS = ("closed-form", "rwalk", "er", "icarl", "auto")
MEMORY = 10
PORTIONS = 4
Data = tuple[NDArray[np.float32], NDArray[np.int64], NDArray[np.float32], NDArray[np.int64]]


def interactions(seed: int, n: int = 8000, columns: int = 40) -> Data:
    draw = np.random.default_rng(seed)
    x = draw.normal(size=(n + 2000, columns)).astype(np.float32)
    y = 2 * (x[:, 0] * x[:, 1] > 0) + (x[:, 2] * x[:, 3] > 0)
    return x[:n], y[:n], x[n:], y[n:]


def load(name: str, data: str | None, seed: int, most: int) -> Data:
    """Vectors, at most so many to learn from."""
    if name == "interactions":
        return interactions(seed)
    dataset = datasets.load(name, data, seed=seed)
    some = np.random.default_rng(seed).permutation(len(dataset.y))[:most]
    x, x_test = (part.flatten(1).numpy() for part in (dataset.x, dataset.x_test))
    return x[some], dataset.y.numpy()[some], x_test, dataset.y_test.numpy()


def calls(name: str, y: NDArray[np.int64], size: int, seed: int) -> Iterator[NDArray[np.bool_]]:
    if name == "interactions":  # all classes in every call
        yield from (np.arange(len(y)) % PORTIONS == portion for portion in range(PORTIONS))
        return
    order = np.random.default_rng(seed).permutation(np.unique(y))
    for start in range(0, len(order), size):
        yield np.isin(y, order[start : start + size])


def measure(name: str, data: str | None, seeds: int, size: int, most: int) -> None:
    found: dict[str, list[float]] = {method: [] for method in METHODS}
    took: dict[str, float] = dict.fromkeys(METHODS, 0.0)
    chosen = []
    for seed in range(seeds):
        x, y, x_test, y_test = load(name, data, seed, most)
        for method in METHODS:
            begun = time.process_time()
            kept = {} if method == "closed-form" else {"memory": MEMORY}
            clf = IncrementalClassifier(method=method, random_state=seed, **kept)
            for mine in calls(name, y, size, seed):
                clf.partial_fit(x[mine], y[mine])
            found[method].append(100 * clf.score(x_test, y_test))
            took[method] += time.process_time() - begun
        chosen.append(clf.chosen_)
    cells = [
        f"{method} {np.mean(a):.1f} ± {np.std(a):.1f} in {took[method] / seeds:.0f} s"
        for method, a in found.items()
    ]
    print(f"{name}: {'; '.join(cells)}; chosen: {', '.join(chosen)}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="+", help="digits, mnist, interactions, or a FILE.npz")
    parser.add_argument("--data", default=None, help="folder of the official files")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--classes", type=int, default=2, help="classes per call")
    parser.add_argument("--most", type=int, default=10_000, help="examples learned from, at most")
    args = parser.parse_args()
    for what in args.what:
        measure(what, args.data, args.seeds, args.classes, args.most)


if __name__ == "__main__":
    main()
