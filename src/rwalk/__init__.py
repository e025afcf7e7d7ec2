"""rwalk: learn new classes without the old data, and measure honestly what was forgotten.

Three doors: `Guard` around your own model and optimizer, `IncrementalClassifier` in scikit-learn's manner, and the
command `rwalk`. Behind them, one engine: methods on vectors, and a fleet that trains many runs as one program.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rwalk import metrics
from rwalk.errors import InputError
from rwalk.fleet import Fleet, Training
from rwalk.guard import Guard
from rwalk.learners import Learner, learner
from rwalk.memory import MemorySpec
from rwalk.methods import EWC, PI, EWCpp, Method, RWalk, Vanilla
from rwalk.streams import Dataset, Stream, from_arrays, permuted, split

if TYPE_CHECKING:
    from rwalk.classifier import IncrementalClassifier

__version__ = "0.1.0"

__all__ = [
    "EWC",
    "PI",
    "Dataset",
    "EWCpp",
    "Fleet",
    "Guard",
    "IncrementalClassifier",
    "InputError",
    "Learner",
    "MemorySpec",
    "Method",
    "RWalk",
    "Stream",
    "Training",
    "Vanilla",
    "from_arrays",
    "learner",
    "metrics",
    "permuted",
    "split",
]


def __getattr__(name: str) -> Any:
    """The estimator needs scikit-learn; the rest must work without it, so it is imported when asked for."""
    if name == "IncrementalClassifier":
        from rwalk.classifier import IncrementalClassifier

        return IncrementalClassifier
    raise AttributeError(f"module 'rwalk' has no attribute {name!r}")
