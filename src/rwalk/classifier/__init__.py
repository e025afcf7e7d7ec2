"""Estimators in scikit-learn's manner: classes and numbers that arrive over time, learned without forgetting."""

from __future__ import annotations

from rwalk.classifier.closed_form import IncrementalRegressor
from rwalk.classifier.estimator import IncrementalClassifier
from rwalk.classifier.stream_evaluation import Prequential, StreamSearch, prequential, stream_search

__all__ = [
    "IncrementalClassifier",
    "IncrementalRegressor",
    "Prequential",
    "StreamSearch",
    "prequential",
    "stream_search",
]
