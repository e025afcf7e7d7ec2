"""An experiment is data: frozen records that go to JSON and back, and hash by content."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar, get_args, get_type_hints

from rwalk import datasets, streams
from rwalk.errors import InputError
from rwalk.fleet import Training
from rwalk.learners import Learner, learner
from rwalk.memory import MemorySpec
from rwalk.streams import Stream

# The paper's split, Δt and networks; everywhere else two classes a task, RWalk's own default (10) and mlp.
CLASSES_PER_TASK = {"cifar100": 10, "cifar100-pixels": 10}
DT = {"cifar10": 50, "cifar100": 50, "cifar100-pixels": 50}
NETWORK = {"cifar10": "cnn", "cifar100": "cnn", "cifar100-pixels": "cnn"}

Record = TypeVar("Record")


@dataclass(frozen=True)
class StreamSpec:
    """Which data, and how it is divided into tasks.

    dataset           a name, folder:PATH, or a .npz file
    classes_per_task  so many classes a task; the default is the paper's split
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
            stream = streams.permuted(dataset, self.permuted, self.order_seed or 0)
        else:
            size = self.classes_per_task
            if size is None and self.tasks is None:
                size = CLASSES_PER_TASK.get(self.dataset, 2)
            stream = streams.split(dataset, size, self.tasks, self.order_seed)
        return stream if self.validation is None else streams.validation_split(stream, self.validation)


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

    def learner(self) -> Learner:
        return learner(self.method, self.memory, **self.numbers)

    @property
    def lam(self) -> float:
        return float(self.learner().method.lam)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> RunSpec:
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
        """Asked for many times a run: a study of thousands would spend its time on it."""
        return content_hash(self.to_json())

    def fleet_key(self) -> str:
        """Runs with equal keys can share a fleet: they differ in seed and in their method's numbers only."""
        record = self.to_json()
        shared = {k: v for k, v in record["numbers"].items() if not _per_run(v)}
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


def _made(kind: type[Record], settings: Mapping[str, Any]) -> Record:
    """A record from settings that come from a file: the names must be known and plain values of the right type."""
    types = get_type_hints(kind)
    for name, value in settings.items():
        if name not in types:
            raise InputError(f"a run has no setting {name!r}: it was written by another version of rwalk")
        kinds = get_args(types[name]) or (types[name],)
        plain = set(kinds) <= {int, float, str, bool, type(None)}  # the rest is checked where it is made
        if plain and not isinstance(value, (*kinds, int) if float in kinds else kinds):
            raise InputError(f"a run's {name} cannot be {value!r}: study.json was altered")
    return kind(**settings)


def _per_run(value: Any) -> bool:
    return isinstance(value, float)
