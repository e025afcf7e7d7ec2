"""Handwritten digits arrive in five batches of two classes. Who still knows the first ones at the end?

    python examples/classifier.py

Ten seconds on one core. Prints, after each batch, the accuracy on all digits seen so far.
"""

from __future__ import annotations

import tempfile
import warnings
from pathlib import Path

from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from rwalk.classifier import IncrementalClassifier

CLASSIFIERS = {
    "RWalk, 10 exemplars a class": IncrementalClassifier(memory=10, random_state=0),
    "10 exemplars a class alone": IncrementalClassifier(method=None, memory=10, random_state=0),
    "RWalk alone": IncrementalClassifier(random_state=0),
    "neither": IncrementalClassifier(method=None, random_state=0),
}


def main() -> None:
    x, y = load_digits(return_X_y=True)
    x, x_test, y, y_test = train_test_split(x / 16, y, stratify=y, random_state=0)
    pairs = [(0, 1), (2, 3), (4, 5), (6, 7), (8, 9)]
    warnings.filterwarnings("ignore", "learning classes call by call")  # two of the four are there to show it

    print(f"{'':28}" + "".join(f"  {f'{a} and {b}':>7}" for a, b in pairs))
    for name, classifier in CLASSIFIERS.items():
        line = f"{name:28}"
        for pair in pairs:
            arrived = (y == pair[0]) | (y == pair[1])
            classifier.partial_fit(x[arrived], y[arrived])
            seen = y_test <= pair[1]
            line += f"  {classifier.score(x_test[seen], y_test[seen]):7.1%}"
        print(line)

    # What was learned fits into one file, and goes on from there; batches may repeat old classes.
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "digits.safetensors"
        CLASSIFIERS["RWalk, 10 exemplars a class"].save(file)
        classifier = IncrementalClassifier.load(file)
    again = y >= 8
    classifier.partial_fit(x[again], y[again])
    print(f"\n8 and 9 once more, from a file: {classifier.score(x_test, y_test):.1%} of all digits")


if __name__ == "__main__":
    main()
