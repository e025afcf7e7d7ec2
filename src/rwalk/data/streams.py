"""Datasets, and streams: a dataset divided into tasks that are learned in order. Pure data, checked when made."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from rwalk.data.arrays import as_inputs, as_labels, check_alike, hold_out, natural_order, present
from rwalk.errors import InputError

HELD_OUT = 0.2  # of every class, where a dataset brings no test examples of its own


class Form(Protocol):
    """How files became inputs, so that more such files can be read."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    def to_json(self) -> dict[str, Any]: ...


@dataclass(frozen=True, eq=False)
class Arrivals:
    """The task in which every example arrives, if the data themselves say so."""

    names: tuple[str, ...]
    train: Tensor = field(repr=False)  # numbers of tasks, int64 [N]
    test: Tensor = field(repr=False)


@dataclass(frozen=True, eq=False)
class Dataset:
    """Labelled examples, before they are divided into tasks.

    Args:
        name: Its name in results and messages.
        x: Training inputs, float32 [N, *shape].
        y: Training labels, int64 [N], indices into `class_names`.
        x_test: Test inputs.
        y_test: Test labels.
        class_names: The names of the classes, in the order of their indices.
        arrivals: The task in which every example arrives, if the data contain it.
        form: How files became inputs, if they did.

    Raises:
        InputError: Shapes, types or labels do not fit each other, or a class has no training example.
    """

    name: str
    x: Tensor = field(repr=False)
    y: Tensor = field(repr=False)
    x_test: Tensor = field(repr=False)
    y_test: Tensor = field(repr=False)
    class_names: tuple[str, ...]
    arrivals: Arrivals | None = field(default=None, repr=False)
    form: Form | None = field(default=None, repr=False)

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
        arrival: ArrayLike | Tensor | None = None,
        arrival_test: ArrayLike | Tensor | None = None,
        form: Form | None = None,
    ) -> Dataset:
        """Copy a dataset from arrays or tensors.

        Args:
            x: Training inputs; uint8 are pixels, and become [0, 1].
            y: Training labels, any integers or strings.
            x_test: Test inputs. Without them, a fifth of every class is held out for testing.
            y_test: Test labels.
            name: Its name in results and messages.
            seed: Seed of the examples held out.
            arrival: The number or name of the task in which every training example arrives; tasks come in the
                order of their numbers or names.
            arrival_test: The same of test examples.
            form: How files became inputs, if they did.

        Returns:
            The dataset.

        Raises:
            InputError: The arrays do not fit each other, or a test label is never trained.
        """
        if (x_test is None) != (y_test is None):
            raise InputError("x_test and y_test belong together: give both or neither")
        if arrival is not None and (x_test is None) != (arrival_test is None):
            raise InputError("arrival_test belongs to x_test: give the task of every test example too")
        values, columns = np.unique(as_labels(y, "training"), return_inverse=True)
        names = tuple(str(value) for value in values)
        inputs, targets = as_inputs(x, "training"), torch.from_numpy(columns)
        tasks, task_names = (None, ()) if arrival is None else _numbered(arrival, len(targets), "training")
        if x_test is None or y_test is None:
            _check_shapes(inputs, targets, "training")
            _check_finite(inputs, "training")  # while its number is the user's own
            groups, group_names = strata(targets, names, tasks, task_names)
            kept, held = hold_out(groups, HELD_OUT, seed, group_names)
            arrivals = None if tasks is None else Arrivals(task_names, tasks[kept], tasks[held])
            parts = inputs[kept], targets[kept], inputs[held], targets[held]
            return cls(name, *parts, names, arrivals, form)
        tested, positions = np.unique(as_labels(y_test, "test"), return_inverse=True)
        column = {label: index for index, label in enumerate(names)}
        if strangers := [str(value) for value in tested if str(value) not in column]:
            raise InputError(
                f"test label {strangers[0]!r} is never trained: add training examples or drop its tests"
            )
        lookup = torch.tensor([column[str(value)] for value in tested], dtype=torch.int64)
        check_alike(x, x_test)
        tests = as_inputs(x_test, "test"), lookup[torch.from_numpy(positions)]
        arrivals = None
        if tasks is not None and arrival_test is not None:
            numbers, test_names = _numbered(arrival_test, len(positions), "test")
            if strange := [each for each in test_names if each not in task_names]:
                raise InputError(f"test task {strange[0]!r} has no training example: add some or drop its tests")
            place = torch.tensor([task_names.index(each) for each in test_names])
            arrivals = Arrivals(task_names, tasks, place[numbers])
        return cls(name, inputs, targets, *tests, names, arrivals, form)


