"""rwalk: learn new classes without the old data, and measure forgetting honestly.

Three entry points: `Guard` around your own model and optimizer, `IncrementalClassifier` in the style of
scikit-learn, and the command `rwalk`. Behind them, one engine: methods on vectors, and a fleet that trains many
runs as one program.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from rwalk.gc_pause import gc_paused

if TYPE_CHECKING:
    from rwalk import metrics
    from rwalk.augmentations import Augmentation
    from rwalk.before_after.skills import Skills
    from rwalk.classifier.closed_form import IncrementalRegressor
    from rwalk.classifier.estimator import IncrementalClassifier
    from rwalk.classifier.stream_evaluation import prequential, stream_search
    from rwalk.data.distorted_images import distorted
    from rwalk.data.memory import MemorySpec
    from rwalk.data.mixed_data import mix
    from rwalk.data.samplers import Sampler
    from rwalk.data.splits import blurred, from_arrays, permuted, rotated, split
    from rwalk.data.streams import Dataset, Stream
    from rwalk.engine.fleet import Fleet
    from rwalk.errors import InputError
    from rwalk.guard import Anchor, Guard, Probes, StateOptions, own_samples
    from rwalk.learners import Learner, learner
    from rwalk.losses import Batch, Loss
    from rwalk.methods import EWC, PI, EWCpp, Method, RWalk, Vanilla
    from rwalk.projectors import Projector
    from rwalk.solvers import Solver
    from rwalk.studies import Study
    from rwalk.training import Training

__version__ = "0.2.0"

__all__ = [
    "EWC",
    "PI",
    "Anchor",
    "Augmentation",
    "Batch",
    "Dataset",
    "EWCpp",
    "Fleet",
    "Guard",
    "IncrementalClassifier",
    "IncrementalRegressor",
    "InputError",
    "Learner",
    "Loss",
    "MemorySpec",
    "Method",
    "Probes",
    "Projector",
    "RWalk",
    "Sampler",
    "Skills",
    "Solver",
    "StateOptions",
    "Stream",
    "Study",
    "Training",
    "Vanilla",
    "blurred",
    "distorted",
    "from_arrays",
    "learner",
    "metrics",
    "mix",
    "own_samples",
    "permuted",
    "prequential",
    "rotated",
    "split",
    "stream_search",
]

_HOMES = {
    "rwalk.before_after.skills": ("Skills",),
    "rwalk.classifier.closed_form": ("IncrementalRegressor",),
    "rwalk.classifier.estimator": ("IncrementalClassifier",),
    "rwalk.classifier.stream_evaluation": ("prequential", "stream_search"),
    "rwalk.errors": ("InputError",),
    "rwalk.engine.fleet": ("Fleet",),
    "rwalk.training": ("Training",),
    "rwalk.guard": ("Anchor", "Guard", "Probes", "StateOptions", "own_samples"),
    "rwalk.data.distorted_images": ("distorted",),
    "rwalk.learners": ("Learner", "learner"),
    "rwalk.data.memory": ("MemorySpec",),
    "rwalk.data.mixed_data": ("mix",),
    "rwalk.methods": ("EWC", "PI", "EWCpp", "Method", "RWalk", "Vanilla"),
    "rwalk.data.samplers": ("Sampler",),
    "rwalk.losses": ("Batch", "Loss"),
    "rwalk.projectors": ("Projector",),
    "rwalk.solvers": ("Solver",),
    "rwalk.augmentations": ("Augmentation",),
    "rwalk.studies": ("Study",),
    "rwalk.data.splits": ("blurred", "from_arrays", "permuted", "rotated", "split"),
    "rwalk.data.streams": ("Dataset", "Stream"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Import on first use: `rwalk --help` must not wait for torch, nor `Guard` for scikit-learn."""
    if name == "metrics":
        return import_module("rwalk.metrics")
    if name not in _HOME_OF:
        raise AttributeError(f"module 'rwalk' has no attribute {name!r}")
    with gc_paused():  # imported modules stay: looking for garbage among them takes a good part of the time
        value = getattr(import_module(_HOME_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
