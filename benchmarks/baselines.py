"""The estimator beside what is usually taken for tables: "Beside other estimators" in docs/classifier.md.

    Rscript -e 'library(mlbench); for (n in c("LetterRecognition", "Satellite", "Shuttle", "Vehicle", "Vowel"))
        { data(list=n); write.csv(get(n), paste0(n, ".csv"), row.names=FALSE) }'
    python -m benchmarks.baselines LetterRecognition.csv:lettr Satellite.csv:classes … breast_cancer wine digits

Classes arrive in calls of their own, at most five calls, in an order drawn by the seed: IncrementalClassifier and
SGDClassifier learn them by `partial_fit`. Beside them SGDClassifier in calls of random examples, and LightGBM on
all data at once. Everything has its defaults; SGDClassifier gets standardized columns. Accuracy on a fifth of the
rows, drawn by the seed, stratified; mean ± standard deviation over seeds. It needs `pip install lightgbm`.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import sklearn.datasets
from lightgbm import LGBMClassifier
from numpy.typing import NDArray
from sklearn.linear_model import SGDClassifier
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler

from rwalk import IncrementalClassifier

CALLS = 5
Data = tuple[NDArray[np.float64], NDArray[Any]]
Learn = Callable[[NDArray[np.float64], NDArray[Any], list[NDArray[np.intp]], int], Any]


def load(name: str) -> Data:
    """A set of scikit-learn, or FILE.csv:LABEL; a column of text becomes the places of its values in a list."""
    path, _, label = name.partition(":")
    if not label:
        x, y = getattr(sklearn.datasets, f"load_{name}")(return_X_y=True)
        return x, y
    with Path(path).open(newline="") as file:
        rows = list(csv.DictReader(file))
    columns = [[row[column] for row in rows] for column in rows[0] if column != label]
    return np.array([numbers(each) for each in columns]).T, np.array([row[label] for row in rows])


def numbers(column: list[str]) -> NDArray[np.float64]:
    try:
        return np.array(column, dtype=float)
    except ValueError:
        return np.unique(column, return_inverse=True)[1].astype(float)


def by_class(y: NDArray[Any], draw: np.random.Generator) -> list[NDArray[np.intp]]:
    groups = np.array_split(draw.permutation(np.unique(y)), min(CALLS, len(np.unique(y))))
    return [draw.permutation(np.flatnonzero(np.isin(y, group))) for group in groups]


def incremental(x: NDArray[np.float64], y: NDArray[Any], calls: Iterable[NDArray[np.intp]], seed: int) -> Any:
    clf = IncrementalClassifier(random_state=seed)
    for call in calls:
        clf.partial_fit(x[call], y[call])
    return clf


def descent(x: NDArray[np.float64], y: NDArray[Any], calls: Iterable[NDArray[np.intp]], seed: int) -> Any:
    clf = SGDClassifier(random_state=seed)
    for call in calls:
        clf.partial_fit(x[call], y[call], classes=np.unique(y))
    return clf


def trees(x: NDArray[np.float64], y: NDArray[Any], calls: Iterable[NDArray[np.intp]], seed: int) -> Any:
    return LGBMClassifier(random_state=seed, n_jobs=1, verbose=-1).fit(x, y)


def measure(name: str, seeds: int) -> str:
    x, y = load(name)
    found: dict[str, list[float]] = {}
    for seed in range(seeds):
        learned, tested, y_learned, y_tested = train_test_split(x, y, test_size=0.2, stratify=y, random_state=seed)
        draw = np.random.default_rng(seed)
        in_turn = by_class(y_learned, draw)
        mixed = np.array_split(draw.permutation(len(y_learned)), len(in_turn))
        scaler = StandardScaler().fit(learned)
        scaled, tested_scaled = scaler.transform(learned), scaler.transform(tested)
        ways: dict[str, tuple[Learn, NDArray[np.float64], NDArray[np.float64], list[NDArray[np.intp]]]] = {
            "IncrementalClassifier, new classes per call": (incremental, learned, tested, in_turn),
            "SGDClassifier, new classes per call": (descent, scaled, tested_scaled, in_turn),
            "SGDClassifier, calls mixed": (descent, scaled, tested_scaled, mixed),
            "LightGBM, all at once": (trees, learned, tested, in_turn),
        }
        for way, (learn, inputs, others, calls) in ways.items():
            found.setdefault(way, []).append(100 * learn(inputs, y_learned, calls, seed).score(others, y_tested))
    cells = [f"{np.mean(each):.1f} ± {np.std(each, ddof=1):.1f}" for each in found.values()]
    size = f"{len(x):,} × {x.shape[1]}, {len(np.unique(y))} classes"
    return f"| {Path(name.partition(':')[0]).stem}, {size} | {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="+", help="FILE.csv:LABEL, or digits, wine, breast_cancer")
    parser.add_argument("--seeds", type=int, default=3)
    args = parser.parse_args()
    for what in args.what:
        print(measure(what, args.seeds), flush=True)


if __name__ == "__main__":
    main()
