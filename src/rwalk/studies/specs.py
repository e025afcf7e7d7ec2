"""A run and its stream as frozen records: every setting, its option on the command line, and their hash.

The options of `rwalk run` are fields of these records: modules that need torch are imported where they are used.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rwalk.data.file_options import Reading
from rwalk.data.memory import MemorySpec
from rwalk.errors import InputError, first_line
from rwalk.option_fields import documented, option, setting
from rwalk.registry import full_name
from rwalk.studies.json_records import UNREADABLE, content_hash, flat, from_json, to_json
from rwalk.training import Training

if TYPE_CHECKING:
    from rwalk.data.streams import Dataset, Stream
    from rwalk.learners import Learner

# The paper's split, Δt and networks; everywhere else two classes per task, RWalk's own default (10) and mlp.
CLASSES_PER_TASK = {"cifar100": 10, "cifar100-pixels": 10}
DT = {"cifar10": 50, "cifar100": 50, "cifar100-pixels": 50}
NETWORK = {"cifar10": "cnn", "cifar100": "cnn", "cifar100-pixels": "cnn"}

AUTO = "auto"  # a λ that the run chooses itself
HELD_OUT_FOR_TRIALS = 0.2  # the fraction of the training data that a trial is tested on


@dataclass(frozen=True)
class Trial:
    """A part of the training data that chooses a hyper-parameter: a fifth of it is held out, and tests the rest.

    first  so many tasks; None for all of them.
    most   held-out examples per class, at most.
    """

    first: int | None = None
    most: int | None = None


@documented
@dataclass(frozen=True)
class StreamSpec:
    """Which data, and how it is divided into tasks.

    Data that say themselves in which task an example arrives (folders of folders, a column of a table) are divided
    accordingly, unless a split is given. In Python `tasks` are tuples of labels.
    """

    dataset: str = option(
        "digits",
        "digits, mnist, mnist-32, fashion-mnist, cifar10, cifar100, cifar100-pixels, a folder of images, a table "
        "(.csv, .tsv, .parquet), or a FILE.npz",
    )
    classes_per_task: int | None = option(None, "classes per task (default 2; 10 for cifar100)")
    tasks: tuple[tuple[str | int, ...], ...] | None = option(
        None,
        "explicit tasks: labels by comma, tasks by slash: 0,1/2,3,4/5",
        read=lambda text: tuple(tuple(task.split(",")) for task in text.split("/")),
    )
    order_seed: int | None = option(None, "shuffle the classes (or draw the permutations) with this seed")
    permuted: int | None = option(None, "number of permuted-pixels tasks, instead of a split")
    validation: float | None = option(None, "test on this fraction of the training data instead")
    reading: Reading | None = setting(None, "how a folder or a table is read; None for the defaults")
    scenario: str | None = option(
        None,
        "which classes compete in training: task (those of a task), domain (all tasks have the same labels) or "
        "class (all); by default, as in the paper",
    )
    rotated: int | None = option(None, "number of rotated-images tasks, instead of a split")
    blurry: float | None = option(None, "this fraction of every task's examples is taught by its neighbours")
    trial: Trial | None = setting(None, "the part of the training data that chooses λ; None for a run that counts")

    def __post_init__(self) -> None:
        if self.reading == Reading():
            object.__setattr__(self, "reading", None)  # given or not, it is the same stream
        if isinstance(self.tasks, list | tuple) and all(isinstance(task, list | tuple) for task in self.tasks):
            object.__setattr__(self, "tasks", tuple(tuple(map(_plain, task)) for task in self.tasks))

    def build(self, data: Path | str | None = None, download: bool = True) -> Stream:
        from rwalk.data import datasets, splits

        self.check()
        dataset = datasets.load(self.dataset, data, download=download, reading=self.reading)
        stream = self._divided(dataset)
        if self.validation is not None:
            stream = splits.validation_split(stream, self.validation)
        if self.trial is not None:
            stream = replace(stream, tasks=stream.tasks[: self.trial.first])
            stream = splits.validation_split(stream, HELD_OUT_FOR_TRIALS, most=self.trial.most)
        return stream if self.blurry is None else splits.blurred(stream, self.blurry, self.order_seed or 0)

    def check(self) -> None:
        """Refuse what does not go together, before any data are loaded."""
        from rwalk.data.splits import check_scenario

        check_scenario(self.scenario)
        if self.permuted is None and self.rotated is None:
            return
        how = "permuted" if self.rotated is None else "rotated"
        if self.permuted is not None and self.rotated is not None:
            raise InputError("inputs are permuted or rotated, not both: drop one")
        if self.tasks is not None or self.classes_per_task is not None:
            raise InputError(f"a {how} stream has all classes in every task: drop the split")
        if self.scenario not in (None, "domain"):
            raise InputError(
                f"a {how} stream is domain-incremental, every task having all classes: drop the scenario"
            )

    def _divided(self, dataset: Dataset) -> Stream:
        from rwalk.data import splits

        if self.permuted is not None:
            return splits.permuted(dataset, self.permuted, self.order_seed or 0)
        if self.rotated is not None:
            return splits.rotated(dataset, self.rotated, self.order_seed or 0)
        if dataset.arrivals is not None and self.classes_per_task is None and self.tasks is None:
            if self.order_seed is not None:
                raise InputError("the data say themselves which task comes when: drop order_seed, or give a split")
            return splits.as_it_arrives(dataset, self.scenario)
        size = self.classes_per_task
        if size is None and self.tasks is None:
            size = CLASSES_PER_TASK.get(self.dataset, 2)
        return splits.split(dataset, size, self.tasks, self.order_seed, self.scenario)


@documented
@dataclass(frozen=True)
class RunSpec:
    """One run: everything its result depends on.

    `numbers` are hyper-parameters of the method (lam, alpha, dt …), the rest defaults. With lam="auto" the study
    chooses λ for every run, by trials on its training data.
    """

    stream: StreamSpec = field(default_factory=StreamSpec)
    network: str = option("mlp", "mlp, cnn, resnet18, resnet18-full, or package.module:factory", depends=True)
    method: str = setting("vanilla", "a learner's name, or package.module:Name")
    numbers: Mapping[str, Any] = field(default_factory=dict)
    memory: MemorySpec | None = None
    training: Training = field(default_factory=Training)
    seed: int = 0
    dtype: str = "float32"
    autocast: bool = option(False, "bfloat16 autocast", name="bf16")
    reference: int | None = setting(None, "k, for the reference model a*_k on all data of tasks 0..k at once")
    measure_every: int | None = option(
        None, "measure accuracy within tasks too, every N steps: shows the stability gap"
    )
    calibration: bool = option(False, "also measure expected calibration errors")

    def __post_init__(self) -> None:
        """Record what will be done: full names, plain values, and the replay that the learner prescribes."""
        from rwalk import learners, parts
        from rwalk.augmentations import AUGMENTATIONS
        from rwalk.engine.architectures import NETWORKS

        for field_, group, ours in (("method", "methods", parts.parts()), ("network", "networks", NETWORKS)):
            object.__setattr__(self, field_, full_name(group, getattr(self, field_), ours))
        if self.training.augment not in ("", *AUGMENTATIONS):
            augment = full_name("augmentations", self.training.augment, AUGMENTATIONS)
            object.__setattr__(self, "training", replace(self.training, augment=augment))
        object.__setattr__(self, "seed", _plain(self.seed))
        object.__setattr__(self, "numbers", {name: _plain(value) for name, value in self.numbers.items()})
        part = parts.parts().get(self.method) or parts.variant(self.method)
        object.__setattr__(self, "memory", learners.as_used(part, self.memory))

    def learner(self) -> Learner:
        """What learns; where λ is still to be chosen, with λ = 1."""
        from rwalk.learners import learner

        numbers = self.with_lam(1.0).numbers if self.seeks_lam else self.numbers
        return learner(self.method, self.memory, **numbers)

    @property
    def seeks_lam(self) -> bool:
        """Whether λ is to be chosen before it is trained."""
        return self.numbers.get("lam") == AUTO

    @property
    def counts(self) -> bool:
        """Whether its result is a row: not a reference, nor a trial to choose λ by."""
        return self.reference is None and self.stream.trial is None

    def with_lam(self, lam: float) -> RunSpec:
        return replace(self, numbers={**self.numbers, "lam": lam})

    def without_lam(self) -> RunSpec:
        return replace(self, numbers={name: value for name, value in self.numbers.items() if name != "lam"})

    @property
    def lam(self) -> float:
        return self.learner().lam

    def own_code(self) -> tuple[str, ...]:
        """All code of the user's own that the run names, as `package.module:name`."""
        named = (self.network, self.method, self.memory.sampler if self.memory else "", self.training.augment)
        return tuple(dict.fromkeys(name for name in named if ":" in name))

    def to_json(self) -> dict[str, Any]:
        """All settings, as they are read back: a new row looks like one from a file."""
        return dict(to_json(self))

    @classmethod
    def from_json(cls, record: Any) -> RunSpec:
        """The run of a record; settings that did not exist when it was written have their defaults.

        Raises:
            InputError: The record is not a run's.
        """
        run = from_json(cls, record, "a run")
        try:
            run.hash()
        except UNREADABLE as error:
            raise InputError(f"a run's settings cannot be read ({first_line(error)})") from None
        return run

    def settings(self) -> dict[str, Any]:
        """All settings by dotted names, hyper-parameters by their own names: columns of a table."""
        record = self.to_json()
        numbers = dict(record.pop("numbers"))
        return {name: value for name, value in flat(record).items() if value is not None} | numbers

    def hash(self) -> str:
        return self._hash

    @cached_property
    def _hash(self) -> str:
        """A hash of everything that differs from the defaults, so that a new setting renames no old run.

        Cached, because it is needed many times per run, in studies of thousands of runs.
        """
        from rwalk import parts

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
        """Runs with equal keys can share a fleet: they differ only in what may differ between its runs."""
        record, (_, shared) = {**self.to_json(), "seed": None}, self.group_key()
        if _can_be_mixed(self.method, shared):
            return content_hash({**record, "method": None, "numbers": None})
        return content_hash({**record, "numbers": [shared, sorted(self.numbers)]})

    def group_key(self) -> tuple[str, tuple[tuple[str, Any], ...]]:
        """Runs of a fleet with equal keys form a method group: the method, and values that its runs share."""
        own = _per_run(self.method)
        return self.method, tuple(sorted((name, value) for name, value in self.numbers.items() if name not in own))