def _numbered(arrival: ArrayLike | Tensor, examples: int, part: str) -> tuple[Tensor, tuple[str, ...]]:
    """Every example's task as a number, and the tasks' names in order."""
    tasks, places = np.unique(as_labels(arrival, f"{part} arrival"), return_inverse=True)
    if len(places) != examples:
        raise InputError(f"{len(places)} tasks for {examples} {part} examples: give one per example")
    names = [str(task) for task in tasks]
    order = (
        range(len(names))
        if tasks.dtype.kind in "biu"
        else sorted(range(len(names)), key=lambda place: natural_order(names[place]))
    )
    rank = torch.empty(len(names), dtype=torch.int64)
    rank[torch.tensor([*order])] = torch.arange(len(names))
    return rank[torch.from_numpy(places)], tuple(names[place] for place in order)


def strata(
    y: Tensor, names: Sequence[str], tasks: Tensor | None, task_names: Sequence[str]
) -> tuple[Tensor, Sequence[str]]:
    """The groups to hold out from: every class or, if it arrives in several tasks, that class in each of them.

    A class keeps its number in the first of its tasks, so that nothing changes where each has one task.
    """
    if tasks is None:
        return y, names
    groups, every = y.clone(), list(names)
    for column in range(len(names)):
        members = y == column
        _, *later = torch.unique(tasks[members]).tolist() or [0]
        for task in later:
            groups[members & (tasks == task)] = len(every)
            every.append(f"{names[column]} of {task_names[task]}")
    return groups, every


@dataclass(frozen=True, eq=False)
class Task:
    """One task: which classes, and which examples of the stream.

    Where task boundaries are blurry, a few training examples are of `others`: classes that a neighbour teaches.
    """

    classes: tuple[int, ...]  # columns of the head this task's labels use
    train: Tensor = field(repr=False)  # numbers of the stream's training examples, int64
    test: Tensor = field(repr=False)  # numbers of the stream's test examples, int64
    others: tuple[int, ...] = ()


