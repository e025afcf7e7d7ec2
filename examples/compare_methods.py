"""
Compare methods on the same stream
==================================

Five methods, three seeds, digits in five tasks. What ``rwalk run`` does on the command line, in Python.

.. code-block:: console

   $ python examples/compare_methods.py

It takes about half a minute on one core.
"""

import matplotlib.pyplot as plt
import numpy as np

from rwalk import MemorySpec, Study, Training, metrics
from rwalk.studies.specs import RunSpec, StreamSpec

# %%
# The runs
# --------
# All see the same tasks in the same order. Two keep ten examples per class, the others none.

stream = StreamSpec("digits", classes_per_task=2)
few = MemorySpec(per_class=10)
contenders = {
    "no protection": {"method": "vanilla"},
    "RWalk": {"method": "rwalk"},
    "10 exemplars per class": {"method": "vanilla", "memory": few},
    "RWalk, 10 exemplars per class": {"method": "rwalk", "memory": few},
    "closed form": {"method": "ridge"},
}
seeds = range(3)
runs = [
    RunSpec(stream, seed=seed, training=Training(epochs=10), **settings)
    for settings in contenders.values()
    for seed in seeds
]

# %%
# Train them
# ----------
# ``workers=1`` trains in this process. ``Study(...)`` alone uses all cores. With a ``Store`` an
# interrupted study continues where it stopped.

rows = Study(tuple(runs), reference="none", workers=1).execute()

# %%
# What comes out
# --------------
# Accuracy after the last task: the right one of all ten digits (single-head), or of the two in its task (multi-
# head).

print(f"{'':30}  single-head   multi-head")
curves = {}
for number, name in enumerate(contenders):
    mine = rows[number * len(seeds) : (number + 1) * len(seeds)]
    single, multi = (np.array([row.measures(head).A for row in mine]) for head in ("single", "multi"))
    both = "  ".join(f"{each.mean():5.1%} ±{each.std(ddof=1):5.1%}" for each in (single, multi))
    print(f"{name:30}  {both}")
    matrices = np.array([row.accuracy["single"] for row in mine], dtype=float)
    curves[name] = 100 * metrics.average_accuracies(matrices).mean(0)

# %%
# The picture
# -----------
# Single-head accuracy on all digits seen so far.

_, axes = plt.subplots(figsize=(8, 4), layout="constrained")
for name, curve in curves.items():
    axes.plot(range(1, 6), curve, marker="o", label=name)
axes.set(xlabel="tasks learned", ylabel="accuracy, %", xticks=range(1, 6), ylim=(-3, 103))
axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
axes.spines[["top", "right"]].set_visible(False)
plt.show()
