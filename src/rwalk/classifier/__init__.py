"""Estimators in scikit-learn's manner: classes and numbers that arrive over time, learned without forgetting."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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


def __getattr__(name: str) -> Any:  # imported on first use: the command line reads `parameters.py` without torch
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    homes = {"IncrementalRegressor": "closed_form", "IncrementalClassifier": "estimator"}
    return getattr(import_module(f"{__name__}.{homes.get(name, 'stream_evaluation')}"), name)
