"""rwalk: learn new classes without the old data, and measure honestly what was forgotten.

Three doors: `Guard` around your own model and optimizer, `IncrementalClassifier` in scikit-learn's manner, and the
command `rwalk`. Behind them, one engine: methods on vectors, and a fleet that trains many runs as one program.
"""

from __future__ import annotations

from rwalk import metrics
from rwalk.errors import InputError
from rwalk.fleet import Fleet, Training
from rwalk.learners import Learner, learner
from rwalk.memory import MemorySpec
from rwalk.methods import EWC, PI, EWCpp, Method, RWalk, Vanilla
from rwalk.streams import Dataset, Stream, from_arrays, permuted, split

__version__ = "0.1.0"

__all__ = [
    "EWC",
    "PI",
    "Dataset",
    "EWCpp",
    "Fleet",
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
