"""Building streams: a dataset divided into tasks, tasks joined or blurred, test data held out for validation."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from numbers import Integral
from typing import Any

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from rwalk import seeds
from rwalk.data.arrays import hold_out, present, shuffled, whole
from rwalk.data.streams import Dataset, Stream, Task, strata, until
from rwalk.errors import InputError, unknown

Label = int | str
SCENARIOS = {
    "task": "the task is known: a class competes with those of its task alone, in training too",
    "domain": "every task has the same labels: a class is known by its place in its task",
    "class": "the task is not known: every class of the stream competes with all others from the start",
}
"""Van de Ven et al. (2022): what a learner must tell apart, and so which outputs compete in training."""


def split(
    dataset: Dataset,
    classes_per_task: int | None = None,
    tasks: Sequence[Sequence[Label]] | None = None,
    order_seed: int | None = None,
    scenario: str | None = None,
) -> Stream:
    """Divide the classes into tasks: `classes_per_task` each, or as listed.

    Args:
        dataset: The examples.
        classes_per_task: Classes in each task; the last task may get fewer.
        tasks: Instead, the labels of every task. A label is a class's name or, if the names are not numbers, its
            index. Other classes are left out; the columns of the listed ones stay in the dataset's order.
        order_seed: Shuffles the classes before `classes_per_task` divides them.
        scenario: One of SCENARIOS. Without it, training is as in the paper, and both heads are of interest.

    Returns:
        The stream of these tasks.

    Raises:
        InputError: Not exactly one of `classes_per_task` and `tasks` is given, or labels are unknown.

    >>> x, y = torch.zeros(8, 2), [0, 0, 1, 1, 2, 2, 3, 3]
    >>> [task.classes for task in split(Dataset.from_arrays(x, y), tasks=[[3], [0, 2]]).tasks]
    [(2,), (0, 1)]
    """
    names = dataset.class_names
    check_scenario(scenario)
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
    if scenario == "domain":
        return _same_labels(dataset, groups)

    used = sorted({index for group in groups for index in group})
    column = torch.full((len(names),), -1)
    column[used] = torch.arange(len(used))
    x, y = _of_classes(dataset.x, column[dataset.y])
    x_test, y_test = _of_classes(dataset.x_test, column[dataset.y_test])
    found = tuple(
        Task(tuple(columns), _where(y, columns), _where(y_test, columns))
        for columns in (sorted(column[group].tolist()) for group in groups)
    )
    labelled = {"x": x, "y": y, "x_test": x_test, "y_test": y_test, "class_names": tuple(names[i] for i in used)}
    return _stream("split", dataset, found, **labelled, groups=competing(found, len(used), scenario))


def _stream(how: str, dataset: Dataset, tasks: Iterable[Task], **changes: Any) -> Stream:
    """The dataset's examples in these tasks; `changes` are fields of the stream that differ from the dataset's."""
    same = {name: getattr(dataset, name) for name in ("x", "y", "x_test", "y_test", "class_names", "form")}
    return Stream(tasks=tuple(tasks), name=f"{how}-{dataset.name}", **{**same, **changes})


def check_scenario(name: str | None) -> None:
    if name is not None and name not in SCENARIOS:
        raise unknown("scenario", name, SCENARIOS)


def competing(tasks: Sequence[Task], classes: int, scenario: str | None) -> tuple[tuple[int, ...], ...] | None:
    """The groups of classes that compete in training; None for the paper's rule."""
    if scenario is None:
        return None
    return tuple(task.classes for task in tasks) if scenario == "task" else (tuple(range(classes)),)


def _same_labels(dataset: Dataset, groups: Sequence[Sequence[int]]) -> Stream:
    """The domain-incremental scenario: a class is labelled by its place in its group, the same in every task."""
    size = len(groups[0])
    if any(len(group) != size for group in groups):
        sizes = ", ".join(str(len(group)) for group in groups)
        raise InputError(
            f"domain-incremental tasks have the same labels, but these have {sizes} classes: divide evenly"
        )
    place, task = torch.full((2, len(dataset.class_names)), -1)
    for number, group in enumerate(groups):
        place[list(group)], task[list(group)] = torch.arange(size), number
    labels = tuple(range(size))
    tasks = (
        Task(labels, *((task[y] == number).nonzero().flatten() for y in (dataset.y, dataset.y_test)))
        for number in range(len(groups))
    )
    y, y_test = (place[each].clamp(min=0) for each in (dataset.y, dataset.y_test))  # 0 if it is in no task
    named = tuple(map(str, labels))
    return _stream("domains", dataset, tasks, y=y, y_test=y_test, class_names=named, groups=(labels,))


