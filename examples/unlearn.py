"""
Delete a customer's data, merge what two sites learned
======================================================

In closed form all knowledge is a sum over examples. So examples can be taken out again, and sums from several
places can be added. Both are exact: the model is the one that never saw the deleted examples, or that saw
everything.

.. code-block:: console

   $ python examples/unlearn.py
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits

from rwalk import IncrementalClassifier

# %%
# Everybody's data, then without one customer's
# ---------------------------------------------

x, y = load_digits(return_X_y=True)
customer = np.arange(len(y)) % 10 == 3  # a tenth of all rows are theirs

# From the seed alone: nothing of anybody's data is in the map.
settings = {"standardize": False, "random_state": 0}
x = x / 16

clf = IncrementalClassifier(**settings).partial_fit(x, y)
with_customer = clf.coef_.copy()
clf.forget(x[customer], y[customer])

never = IncrementalClassifier(**settings).partial_fit(x[~customer], y[~customer])
scale = np.abs(never.coef_).max()
print(f"with them, weights differ by     {np.abs(with_customer - never.coef_).max() / scale:.1e} of the largest")
print(f"after forget, weights differ by  {np.abs(clf.coef_ - never.coef_).max() / scale:.1e} of the largest")

# %%
# Two sites, one model
# --------------------
# Neither site shows the other its data. The sum is the model that saw both.

north, south = x[: len(x) // 2], x[len(x) // 2 :]
a = IncrementalClassifier(**settings).partial_fit(north, y[: len(north)])
b = IncrementalClassifier(**settings).partial_fit(south, y[len(north) :])
both = a + b
together = IncrementalClassifier(**settings).partial_fit(x, y)
same = (both.predict(x) == together.predict(x)).mean()
print(f"merged and trained together agree on {same:.1%} of all predictions")

# %%
# The picture
# -----------
# Each dot is a weight: before ``forget`` and after it, against the model that never saw the customer.

_, axes = plt.subplots(1, 2, figsize=(8, 3.8), sharex=True, sharey=True, layout="constrained")
for cell, weights, title in ((axes[0], with_customer, "before forget"), (axes[1], clf.coef_, "after forget")):
    cell.plot(never.coef_.ravel()[::7], weights.ravel()[::7], ".", markersize=2)
    cell.set(title=title, xlabel="weights of the model that never saw them")
    cell.spines[["top", "right"]].set_visible(False)
axes[0].set_ylabel("weights of this model")
plt.show()
