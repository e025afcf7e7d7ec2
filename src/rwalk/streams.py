"""What is learned, and in which order: a dataset divided into tasks. Data, not behaviour."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from numbers import Integral
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from rwalk.errors import InputError, unknown

Label = int | str
HELD_OUT = 0.2  # of every class, where a dataset brings no test examples of its own


@dataclass(frozen=True, eq=False)
class Dataset:
    """Labelled examples, before anyone decided which tasks they make."""

    name: str
    x: Tensor = field(repr=False)  # training inputs, float32 [N, *shape]
    y: Tensor = field(repr=False)  # training labels, int64 [N], indices into class_names
    x_test: Tensor = field(repr=False)
    y_test: Tensor = field(repr=False)
    class_names: tuple[str, ...]

    def __post_init__(self) -> None:
        _check_examples(self)
        trained = torch.bincount(self.y, minlength=len(self.class_names)) > 0
        if not trained.all():
            name = self.class_names[int(trained.int().argmin())]
            raise InputError(f"class {name!r} has no training example: give it some or leave the class out")

    @classmethod
    def from_arrays(
        cls,
        x: ArrayLike | Tensor,
        y: ArrayLike | Tensor,
        x_test: ArrayLike | Tensor | None = None,
        y_test: ArrayLike | Tensor | None = None,
        *,
        name: str = "arrays",
        seed: int = 0,
    ) -> Dataset:
        """From arrays or tensors, copied; the labels are any integers or strings.

        Inputs of type uint8 are pixels, and become [0, 1]. Without test arrays, a fifth of every class is
        held out for testing, chosen by `seed`.
        """
        if (x_test is None) != (y_test is None):
            raise InputError("x_test and y_test belong together: give both or neither")
        values, columns = np.unique(_labels(y, "training"), return_inverse=True)
        names = tuple(str(value) for value in values)
        inputs, targets = _inputs(x, "training"), torch.from_numpy(columns)
        if x_test is None or y_test is None:
            _check_shapes(inputs, targets, "training")
            kept, held = _hold_out(targets, HELD_OUT, seed, names)
            return cls(name, inputs[kept], targets[kept], inputs[held], targets[held], names)
        tested, positions = np.unique(_labels(y_test, "test"), return_inverse=True)
        column = {label: index for index, label in enumerate(names)}
        if strangers := [str(value) for value in tested if str(value) not in column]:
            raise InputError(
                f"test label {strangers[0]!r} is never trained: add training examples or drop its tests"
            )
        lookup = torch.tensor([column[str(value)] for value in tested], dtype=torch.int64)
        return cls(name, inputs, targets, _inputs(x_test, "test"), lookup[torch.from_numpy(positions)], names)


@dataclass(frozen=True, eq=False)
class Task:
    """One lesson: which classes, which examples of the stream."""

    classes: tuple[int, ...]  # columns of the head this task's labels use
    train: Tensor = field(repr=False)  # numbers of the stream's training examples, int64
    test: Tensor = field(repr=False)  # numbers of the stream's test examples, int64


@dataclass(frozen=True, eq=False)
class Stream:
    """Examples and the tasks they arrive in.

    Where inputs are permuted, an example's number says which permutation shows it: v · N + i is example i of N
    under permutation v. So whoever holds a number (a task, a memory, a batch) needs to know nothing else.
    """

    x: Tensor = field(repr=False)  # training inputs, float [N, *shape]
    y: Tensor = field(repr=False)  # training labels, int64 in 0..C-1: columns of the head
    x_test: Tensor = field(repr=False)
    y_test: Tensor = field(repr=False)
    tasks: tuple[Task, ...]
    class_names: tuple[str, ...]
    name: str
    permutations: Tensor | None = field(default=None, repr=False)  # [V, D] of the D flattened input positions

    def __post_init__(self) -> None:
        _check_examples(self)
        _check_permutations(self)
        if not self.tasks:
            raise InputError("a stream needs at least one task: none was given")
        for k, task in enumerate(self.tasks):
            _check_task(self, k, task)

    def __len__(self) -> int:
        return len(self.tasks)

    @property
    def shape(self) -> torch.Size:
        """The shape of one input."""
        return self.x.shape[1:]

    @property
    def classes(self) -> int:
        """C, the number of classes and of the head's columns."""
        return len(self.class_names)

    def seen(self, k: int) -> tuple[int, ...]:
        """The classes of tasks 0..k, in the order of their arrival."""
        return tuple(dict.fromkeys(column for task in _until(self, k) for column in task.classes))

    def labels(self, index: Tensor) -> Tensor:
        """Labels of training examples."""
        return self.y[index % len(self.y)]

    def batch(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """Training examples by number, numbers of any shape: inputs and labels."""
        return _gathered(self.x, self.y, self.permutations, index)

    def test_batch(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """Test examples by number."""
        return _gathered(self.x_test, self.y_test, self.permutations, index)

    def to(self, device: torch.device | str, dtype: torch.dtype | None = None) -> Stream:
        """The same stream elsewhere; `dtype` is the inputs' alone."""
        if self.x.device == torch.device(device) and dtype in (None, self.x.dtype):
            return self
        return replace(
            self,
            x=self.x.to(device, dtype),
            y=self.y.to(device),
            x_test=self.x_test.to(device, dtype),
            y_test=self.y_test.to(device),
            tasks=tuple(Task(t.classes, t.train.to(device), t.test.to(device)) for t in self.tasks),
            permutations=None if self.permutations is None else self.permutations.to(device),
        )

    def fingerprint(self) -> str:
        """SHA-256 of everything but the name, the same on every device: a key for caches."""
        return self._fingerprint

    @cached_property
    def _fingerprint(self) -> str:
        digest = hashlib.sha256()

        def add(tensor: Tensor) -> None:
            digest.update(f"{tensor.dtype}{list(tensor.shape)}".encode())
            digest.update(tensor.cpu().flatten().view(torch.uint8).numpy().data)

        digest.update(json.dumps(self.class_names).encode())
        for tensor in (self.x, self.y, self.x_test, self.y_test):
            add(tensor)
        for task in self.tasks:
            digest.update(json.dumps(task.classes).encode())
            add(task.train)
            add(task.test)
        if self.permutations is not None:
            add(self.permutations)
        return digest.hexdigest()


def split(
    dataset: Dataset,
    classes_per_task: int | None = None,
    tasks: Sequence[Sequence[Label]] | None = None,
    order_seed: int | None = None,
) -> Stream:
    """Divide the classes into tasks: so many a task (the last may get fewer), or as listed.

    A listed label is a class's name or, where the names are not numbers themselves, its index. Classes that
    no list names are left out; the others' columns stay in the dataset's order. `order_seed` shuffles the
    classes before `classes_per_task` divides them.

    >>> x, y = torch.zeros(8, 2), [0, 0, 1, 1, 2, 2, 3, 3]
    >>> [task.classes for task in split(Dataset.from_arrays(x, y), tasks=[[3], [0, 2]]).tasks]
    [(2,), (0, 1)]
    """
    names = dataset.class_names
    if (classes_per_task is None) == (tasks is None):
        raise InputError("give either classes_per_task or tasks (lists of labels), and not both")
    if tasks is not None:
        if order_seed is not None:
            raise InputError("listed tasks are in order already: drop order_seed or give classes_per_task")
        groups = _listed(tasks, names)
    else:
        size = _whole(classes_per_task, "classes_per_task", least=1)
        order = list(range(len(names))) if order_seed is None else _shuffled(len(names), order_seed)
        groups = [order[start : start + size] for start in range(0, len(order), size)]

    used = sorted({index for group in groups for index in group})
    column = torch.full((len(names),), -1)
    column[used] = torch.arange(len(used))
    x, y = _of_classes(dataset.x, column[dataset.y])
    x_test, y_test = _of_classes(dataset.x_test, column[dataset.y_test])
    return Stream(
        x=x,
        y=y,
        x_test=x_test,
        y_test=y_test,
        tasks=tuple(
            Task(tuple(columns), _where(y, columns), _where(y_test, columns))
            for columns in (sorted(column[group].tolist()) for group in groups)
        ),
        class_names=tuple(names[index] for index in used),
        name=f"split-{dataset.name}",
    )


def permuted(dataset: Dataset, tasks: int = 10, seed: int = 0) -> Stream:
    """Every task has all classes and all examples, its inputs permuted its own way; the first as they are."""
    count = _whole(tasks, "tasks", least=1)
    size = dataset.x[0].numel()
    train, test = torch.arange(len(dataset.y)), torch.arange(len(dataset.y_test))
    orders = [torch.arange(size), *(torch.tensor(_shuffled(size, seed, k)) for k in range(1, count))]
    classes = tuple(range(len(dataset.class_names)))
    return Stream(
        x=dataset.x,
        y=dataset.y,
        x_test=dataset.x_test,
        y_test=dataset.y_test,
        tasks=tuple(Task(classes, v * len(train) + train, v * len(test) + test) for v in range(count)),
        class_names=dataset.class_names,
        name=f"permuted-{dataset.name}",
        permutations=torch.stack(orders),
    )


def from_arrays(
    x: ArrayLike | Tensor,
    y: ArrayLike | Tensor,
    x_test: ArrayLike | Tensor | None = None,
    y_test: ArrayLike | Tensor | None = None,
    *,
    classes_per_task: int | None = None,
    tasks: Sequence[Sequence[Label]] | None = None,
    order_seed: int | None = None,
    name: str = "arrays",
    seed: int = 0,
) -> Stream:
    """A stream straight from arrays: `Dataset.from_arrays`, then `split`."""
    dataset = Dataset.from_arrays(x, y, x_test, y_test, name=name, seed=seed)
    return split(dataset, classes_per_task, tasks, order_seed)


def union(stream: Stream, k: int) -> Stream:
    """Tasks 0..k as one task under the unchanged head: what the reference model a*_k learns."""
    tasks = _until(stream, k)
    train, test = torch.cat([task.train for task in tasks]), torch.cat([task.test for task in tasks])
    classes = tuple(sorted(stream.seen(k)))
    return replace(stream, tasks=(Task(classes, train, test),), name=f"{stream.name}-union-{k}")


def validation_split(stream: Stream, fraction: float = 0.1, seed: int = 0) -> Stream:
    """The stream tested on a held-out part of every class's training data; its real test data are gone.

    Choose hyper-parameters on this one. An example held out is held out of every task.
    """
    if not 0 < fraction < 1:
        raise InputError(f"fraction is {fraction}: give the part to hold out, between 0 and 1")
    total = len(stream.y)
    used = torch.unique(torch.cat([task.train for task in stream.tasks]) % total)
    kept, held = (used[part] for part in _hold_out(stream.y[used], fraction, seed, stream.class_names))
    return replace(
        stream,
        x=stream.x[kept],
        y=stream.y[kept],
        x_test=stream.x[held],
        y_test=stream.y[held],
        tasks=tuple(
            Task(task.classes, _renumbered(task.train, total, kept), _renumbered(task.train, total, held))
            for task in stream.tasks
        ),
        name=f"{stream.name}-validation",
    )


def _until(stream: Stream, k: int) -> tuple[Task, ...]:
    if not 0 <= k < len(stream):
        raise InputError(f"there is no task {k}: {stream.name} has tasks 0 to {len(stream) - 1}")
    return stream.tasks[: k + 1]


def _present(y: Tensor) -> list[int]:
    """The classes that occur, ascending."""
    columns: list[int] = torch.bincount(y).nonzero().flatten().tolist()
    return columns


def _where(y: Tensor, columns: list[int]) -> Tensor:
    return torch.isin(y, torch.tensor(columns)).nonzero().flatten()


def _of_classes(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Without the examples labelled -1; not copied where there are none."""
    kept = y >= 0
    return (x, y) if kept.all() else (x[kept], y[kept])


def _renumbered(numbers: Tensor, total: int, chosen: Tensor) -> Tensor:
    """Numbers of examples among `total` as numbers among `chosen` (ascending), without those not chosen."""
    numbers = numbers[torch.isin(numbers % total, chosen)]
    return numbers // total * len(chosen) + torch.searchsorted(chosen, numbers % total)


def _gathered(x: Tensor, y: Tensor, permutations: Tensor | None, index: Tensor) -> tuple[Tensor, Tensor]:
    if permutations is None:  # index_select is faster than indexing, and takes one dimension
        rows = index.reshape(-1)
        return x.index_select(0, rows).view(*index.shape, *x.shape[1:]), y.index_select(0, rows).view(index.shape)
    example, view = index % len(y), index // len(y)
    shown = x.flatten(1)[example].gather(-1, permutations[view])
    return shown.view(*index.shape, *x.shape[1:]), y[example]


def _hold_out(y: Tensor, fraction: float, seed: int, names: Sequence[str]) -> tuple[Tensor, Tensor]:
    """Indices kept and held out, ascending: the fraction of every class, at least one example each."""
    held = torch.zeros(len(y), dtype=torch.bool)
    for column in _present(y):
        members = (y.cpu() == column).nonzero().flatten()
        if len(members) < 2:
            raise InputError(
                f"class {names[column]!r} has one training example, so none can be held out: add examples"
            )
        count = min(max(1, round(fraction * len(members))), len(members) - 1)
        held[members[_shuffled(len(members), seed, column)[:count]]] = True
    held = held.to(y.device)
    return (~held).nonzero().flatten(), held.nonzero().flatten()


def _shuffled(count: int, *seed: int) -> list[int]:
    """0..count-1 in an order that depends on the seeds alone."""
    entropy = [_whole(part, "the seed", least=0) for part in seed]
    order: list[int] = np.random.default_rng(entropy).permutation(count).tolist()
    return order


def _whole(number: Any, what: str, least: int) -> int:
    if not isinstance(number, Integral) or number < least:
        raise InputError(f"{what} is {number!r}: give a whole number, {least} or larger")
    return int(number)


def _listed(tasks: Iterable[Iterable[Label]], names: Sequence[str]) -> list[list[int]]:
    """The class indices that lists of labels mean."""
    if isinstance(tasks, str) or not isinstance(tasks, Iterable):
        raise InputError(f"tasks is {tasks!r}: give one list of labels per task")
    groups: list[list[int]] = []
    taken: set[int] = set()
    for k, task in enumerate(tasks):
        if isinstance(task, str) or not isinstance(task, Iterable):
            raise InputError(f"task {k} is {task!r}: give a list of labels")
        groups.append([_class_index(label, names) for label in task])
        if not groups[-1]:
            raise InputError(f"task {k} has no class: name at least one label")
        if again := taken.intersection(groups[-1]):
            name = names[min(again)]
            raise InputError(f"class {name!r} is in two tasks, task {k} the second: name it in one only")
        taken.update(groups[-1])
    if not groups:
        raise InputError("tasks is empty: give one list of labels per task")
    return groups


def _class_index(label: Label, names: Sequence[str]) -> int:
    if str(label) in names:
        return names.index(str(label))
    # Where the labels are numbers, 0 must not quietly mean the class called 1.
    numbered = all(name.removeprefix("-").isdecimal() for name in names)
    if isinstance(label, Integral) and not numbered and 0 <= label < len(names):
        return int(label)
    raise unknown("label", str(label), names)


def _inputs(x: ArrayLike | Tensor, part: str) -> Tensor:
    array = _array(x, f"{part} inputs")
    if array.dtype.kind not in "biuf":
        raise InputError(f"{part} inputs are of type {array.dtype}: give numbers")
    with np.errstate(over="ignore"):  # what float32 cannot hold becomes infinite, and is refused as such
        inputs = torch.from_numpy(np.array(array, dtype=np.float32, order="C"))
    return inputs.div_(255) if array.dtype == np.uint8 else inputs


def _labels(y: ArrayLike | Tensor, part: str) -> NDArray[Any]:
    """Labels as integers or strings."""
    labels = _array(y, f"{part} labels")
    if labels.ndim != 1:
        raise InputError(f"{part} labels have shape {list(labels.shape)}: give one label per example, as [N]")
    kind = labels.dtype.kind
    if kind == "S":
        return np.char.decode(labels, "utf-8", "replace")
    if kind == "O" and all(isinstance(label, str) for label in labels):
        return labels.astype(np.str_)
    if kind == "O" and all(isinstance(label, Integral) for label in labels):
        return labels.astype(np.int64)
    if kind == "f" and np.isfinite(labels).all() and (labels == labels.round()).all():
        return labels.astype(np.int64)
    if kind in "biuUT":
        return labels
    raise InputError(
        f"{part} labels of type {labels.dtype} name no classes: give integers or strings, none missing"
    )


def _array(values: ArrayLike | Tensor, what: str) -> NDArray[Any]:
    if isinstance(values, Tensor):
        values = values.detach().cpu()
        return np.asarray(values.float() if values.is_floating_point() else values)
    try:
        return np.asarray(values)
    except ValueError:
        raise InputError(f"{what} are no array: give every example the same shape") from None


def _check_shapes(x: Tensor, y: Tensor, part: str) -> None:
    if x.ndim < 2 or x.numel() == 0:
        raise InputError(f"{part} inputs have shape {list(x.shape)}: give examples, as [N, *shape]")
    if y.ndim != 1:
        raise InputError(f"{part} labels have shape {list(y.shape)}: give one label per example, as [N]")
    if len(x) != len(y):
        raise InputError(f"{len(x)} {part} inputs but {len(y)} labels: give one label per example")


def _check_examples(data: Dataset | Stream) -> None:
    """Refuse examples that cannot be trained on or tested with."""
    names = data.class_names
    if len(set(names)) != len(names):
        raise InputError(f"two of the {len(names)} classes have the same name: rename one")
    for part, x, y in (("training", data.x, data.y), ("test", data.x_test, data.y_test)):
        _check_shapes(x, y, part)
        if not x.is_floating_point():
            raise InputError(f"{part} inputs are {x.dtype}: convert them to torch.float32")
        if y.dtype != torch.int64:
            raise InputError(f"{part} labels are {y.dtype}: convert them to torch.int64")
        if (stray := y[(y < 0) | (y >= len(names))]).numel():
            raise InputError(f"{part} label {int(stray[0])} is not among 0 to {len(names) - 1}: name its class")
        # One sum shows any NaN or infinity; a mask as large as the data is needed only to say where.
        if not x.sum().isfinite() and not (finite := x.isfinite().flatten(1).all(1)).all():
            raise InputError(f"{part} input {int(finite.int().argmin())} holds NaN or infinity: mend or drop it")
    if data.x.shape[1:] != data.x_test.shape[1:]:
        train, test = list(data.x.shape[1:]), list(data.x_test.shape[1:])
        raise InputError(f"training inputs have shape {train}, test inputs {test}: give both the same")


def _check_task(stream: Stream, k: int, task: Task) -> None:
    names, columns = stream.class_names, set(task.classes)
    if not columns:
        raise InputError(f"task {k} has no class: name at least one")
    if len(columns) < len(task.classes):
        raise InputError(f"task {k} names a class twice: name it once")
    if not columns <= set(range(len(names))):
        raise InputError(f"task {k} has classes {task.classes}: they must be among 0 to {len(names) - 1}")
    views = 1 if stream.permutations is None else len(stream.permutations)
    trained = _classes_at(task.train, stream.y, views, f"task {k}", "training")
    tested = _classes_at(task.test, stream.y_test, views, f"task {k}", "test")
    if strays := (trained | tested) - columns:
        raise InputError(
            f"task {k} has examples of class {names[min(strays)]!r}, which it does not name: drop them"
        )
    if untrained := columns - trained:
        raise InputError(f"class {names[min(untrained)]!r} of task {k} has no training example: add some")


def _check_permutations(stream: Stream) -> None:
    if stream.permutations is None:
        return
    if stream.permutations.dtype != torch.int64:
        raise InputError(f"permutations are {stream.permutations.dtype}: convert them to torch.int64")
    positions = torch.arange(stream.x[0].numel(), device=stream.permutations.device)
    shaped = stream.permutations.ndim == 2 and stream.permutations.shape[1] == len(positions)
    if not shaped or not (stream.permutations.sort(-1).values == positions).all():
        raise InputError(f"permutations must be of 0 to {len(positions) - 1}: give every input position once")


def _classes_at(indices: Tensor, y: Tensor, views: int, task: str, part: str) -> set[int]:
    """The classes of the examples a task points to."""
    if indices.ndim != 1 or indices.dtype != torch.int64:
        raise InputError(f"{task}'s {part} indices are {indices.dtype} {list(indices.shape)}: give int64 [n]")
    if not len(indices):
        raise InputError(f"{task} has no {part} example: give it some, or leave its classes out")
    if indices.min() < 0 or indices.max() >= views * len(y):
        raise InputError(f"{task} points outside the {views * len(y)} {part} examples: count them from 0")
    return set(_present(y[indices % len(y)]))