def as_it_arrives(dataset: Dataset, scenario: str | None = None) -> Stream:
    """The tasks that the data themselves are divided into; a class may arrive in several."""
    arrivals = dataset.arrivals
    if arrivals is None:
        raise InputError(f"{dataset.name} does not say which task an example arrives in: give a split")
    check_scenario(scenario)
    tasks = []
    for number in range(len(arrivals.names)):
        train = (arrivals.train == number).nonzero().flatten()
        test = (arrivals.test == number).nonzero().flatten()
        tasks.append(Task(tuple(present(dataset.y[train])), train, test))
    columns = [column for task in tasks for column in task.classes]
    if scenario == "task" and len(set(columns)) < len(columns):
        raise InputError("a class arrives in several tasks, so they are not task-incremental: drop the scenario")
    if scenario == "domain" and any(task.classes != tasks[0].classes for task in tasks):
        raise InputError("the tasks have different classes, so they are not domain-incremental: drop the scenario")
    return _stream("tasks", dataset, tasks, groups=competing(tasks, len(dataset.class_names), scenario))


def permuted(dataset: Dataset, tasks: int = 10, seed: int = 0) -> Stream:
    """Every task has all classes and all examples, with its own permutation of the inputs; the first has none.

    Args:
        dataset: The examples.
        tasks: How many tasks.
        seed: Seed of the permutations.

    Returns:
        The stream; an index of an example includes its permutation.
    """
    count = whole(tasks, "tasks", least=1)
    size = dataset.x[0].numel()
    orders = [torch.arange(size), *(torch.tensor(shuffled(size, seed, k)) for k in range(1, count))]
    return _viewed(dataset, torch.stack(orders), "permuted")


def rotated(dataset: Dataset, tasks: int = 10, seed: int = 0) -> Stream:
    """Every task has all classes and all examples, its images turned by its own angle; the first as they are.

    Angles are drawn from 0° to 180°. A place shows the pixel nearest to where it came from, or 0 if it came from
    outside the image.

    Args:
        dataset: The examples; inputs are images.
        tasks: How many tasks.
        seed: Seed of the angles.

    Returns:
        The stream; an index of an example includes its rotation.

    Raises:
        InputError: Inputs are not images.
    """
    count = whole(tasks, "tasks", least=1)
    shape = tuple(dataset.x.shape[1:])
    if len(shape) < 2:
        raise InputError(f"inputs of shape {list(shape)} cannot be rotated: give images, [height, width] at least")
    draws = [seeds.generator(seed, "rotation", k) for k in range(1, count)]
    angles = [0.0, *(180 * float(torch.rand((), generator=draw, dtype=torch.float64)) for draw in draws)]
    return _viewed(dataset, torch.stack([rotation(shape, angle) for angle in angles]), "rotated")


def rotation(shape: tuple[int, ...], degrees: float) -> Tensor:
    """A view [D] of images of this shape [..., H, W], turned counter-clockwise about their centre.

    >>> rotation((2, 2), 90).view(2, 2).tolist()
    [[1, 3], [0, 2]]
    """
    height, width = shape[-2:]
    down, right = torch.meshgrid(
        torch.arange(height, dtype=torch.float64) - (height - 1) / 2,
        torch.arange(width, dtype=torch.float64) - (width - 1) / 2,
        indexing="ij",
    )
    turn = torch.tensor(degrees, dtype=torch.float64).deg2rad()
    row = (turn.cos() * down + turn.sin() * right + (height - 1) / 2).round().long()
    column = (-turn.sin() * down + turn.cos() * right + (width - 1) / 2).round().long()
    inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
    size = torch.Size(shape).numel()
    planes = torch.arange(0, size, height * width)[:, None]
    shown = torch.where(inside, row * width + column, size).flatten()
    return torch.where(shown < size, shown + planes, size).flatten()


def _viewed(dataset: Dataset, views: Tensor, how: str) -> Stream:
    """Every task has all examples under a view of its own."""
    train, test = torch.arange(len(dataset.y)), torch.arange(len(dataset.y_test))
    classes = tuple(range(len(dataset.class_names)))
    tasks = (Task(classes, v * len(train) + train, v * len(test) + test) for v in range(len(views)))
    return _stream(how, dataset, tasks, views=views)


