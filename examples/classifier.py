"""Handwritten digits arrive in five batches of two classes. Who still knows the first ones at the end?

    python examples/classifier.py

Half a minute on one core. Prints, after each batch, the accuracy on all digits seen so far.
"""

from __future__ import annotations

import tempfile
import warnings
from pathlib import Path

from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from rwalk import IncrementalClassifier

CLASSIFIERS = {
    "the default": IncrementalClassifier(),
    "RWalk, 10 exemplars per class": IncrementalClassifier(method="rwalk", memory=10),
    "10 exemplars per class alone": IncrementalClassifier(method=None, memory=10),
    "RWalk alone": IncrementalClassifier(method="rwalk"),
    "a network without protection": IncrementalClassifier(method=None),
}


def main() -> None:
    x, y = load_digits(return_X_y=True)
    x, x_test, y, y_test = train_test_split(x, y, stratify=y, random_state=0)
    pairs = [(0, 1), (2, 3), (4, 5), (6, 7), (8, 9)]
    warnings.filterwarnings("ignore", "learning classes call by call")  # two of the five are there to show it

    print(f"{'':30}" + "".join(f"  {f'{a} and {b}':>7}" for a, b in pairs))
    for name, classifier in CLASSIFIERS.items():
        line = f"{name:30}"
        for pair in pairs:
            arrived = (y == pair[0]) | (y == pair[1])
            classifier.partial_fit(x[arrived], y[arrived])
            seen = y_test <= pair[1]
            line += f"  {classifier.score(x_test[seen], y_test[seen]):7.1%}"
        print(line)

    # What was learned fits into one file and goes on from there. And what was learned can be unlearned, exactly.
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "digits.safetensors"
        CLASSIFIERS["the default"].save(file)
        classifier = IncrementalClassifier.load(file)
    warnings.filterwarnings("ignore", "what was learned from these examples is gone")
    classifier.forget(x[y == 7], y[y == 7])
    print(f"\nwithout the sevens, it knows {classifier.classes_.tolist()}")


if __name__ == "__main__":
    main()
