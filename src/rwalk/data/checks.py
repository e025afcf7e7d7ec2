"""What examples, tasks and streams must be; anything else is refused in one line."""

from __future__ import annotations

from numbers import Integral
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from rwalk.errors import InputError

if TYPE_CHECKING:
    from rwalk.data.streams import Dataset, Stream, Task


def whole(number: Any, what: str, least: int) -> int:
    if not isinstance(number, Integral) or number < least:
        raise InputError(f"{what} is {number!r}: give a whole number, {least} or larger")
    return int(number)


def check_shapes(x: Tensor, y: Tensor, part: str) -> None:
    if x.ndim < 2 or x.numel() == 0:
        raise InputError(f"{part} inputs have shape {list(x.shape)}: give examples, as [N, *shape]")
    if y.ndim != 1:
        raise InputError(f"{part} labels have shape {list(y.shape)}: give one label per example, as [N]")
    if len(x) != len(y):
        raise InputError(f"{len(x)} {part} inputs but {len(y)} labels: give one label per example")


def check_examples(data: Dataset | Stream) -> None:
    """Refuse examples that cannot be trained on or tested with."""
    names = data.class_names
    if len(set(names)) != len(names):
        raise InputError(f"two of the {len(names)} classes have the same name: rename one")
    for part, x, y in (("training", data.x, data.y), ("test", data.x_test, data.y_test)):
        check_shapes(x, y, part)
        if not x.is_floating_point():
            raise InputError(f"{part} inputs are {x.dtype}: convert them to torch.float32")
        if y.dtype != torch.int64:
            raise InputError(f"{part} labels are {y.dtype}: convert them to torch.int64")
        if (stray := y[(y < 0) | (y >= len(names))]).numel():
            raise InputError(f"{part} label {int(stray[0])} is not among 0 to {len(names) - 1}: name its class")
        # One sum reveals any NaN or infinity; a mask as large as the data is needed only to say where.
        if not x.sum().isfinite() and not (finite := x.isfinite().flatten(1).all(1)).all():
            raise InputError(f"{part} input {int(finite.int().argmin())} holds NaN or infinity: repair or drop it")
    if data.x.shape[1:] != data.x_test.shape[1:]:
        train, test = list(data.x.shape[1:]), list(data.x_test.shape[1:])
        raise InputError(f"training inputs have shape {train}, test inputs {test}: give both the same")


def check_task(stream: Stream, k: int, task: Task) -> None:
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


def check_views(stream: Stream) -> None:
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


def check_groups(stream: Stream) -> None:
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


def present(y: Tensor) -> list[int]:
    """The classes that occur, ascending."""
    columns: list[int] = torch.bincount(y).nonzero().flatten().tolist()
    return columns