@cache
def _per_run(method: str) -> frozenset[str]:
    from rwalk import parts

    return parts.per_run(parts.find(method))


@cache
def _can_be_mixed(method: str, shared: tuple[tuple[str, Any], ...]) -> bool:
    from rwalk import parts
    from rwalk.engine.method_groups import can_be_mixed
    from rwalk.methods import Method

    part = parts.made(method, dict(shared))
    return isinstance(part, Method) and can_be_mixed(part)


def reference_of(run: RunSpec, k: int) -> RunSpec:
    """The reference model a*_k of a run: a fresh network on all data of tasks 0..k, same budget per example."""
    budget = run.training
    if budget.steps is not None:
        budget = Training(**{**asdict(budget), "steps": budget.steps * (k + 1)})
    return RunSpec(run.stream, run.network, training=budget, seed=run.seed, dtype=run.dtype,
                   autocast=run.autocast, reference=k)  # fmt: skip


def learned_by(spec: RunSpec, stream: Stream) -> Stream:
    """The stream that a run learns: for a reference all tasks so far at once."""
    from rwalk.data.splits import union

    return stream if spec.reference is None else union(stream, spec.reference)


def steps_of(spec: RunSpec, stream: Stream, tasks: int) -> int:
    """The steps of a run's first tasks."""
    learner = spec.learner()
    return sum(learner.steps(spec.training, stream, task) for task in range(tasks))


def passes_of(spec: RunSpec, stream: Stream) -> float:
    """The batches that a step of a run passes over, on average: GEM's also all exemplars of every earlier task."""
    projector, memory = spec.learner().projector, spec.memory
    if projector is None or memory is None:
        return 1.0
    classes, tasks = len(stream.tasks[0].classes), len(stream)
    kept = classes * memory.quota(classes * tasks) if projector.per_task else spec.training.batch
    constraints = (tasks - 1) / 2 if projector.per_task else 1.0
    return 1.0 + constraints * kept / spec.training.batch


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
    """NumPy's numbers, which sweeps often contain, as Python's."""
    import numpy as np

    return value.item() if isinstance(value, np.generic) else value
