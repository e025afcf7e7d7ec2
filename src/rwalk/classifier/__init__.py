"""The estimator in scikit-learn's manner: a network that learns new classes from arrays."""

from __future__ import annotations

from rwalk.classifier.estimator import IncrementalClassifier

__all__ = ["IncrementalClassifier"]