@dataclass(frozen=True, eq=False)
class Stream:
    """Examples and the tasks they arrive in.

    Where inputs are permuted or rotated, an example's index includes its view: v · N + i is example i of N under
    view v. A task, a memory or a batch therefore needs no other record of views.

    Args:
        x: Training inputs, float [N, *shape].
        y: Training labels, int64 in 0..C-1: columns of the head.
        x_test: Test inputs.
        y_test: Test labels.
        tasks: The classes and the examples of every task.
        class_names: The names of the C classes.
        name: Its name in results and messages.
        views: Which of the D input positions is shown at each place [V, D]; the value D means none.
        groups: The classes that compete in the softmax of a training step (`splits.SCENARIOS`). By default, as in
            the paper: the task's own classes, or with exemplars all classes seen.
        form: How files became inputs, if they did.

    Raises:
        InputError: The parts do not fit each other, or there is no task.
    """

    x: Tensor = field(repr=False)
    y: Tensor = field(repr=False)
    x_test: Tensor = field(repr=False)
    y_test: Tensor = field(repr=False)
    tasks: tuple[Task, ...]
    class_names: tuple[str, ...]
    name: str
    views: Tensor | None = field(default=None, repr=False)
    groups: tuple[tuple[int, ...], ...] | None = None
    form: Form | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        _check_examples(self)
        _check_views(self)
        if not self.tasks:
            raise InputError("a stream needs at least one task: none was given")
        for k, task in enumerate(self.tasks):
            _check_task(self, k, task)
        _check_groups(self)

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
        return tuple(dict.fromkeys(column for task in until(self, k) for column in task.classes))

    def labels(self, index: Tensor) -> Tensor:
        """Labels of training examples."""
        return self.y[index % len(self.y)]

    def batch(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """Training examples by number, numbers of any shape: inputs and labels."""
        return self._gathered(self.x, self.y, index)

    def test_batch(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """Test examples by number."""
        return self._gathered(self.x_test, self.y_test, index)

    def to(self, device: torch.device | str, dtype: torch.dtype | None = None) -> Stream:
        """The same stream elsewhere; `dtype` is the inputs' alone."""
        wanted = torch.device(device)
        if all(each.device == wanted and dtype in (None, each.dtype) for each in (self.x, self.x_test)):
            return self
        return replace(
            self,
            x=self.x.to(device, dtype),
            y=self.y.to(device),
            x_test=self.x_test.to(device, dtype),
            y_test=self.y_test.to(device),
            tasks=tuple(replace(t, train=t.train.to(device), test=t.test.to(device)) for t in self.tasks),
            views=None if self.views is None else self.views.to(device),
        )

    def fingerprint(self) -> str:
        """SHA-256 of everything but the name, the same on every device: a key for caches."""
        return self._fingerprint

    @cached_property
    def _has_blanks(self) -> bool:
        """Whether a view leaves a place empty; computed once, because reading it waits for the device."""
        return self.views is not None and bool((self.views == self.shape.numel()).any())

    def _gathered(self, x: Tensor, y: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
        if self.views is None:  # index_select is faster than indexing, and takes one dimension
            rows = index.reshape(-1)
            shown = x.index_select(0, rows)
            return shown.view(*index.shape, *self.shape), y.index_select(0, rows).view(index.shape)
        example, view = index % len(y), self.views[index // len(y)]
        if self._has_blanks:
            blank = view == self.shape.numel()
            shown = x.flatten(1)[example].gather(-1, view.masked_fill(blank, 0)).masked_fill(blank, 0.0)
        else:
            shown = x.flatten(1)[example].gather(-1, view)
        return shown.view(*index.shape, *self.shape), y[example]

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
            digest.update(json.dumps([task.classes, task.others] if task.others else task.classes).encode())
            add(task.train)
            add(task.test)
        if self.views is not None:
            add(self.views)
        if self.groups is not None:
            digest.update(json.dumps(self.groups).encode())
        return digest.hexdigest()


def until(stream: Stream, k: int) -> tuple[Task, ...]:
    if not 0 <= k < len(stream):
        raise InputError(f"there is no task {k}: {stream.name} has tasks 0 to {len(stream) - 1}")
    return stream.tasks[: k + 1]


# Checks


def _check_shapes(x: Tensor, y: Tensor, part: str) -> None:
    if x.ndim < 2 or x.numel() == 0:
        raise InputError(f"{part} inputs have shape {list(x.shape)}: give examples, as [N, *shape]")
    if y.ndim != 1:
        raise InputError(f"{part} labels have shape {list(y.shape)}: give one label per example, as [N]")
    if len(x) != len(y):
        raise InputError(f"{len(x)} {part} inputs but {len(y)} labels: give one label per example")


def _check_finite(x: Tensor, part: str) -> None:
    """One sum reveals any NaN or infinity; a mask as large as the data is needed only to say where."""
    if not x.sum().isfinite() and not (finite := x.isfinite().flatten(1).all(1)).all():
        place = int(finite.int().argmin())
        raise InputError(
            f"{part} input {place} holds NaN or infinity, or more than float32 can: repair or drop it"
        )


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
        _check_finite(x, part)
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
    views = 1 if stream.views is None else len(stream.views)
    trained = _classes_at(task.train, stream.y, views, f"task {k}", "training")
    tested = _classes_at(task.test, stream.y_test, views, f"task {k}", "test")
    if set(task.others) & columns or not set(task.others) <= set(range(len(names))):
        raise InputError(
            f"task {k} has others {task.others}: they must be classes of the stream that are not its own"
        )
    if strays := (trained - columns - set(task.others)) | (tested - columns):
        raise InputError(
            f"task {k} has examples of class {names[min(strays)]!r}, which it does not name: drop them"
        )
    if untrained := columns - trained:
        raise InputError(f"class {names[min(untrained)]!r} of task {k} has no training example: add some")


def _check_views(stream: Stream) -> None:
    """Every view maps each place to a position of the input, or to nothing: a permutation, a rotation."""
    views = stream.views
    if views is None:
        return
    if views.dtype != torch.int64:
        raise InputError(f"views are {views.dtype}: convert them to torch.int64")
    size = stream.shape.numel()
    if views.ndim != 2 or views.shape[1] != size:
        raise InputError(
            f"views have shape {list(views.shape)}: give one position for each of {size} places, [V, {size}]"
        )
    if ((views < 0) | (views > size)).any():
        raise InputError(
            f"views must name positions of the input, 0 to {size - 1}, or {size} where nothing is shown"
        )


def _check_groups(stream: Stream) -> None:
    """Groups are a partition of the classes."""
    if stream.groups is None:
        return
    named = sorted(column for group in stream.groups for column in group)
    if named != list(range(len(stream.class_names))) or not all(stream.groups):
        raise InputError(
            f"groups must name every class from 0 to {len(stream.class_names) - 1} once, not {stream.groups}"
        )


def _classes_at(indices: Tensor, y: Tensor, views: int, task: str, part: str) -> set[int]:
    """The classes of the examples a task points to."""
    if indices.ndim != 1 or indices.dtype != torch.int64:
        raise InputError(f"{task}'s {part} indices are {indices.dtype} {list(indices.shape)}: give int64 [n]")
    if not len(indices):
        raise InputError(f"{task} has no {part} example: give it some, or leave its classes out")
    if indices.min() < 0 or indices.max() >= views * len(y):
        raise InputError(f"{task} points outside the {views * len(y)} {part} examples: count them from 0")
    return set(present(y[indices % len(y)]))