def blurred(stream: Stream, fraction: float, seed: int = 0) -> Stream:
    """Blurry task boundaries: a fraction of every task's training examples is taught by its neighbours instead.

    Half of it goes to the task before and half to the one after; the first and the last have one neighbour. Tests
    stay where they are.

    Args:
        stream: A stream of at least two tasks.
        fraction: The share of every task's examples that moves, between 0 and 1.
        seed: Seed of the choice of examples.

    Returns:
        The same stream with other training examples per task.

    Raises:
        InputError: The fraction is out of range, or there is only one task.
    """
    if not 0 < fraction < 1:
        raise InputError(
            f"blurry is {fraction}: give the part of a task that its neighbours teach, between 0 and 1"
        )
    last = len(stream) - 1
    if not last:
        raise InputError("blurry boundaries need a neighbour: give a stream of two tasks or more")
    shares: list[list[Tensor]] = [[] for _ in stream.tasks]
    for k, task in enumerate(stream.tasks):
        order = task.train[torch.randperm(len(task.train), generator=seeds.generator(seed, "blurry", k))]
        moved = round(fraction * len(order))
        before = 0 if k == 0 else moved if k == last else moved // 2
        parts = order.split([before, moved - before, len(order) - moved])
        for neighbour, part in zip((k - 1, k + 1, k), parts, strict=True):
            if len(part):
                shares[neighbour].append(part)
    if sum(map(len, shares)) == len(stream):
        raise InputError(f"blurry is {fraction}, which moves no example of any task: give more")
    return replace(
        stream,
        tasks=tuple(
            _with_others(stream, task, torch.cat(share).sort().values)
            for task, share in zip(stream.tasks, shares, strict=True)
        ),
        name=f"blurred-{stream.name}",
    )


def _with_others(stream: Stream, task: Task, train: Tensor) -> Task:
    others = set(present(stream.labels(train))) - set(task.classes)
    return replace(task, train=train, others=tuple(sorted(others)))


def from_arrays(
    x: ArrayLike | Tensor,
    y: ArrayLike | Tensor,
    x_test: ArrayLike | Tensor | None = None,
    y_test: ArrayLike | Tensor | None = None,
    *,
    classes_per_task: int | None = None,
    tasks: Sequence[Sequence[Label]] | None = None,
    order_seed: int | None = None,
    scenario: str | None = None,
    name: str = "arrays",
    seed: int = 0,
) -> Stream:
    """A stream straight from arrays: `Dataset.from_arrays`, then `split`.

    Args:
        x: Training inputs.
        y: Training labels, any integers or strings.
        x_test: Test inputs. Without them, a fifth of every class is held out.
        y_test: Test labels.
        classes_per_task: Classes in each task.
        tasks: Instead, the labels of every task.
        order_seed: Shuffles the classes before they are divided.
        scenario: One of SCENARIOS.
        name: Its name in results and messages.
        seed: Seed of the examples held out.

    Returns:
        The stream of these tasks.
    """
    dataset = Dataset.from_arrays(x, y, x_test, y_test, name=name, seed=seed)
    return split(dataset, classes_per_task, tasks, order_seed, scenario)


def union(stream: Stream, k: int) -> Stream:
    """Tasks 0..k as one task under the unchanged head, for the reference model a*_k."""
    tasks = until(stream, k)
    train, test = torch.cat([task.train for task in tasks]), torch.cat([task.test for task in tasks])
    classes = tuple(sorted(stream.seen(k)))
    joined = _with_others(stream, Task(classes, train, test), train)
    return replace(stream, tasks=(joined,), name=f"{stream.name}-union-{k}")


def validation_split(stream: Stream, fraction: float = 0.1, seed: int = 0, most: int | None = None) -> Stream:
    """The stream tested on a held-out part of every class's training data; its real test data are not in it.

    Use it to choose hyper-parameters. An example held out is held out of every task, and tests those tasks that
    teach its class as their own. At most `most` examples of a class (of a task) are held out.
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

    def own(task: Task) -> Tensor:
        return task.train[torch.isin(stream.labels(task.train), torch.tensor(task.classes).to(task.train.device))]

    kept, held = (used[part] for part in hold_out(groups, fraction, seed, names, most))
    return replace(
        stream,
        x=stream.x[kept],
        y=stream.y[kept],
        x_test=stream.x[held],
        y_test=stream.y[held],
        tasks=tuple(
            replace(task, train=_renumbered(task.train, total, kept), test=_renumbered(own(task), total, held))
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
