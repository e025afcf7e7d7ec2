"""Estimators in scikit-learn's manner: classes and numbers that arrive over time, learned without forgetting."""

from __future__ import annotations

from rwalk.classifier.estimator import IncrementalClassifier
from rwalk.classifier.regressor import IncrementalRegressor

__all__ = ["IncrementalClassifier", "IncrementalRegressor"]
