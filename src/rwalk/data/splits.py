"""Building streams: a dataset divided into tasks, tasks joined, test data held out for validation."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from numbers import Integral

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from rwalk.data.checks import present, whole
from rwalk.data.draws import hold_out, shuffled
from rwalk.data.streams import Dataset, Stream, Task, strata, until
from rwalk.errors import InputError, unknown

Label = int | str


def split(
    dataset: Dataset,
    classes_per_task: int | None = None,
    tasks: Sequence[Sequence[Label]] | None = None,
    order_seed: int | None = None,
) -> Stream:
    """Divide the classes into tasks: `classes_per_task` each (the last may get fewer), or as listed.

    A listed label is a class's name or, if the names are not themselves numbers, its index. Classes that are not
    listed are left out; the columns of the others stay in the dataset's order. `order_seed` shuffles the classes
    before `classes_per_task` divides them.

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
        size = whole(classes_per_task, "classes_per_task", least=1)
        order = list(range(len(names))) if order_seed is None else shuffled(len(names), order_seed)
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
        form=dataset.form,
    )


def as_it_arrives(dataset: Dataset) -> Stream:
    """The tasks that the data themselves are divided into; a class may arrive in several."""
    arrivals = dataset.arrivals
    if arrivals is None:
        raise InputError(f"{dataset.name} does not say which task an example arrives in: give a split")
    tasks = []
    for number in range(len(arrivals.names)):
        train = (arrivals.train == number).nonzero().flatten()
        test = (arrivals.test == number).nonzero().flatten()
        tasks.append(Task(tuple(present(dataset.y[train])), train, test))
    parts = dataset.x, dataset.y, dataset.x_test, dataset.y_test
    return Stream(*parts, tuple(tasks), dataset.class_names, f"tasks-{dataset.name}", form=dataset.form)


def permuted(dataset: Dataset, tasks: int = 10, seed: int = 0) -> Stream:
    """Every task has all classes and all examples, with its own permutation of the inputs; the first has none."""
    count = whole(tasks, "tasks", least=1)
    size = dataset.x[0].numel()
    train, test = torch.arange(len(dataset.y)), torch.arange(len(dataset.y_test))
    orders = [torch.arange(size), *(torch.tensor(shuffled(size, seed, k)) for k in range(1, count))]
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
        form=dataset.form,
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
    tasks = until(stream, k)
    train, test = torch.cat([task.train for task in tasks]), torch.cat([task.test for task in tasks])
    classes = tuple(sorted(stream.seen(k)))
    return replace(stream, tasks=(Task(classes, train, test),), name=f"{stream.name}-union-{k}")


def validation_split(stream: Stream, fraction: float = 0.1, seed: int = 0) -> Stream:
    """The stream tested on a held-out part of every class's training data; its real test data are not in it.

    Use it to choose hyper-parameters. An example held out is held out of every task.
    """
    if not 0 < fraction < 1:
        raise InputError(
            f"the part of the training data to validate on (--validation) is {fraction}: give one between 0 and 1"
        )
    total = len(stream.y)
    first = torch.full((total,), -1, device=stream.y.device)  # the task that an example arrives in
    for number, task in reversed([*enumerate(stream.tasks)]):
        first[task.train % total] = number
    used = (first >= 0).nonzero().flatten()
    task_names = [f"task {number}" for number in range(len(stream))]
    groups, names = strata(stream.y[used], stream.class_names, first[used], task_names)
    kept, held = (used[part] for part in hold_out(groups, fraction, seed, names))
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


def _where(y: Tensor, columns: list[int]) -> Tensor:
    return torch.isin(y, torch.tensor(columns)).nonzero().flatten()


def _of_classes(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Without the examples labelled -1; not copied where there are none."""
    kept = y >= 0
    return (x, y) if kept.all() else (x[kept], y[kept])


def _renumbered(numbers: Tensor, total: int, chosen: Tensor) -> Tensor:
    """Indices into `total` examples as indices into the `chosen` ones (ascending), without those not chosen."""
    numbers = numbers[torch.isin(numbers % total, chosen)]
    return numbers // total * len(chosen) + torch.searchsorted(chosen, numbers % total)
