"""Classes that arrive over time, learned in closed form: exact, in any order, with nothing kept but sums."""

from __future__ import annotations

from rwalk.closed_form.classifier import ClosedFormClassifier
from rwalk.closed_form.regressor import ClosedFormRegressor

__all__ = ["ClosedFormClassifier", "ClosedFormRegressor"]
