"""An experiment is data: frozen records that go to JSON and back, and hash by content."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any, TypeVar, get_args, get_type_hints

import numpy as np

from rwalk import learners, parts
from rwalk.data import datasets, splits
from rwalk.data.memory import MemorySpec
from rwalk.data.streams import Stream
from rwalk.errors import InputError
from rwalk.learners import Learner, learner
from rwalk.training import Training

# The paper's split, Δt and networks; everywhere else two classes per task, RWalk's own default (10) and mlp.
CLASSES_PER_TASK = {"cifar100": 10, "cifar100-pixels": 10}
DT = {"cifar10": 50, "cifar100": 50, "cifar100-pixels": 50}
NETWORK = {"cifar10": "cnn", "cifar100": "cnn", "cifar100-pixels": "cnn"}

Record = TypeVar("Record")


@dataclass(frozen=True)
class StreamSpec:
    """Which data, and how it is divided into tasks.

    dataset           a name, folder:PATH, or a .npz file
    classes_per_task  so many classes per task; the default is the paper's split
    tasks             or explicit lists of labels
    order_seed        shuffles the classes before they are divided
    permuted          so many tasks of permuted pixels instead of a split
    validation        this fraction of the training data is the test set; the real test set is not looked at
    """

    dataset: str = "digits"
    classes_per_task: int | None = None
    tasks: tuple[tuple[str, ...], ...] | None = None
    order_seed: int | None = None
    permuted: int | None = None
    validation: float | None = None

    def build(self, data: Path | str | None = None, download: bool = True) -> Stream:
        dataset = datasets.load(self.dataset, data, download=download)
        if self.permuted is not None:
            if self.tasks is not None or self.classes_per_task is not None:
                raise InputError("a permuted stream has all classes in every task: drop the split")
            stream = splits.permuted(dataset, self.permuted, self.order_seed or 0)
        else:
            size = self.classes_per_task
            if size is None and self.tasks is None:
                size = CLASSES_PER_TASK.get(self.dataset, 2)
            stream = splits.split(dataset, size, self.tasks, self.order_seed)
        return stream if self.validation is None else splits.validation_split(stream, self.validation)


@dataclass(frozen=True)
class RunSpec:
    """One run: everything its result depends on.

    method     a learner's name; `numbers` are its settings (lam, alpha, dt …), the rest being defaults
    reference  k: not an incremental run, but the reference model a*_k on the union of tasks 0..k
    """

    stream: StreamSpec = field(default_factory=StreamSpec)
    network: str = "mlp"
    method: str = "vanilla"
    numbers: Mapping[str, Any] = field(default_factory=dict)
    memory: MemorySpec | None = None
    training: Training = field(default_factory=Training)
    seed: int = 0
    dtype: str = "float32"
    autocast: bool = False
    reference: int | None = None

    def __post_init__(self) -> None:
        """What a run says of itself is what it does: plain values, and the way its learner replays."""
        object.__setattr__(self, "seed", _plain(self.seed))
        object.__setattr__(self, "numbers", {name: _plain(value) for name, value in self.numbers.items()})
        object.__setattr__(self, "memory", learners.as_used(parts.parts().get(self.method), self.memory))

    def learner(self) -> Learner:
        return learner(self.method, self.memory, **self.numbers)

    @property
    def lam(self) -> float:
        return self.learner().lam

    def own_code(self) -> tuple[str, ...]:
        """All code of the user's own that the run names, as `package.module:name`."""
        named = (self.network, self.method, self.memory.sampler if self.memory else "", self.training.augment)
        return tuple(dict.fromkeys(name for name in named if ":" in name))

    def to_json(self) -> dict[str, Any]:
        """All settings, as they are read back: a row that was just made looks like one from a file."""
        record: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        return record

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> RunSpec:
        """The run of a record; what was not a setting yet when that was written has its default."""
        parts = dict(record)
        stream = dict(parts.get("stream") or {})
        if stream.get("tasks"):
            stream["tasks"] = tuple(tuple(task) for task in stream["tasks"])
            if not all(isinstance(label, str | int) for task in stream["tasks"] for label in task):
                raise InputError("a run's tasks must be lists of labels: study.json was altered")
        parts["stream"] = _made(StreamSpec, stream)
        parts["training"] = _made(Training, parts.get("training") or {})
        parts["memory"] = _made(MemorySpec, parts["memory"]) if parts.get("memory") else None
        parts["numbers"] = dict(parts.get("numbers") or {})
        return _made(cls, parts)

    def hash(self) -> str:
        return self._hash

    @cached_property
    def _hash(self) -> str:
        """Of all that differs from the defaults, so that a new setting changes the name of no old run.

        Asked for many times per run: a study of thousands would spend its time on it.
        """
        usual = parts.defaults(self.method)
        if self.numbers.get("penalty") == "proximal":
            usual.pop("lam", None)  # that form has a λ of its own: the gradient form's, if given, is unusual
        numbers = {
            name: float(value) if isinstance(usual.get(name), float) and type(value) is int else value
            for name, value in self.numbers.items()
        }
        unusual = {name: value for name, value in numbers.items() if name not in usual or value != usual[name]}
        return content_hash({**_unusual(self), "numbers": unusual, "method": self.method})

    def fleet_key(self) -> str:
        """Runs with equal keys can share a fleet: they differ in seed and in what may differ per run only."""
        record = self.to_json()
        own = parts.per_run(parts.find(self.method))
        shared = {name: value for name, value in record["numbers"].items() if name not in own}
        return content_hash({**record, "seed": None, "numbers": [shared, sorted(record["numbers"])]})


def reference_of(run: RunSpec, k: int) -> RunSpec:
    """The reference model a*_k of a run: a fresh network on all data of tasks 0..k, same budget per example."""
    budget = run.training
    if budget.steps is not None:
        budget = Training(**{**asdict(budget), "steps": budget.steps * (k + 1)})
    return RunSpec(run.stream, run.network, training=budget, seed=run.seed, dtype=run.dtype,
                   autocast=run.autocast, reference=k)  # fmt: skip


def content_hash(record: Any) -> str:
    """The same for the same content, whatever the order of keys."""
    return hashlib.sha256(json.dumps(record, sort_keys=True, default=list).encode()).hexdigest()[:32]


def _unusual(record: Any) -> dict[str, Any]:
    """The settings of a record that differ from its defaults, and of the records in it."""
    different = {}
    for each in fields(record):
        value = getattr(record, each.name)
        if is_dataclass(value):
            different[each.name] = _unusual(value)
        elif value != each.default:
            different[each.name] = value
    return different


def _plain(value: Any) -> Any:
    """NumPy's numbers, which sweeps hand out, as Python's."""
    return value.item() if isinstance(value, np.generic) else value


def _made(kind: type[Record], settings: Mapping[str, Any]) -> Record:
    """A record from settings that come from a file: the names must be known and plain values of the right type."""
    types = _types_of(kind)  # type: ignore[arg-type]
    for name, value in settings.items():
        if name not in types:
            raise InputError(f"a run has no setting {name!r}: it was written by a newer version of rwalk")
        kinds = get_args(types[name]) or (types[name],)
        plain = set(kinds) <= {int, float, str, bool, type(None)}  # the rest is checked where it is made
        if plain and not isinstance(value, (*kinds, int) if float in kinds else kinds):
            raise InputError(f"a run's {name} cannot be {value!r}: study.json was altered")
    return kind(**settings)


@cache
def _types_of(kind: type[Any]) -> dict[str, Any]:
    return get_type_hints(kind)
