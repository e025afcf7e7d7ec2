"""
New classes, call by call
=========================

Handwritten digits arrive in five batches of two classes, and each batch is gone when the next one comes. Which
classifier still recognises the first digits at the end?

.. code-block:: console

   $ python examples/classifier.py

It takes half a minute on one core.
"""

import tempfile
import warnings
from pathlib import Path

import matplotlib.pyplot as plt
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from rwalk import IncrementalClassifier

# %%
# The data, and five classifiers
# ------------------------------
# The default learns in closed form. The other four train a network: with and without a method that holds it,
# with and without a few examples kept from each class.

x, y = load_digits(return_X_y=True)
x, x_test, y, y_test = train_test_split(x, y, stratify=y, random_state=0)
pairs = [(0, 1), (2, 3), (4, 5), (6, 7), (8, 9)]

classifiers = {
    "the default": IncrementalClassifier(),
    "RWalk, 10 exemplars per class": IncrementalClassifier(method="rwalk", memory=10),
    "10 exemplars per class alone": IncrementalClassifier(method=None, memory=10),
    "RWalk alone": IncrementalClassifier(method="rwalk"),
    "a network without protection": IncrementalClassifier(method=None),
}

# %%
# Learn the batches in turn
# -------------------------
# After each batch, every classifier predicts all digits so far. rwalk warns that a network without
# exemplars will favour the newest classes. Two of the five are here to show exactly that.

warnings.filterwarnings("ignore", "without exemplars no batch shows")

scores = {}
print(f"{'accuracy on all digits so far':30}" + "".join(f"  {f'{a} and {b}':>7}" for a, b in pairs))
for name, classifier in classifiers.items():
    scores[name] = []
    for pair in pairs:
        arrived = (y == pair[0]) | (y == pair[1])
        classifier.partial_fit(x[arrived], y[arrived])
        seen = y_test <= pair[1]
        scores[name].append(classifier.score(x_test[seen], y_test[seen]))
    print(f"{name:30}" + "".join(f"  {score:7.1%}" for score in scores[name]))

# %%
# The picture
# -----------

_, axes = plt.subplots(figsize=(8, 4), layout="constrained")
for name, line in scores.items():
    axes.plot(range(1, 6), [100 * score for score in line], marker="o", label=f"{name}: {line[-1]:.0%}")
axes.set(xlabel="batches learned", ylabel="accuracy on all digits so far, %", xticks=range(1, 6), ylim=(0, 102))
axes.legend(loc="lower left", frameon=False)
axes.spines[["top", "right"]].set_visible(False)
plt.show()

# %%
# Save it, load it, forget a class
# --------------------------------
# A trained classifier is one file. In closed form, learned examples can be removed again, exactly.

with tempfile.TemporaryDirectory() as folder:
    file = Path(folder) / "digits.safetensors"
    classifiers["the default"].save(file)
    classifier = IncrementalClassifier.load(file)

warnings.filterwarnings("ignore", "these examples were removed, but the feature map")
classifier.forget(x[y == 7], y[y == 7])
print(f"without the sevens, its classes are {classifier.classes_.tolist()}")
