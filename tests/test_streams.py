"""Streams: good splits keep their promises, bad ones are refused in one line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rwalk.data.splits import blurred, from_arrays, permuted, split, union, validation_split
from rwalk.data.streams import Dataset, Stream, Task
from rwalk.errors import InputError

unhurried = settings(deadline=None)  # a busy machine is no failure
NAMES = ("ant", "bee", "cat", "dog", "elk", "fox")


def toy(classes: int = 6, train: int = 5, test: int = 2) -> Dataset:
    """Inputs [2, 3] with the class as the first number; the others differ in every example."""

    def examples(each: int, offset: int) -> tuple[torch.Tensor, torch.Tensor]:
        y = torch.arange(classes).repeat(each)
        x = torch.arange(len(y) * 6, dtype=torch.float32).view(-1, 2, 3) + offset
        x[:, 0, 0] = y.float()
        return x, y

    return Dataset("toy", *examples(train, 0), *examples(test, 10_000), class_names=NAMES[:classes])


@contextmanager
def refused(match: str = "") -> Iterator[None]:
    with pytest.raises(InputError, match=match) as caught:
        yield
    assert "\n" not in str(caught.value)


@st.composite
def groupings(draw: st.DrawFn) -> list[list[int]]:
    """Some or all of six classes, divided into tasks of any sizes, in any order."""
    order = draw(st.permutations(range(6)))[: draw(st.integers(1, 6))]
    cuts = sorted(draw(st.sets(st.integers(1, len(order) - 1)))) if len(order) > 1 else []
    return [order[a:b] for a, b in zip([0, *cuts], [*cuts, len(order)], strict=True)]


# Good splits ------------------------------------------------------------------------------------------------


@unhurried
@given(groupings(), st.booleans())
def test_listed_tasks_partition_the_examples_of_their_classes(groups: list[list[int]], by_name: bool) -> None:
    dataset = toy()
    stream = split(dataset, tasks=[[NAMES[c] for c in group] for group in groups] if by_name else groups)
    used = sorted(c for group in groups for c in group)

    assert stream.class_names == tuple(NAMES[c] for c in used)
    assert [[used[column] for column in task.classes] for task in stream.tasks] == list(map(sorted, groups))
    for x, y, parts in (
        (stream.x, stream.y, [task.train for task in stream.tasks]),
        (stream.x_test, stream.y_test, [task.test for task in stream.tasks]),
    ):
        assert torch.cat(parts).sort().values.equal(torch.arange(len(y)))
        assert x[:, 0, 0].tolist() == [used[column] for column in y.tolist()]  # labels moved with their inputs
        for task, part in zip(stream.tasks, parts, strict=True):
            assert set(y[part].tolist()) == set(task.classes)
    assert len(stream.y) == 5 * len(used)
    assert stream.seen(len(stream) - 1) == tuple(c for task in stream.tasks for c in task.classes)


@unhurried
@given(st.integers(1, 8), st.none() | st.integers(0, 2**40))
def test_classes_per_task_uses_every_class_once(size: int, order_seed: int | None) -> None:
    stream = split(toy(), classes_per_task=size, order_seed=order_seed)
    assert sorted(c for task in stream.tasks for c in task.classes) == list(range(6))
    assert [len(task.classes) for task in stream.tasks[:-1]] == [size] * (len(stream) - 1)
    assert len(stream.tasks[-1].classes) == (6 % size or min(size, 6))
    again = split(toy(), classes_per_task=size, order_seed=order_seed)
    assert stream.fingerprint() == again.fingerprint()


def test_order_seed_changes_the_order() -> None:
    orders = {tuple(task.classes for task in split(toy(), 1, order_seed=seed).tasks) for seed in range(10)}
    assert len(orders) > 5  # of 720; two seeds may well agree


def test_without_unused_classes_nothing_is_copied() -> None:
    dataset = toy()
    assert split(dataset, 2).x.data_ptr() == dataset.x.data_ptr()


def test_the_facts_of_a_stream() -> None:
    stream = split(toy(), 2)
    assert (len(stream), stream.classes, stream.shape, stream.name) == (3, 6, (2, 3), "split-toy")
    assert stream.seen(1) == (0, 1, 2, 3)
    moved = stream.to("cpu", torch.float64)
    assert (moved.x.dtype, moved.x_test.dtype, moved.y.dtype) == (torch.float64, torch.float64, torch.int64)
    assert "tensor" not in repr(stream)
    with refused("no task 3: split-toy has tasks 0 to 2"):
        stream.seen(3)


def test_no_global_randomness_is_used() -> None:
    torch_state, numpy_state = torch.get_rng_state(), np.random.get_state()[1]  # noqa: NPY002
    validation_split(split(toy(), 2, order_seed=1), 0.3)
    permuted(toy(), 3)
    from_arrays(torch.zeros(4, 2), [0, 0, 1, 1], classes_per_task=1)
    assert torch_state.equal(torch.get_rng_state())
    assert np.array_equal(numpy_state, np.random.get_state()[1])  # noqa: NPY002


# Permuted streams -------------------------------------------------------------------------------------------


def test_permuted_tasks_share_everything_but_the_order_of_their_inputs() -> None:
    dataset = toy()
    stream = permuted(dataset, tasks=4, seed=3)
    assert stream.batch(stream.tasks[0].train)[0].equal(dataset.x)
    orders = set()
    for task, permutation in zip(stream.tasks, stream.views, strict=True):
        assert task.classes == tuple(range(6))
        shown, labels = stream.batch(task.train)
        assert shown.equal(dataset.x.flatten(1)[:, permutation].view_as(dataset.x))
        assert labels.equal(dataset.y) and stream.labels(task.train).equal(dataset.y)
        assert stream.test_batch(task.test)[0].equal(
            dataset.x_test.flatten(1)[:, permutation].view_as(dataset.x_test)
        )
        orders.add(tuple(permutation.tolist()))
    assert len(orders) == 4


def test_examples_of_several_tasks_can_share_a_batch() -> None:
    stream = permuted(toy(), tasks=3, seed=3)
    numbers = torch.stack([stream.tasks[2].train[:4], stream.tasks[0].train[4:8]])
    x, y = stream.batch(numbers)
    assert x.shape == (2, 4, *stream.shape) and y.shape == (2, 4)
    for row, part in zip(numbers, x, strict=True):
        assert part.equal(stream.batch(row)[0])


def test_more_permuted_tasks_begin_with_the_same_ones() -> None:
    few, many = permuted(toy(), tasks=2, seed=3), permuted(toy(), tasks=5, seed=3)
    assert few.views.equal(many.views[:2])
    assert not permuted(toy(), tasks=2, seed=4).views.equal(few.views)


# Union and validation ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("k", [0, 1, 2])
def test_union_is_one_task_under_the_same_head(k: int) -> None:
    stream = split(toy(), 2, order_seed=1)
    whole = union(stream, k)
    (task,) = whole.tasks
    assert whole.classes == stream.classes
    assert task.classes == tuple(sorted(stream.seen(k)))
    assert sorted(task.train.tolist()) == sorted(i for t in stream.tasks[: k + 1] for i in t.train.tolist())
    assert sorted(task.test.tolist()) == sorted(i for t in stream.tasks[: k + 1] for i in t.test.tolist())
    with refused("no task 3"):
        union(stream, 3)


def test_union_of_permuted_tasks_shows_every_example_as_each_task_does() -> None:
    stream = permuted(toy(), tasks=3)
    whole = union(stream, 1)
    (task,) = whole.tasks
    assert task.classes == tuple(range(6))
    assert whole.batch(task.train)[0].equal(torch.cat([stream.batch(t.train)[0] for t in stream.tasks[:2]]))
    assert whole.test_batch(task.test)[0].equal(
        torch.cat([stream.test_batch(t.test)[0] for t in stream.tasks[:2]])
    )
    assert whole.labels(task.train).equal(stream.y.repeat(2))


@unhurried
@given(st.floats(0.01, 0.99), st.integers(0, 5), st.booleans())
def test_validation_holds_out_of_every_class_and_forgets_the_test_set(
    fraction: float, seed: int, permute: bool
) -> None:
    dataset = toy(train=10)
    stream = permuted(dataset, 3) if permute else split(dataset, 2)
    checked = validation_split(stream, fraction, seed)
    held = min(max(1, round(fraction * 10)), 9)
    assert torch.bincount(checked.y_test).tolist() == [held] * 6
    assert torch.bincount(checked.y).tolist() == [10 - held] * 6
    original = {tuple(row) for row in dataset.x.flatten(1).tolist()}
    kept, out = ({tuple(row) for row in x.flatten(1).tolist()} for x in (checked.x, checked.x_test))
    assert kept | out == original and not kept & out
    for before, after in zip(stream.tasks, checked.tasks, strict=True):
        assert after.classes == before.classes
        trained, tested = checked.batch(after.train), checked.test_batch(after.test)
        assert set(trained[1].tolist()) == set(tested[1].tolist())
        shown = {tuple(row) for x in (trained[0], tested[0]) for row in x.flatten(1).tolist()}
        assert shown == {tuple(row) for row in stream.batch(before.train)[0].flatten(1).tolist()}
        assert len(after.train) + len(after.test) == len(before.train)
    assert validation_split(stream, fraction, seed).fingerprint() == checked.fingerprint()


@pytest.mark.parametrize("fraction", [0, 1, -0.1, 2, float("nan")])
def test_validation_fraction_is_a_fraction(fraction: float) -> None:
    with refused("between 0 and 1"):
        validation_split(split(toy(), 2), fraction)


def test_a_class_with_one_example_cannot_be_divided() -> None:
    with refused("class 'ant' has one training example"):
        validation_split(split(toy(train=1), 2))


# Fingerprints -----------------------------------------------------------------------------------------------


def test_fingerprint_depends_on_the_contents_alone() -> None:
    stream = split(toy(), 2)
    assert stream.fingerprint() == split(toy(), 2).fingerprint() == replace(stream, name="other").fingerprint()
    assert split(toy(), tasks=[[1, 0], [3, 2], [5, 4]]).fingerprint() == stream.fingerprint()
    assert len(stream.fingerprint()) == 64


@unhurried
@given(st.data())
def test_fingerprint_sees_every_change(data: st.DataObject) -> None:
    stream = permuted(toy(), 2)
    part = data.draw(st.sampled_from(["x", "x_test"]))
    inputs = getattr(stream, part).clone()
    position = data.draw(st.integers(0, inputs.numel() - 1))
    inputs.view(-1)[position] += 0.5
    first, second = stream.tasks
    changed = [
        replace(stream, **{part: inputs}),
        replace(stream, class_names=(*NAMES[:5], "gnu")),
        replace(stream, tasks=(first,)),
        replace(stream, tasks=(second, first)),
        replace(stream, tasks=(first, replace(second, train=second.train[1:]))),
        replace(stream, views=stream.views.flip(0)),
        replace(stream, y=stream.y.roll(1)),
        stream.to("cpu", torch.float64),
    ]
    assert len({stream.fingerprint(), *(other.fingerprint() for other in changed)}) == len(changed) + 1


# Arrays -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("labels", "names"),
    [
        ([7, 3, 7, 3], ("3", "7")),
        (["b", "a", "b", "a"], ("a", "b")),
        (np.array(["b", "a", "b", "a"], dtype=object), ("a", "b")),
        (np.array([10, 9, 10, 9], dtype=object), ("9", "10")),
        (np.array([b"b", b"a", b"b", b"a"]), ("a", "b")),
        (np.array([2.0, 1.0, 2.0, 1.0]), ("1", "2")),
        (np.array([True, False, True, False]), ("False", "True")),
        (torch.tensor([5, -1, 5, -1]), ("-1", "5")),
        (torch.tensor([5, 4, 5, 4], dtype=torch.uint8), ("4", "5")),
    ],
)
def test_labels_of_any_type(labels: object, names: tuple[str, ...]) -> None:
    dataset = Dataset.from_arrays(np.eye(4), labels, np.eye(4), labels)
    assert dataset.class_names == names
    assert dataset.y.tolist() == dataset.y_test.tolist() == [1, 0, 1, 0]
    assert dataset.x.dtype == torch.float32


def test_inputs_are_copied_and_bytes_become_fractions() -> None:
    pixels = np.array([[0, 255], [51, 0]], dtype=np.uint8)
    dataset = Dataset.from_arrays(pixels, [0, 1], pixels[::-1], [1, 0])
    pixels[:] = 9
    assert dataset.x.tolist() == [[0, 1], [pytest.approx(0.2), 0]]
    assert dataset.x_test.tolist() == [[pytest.approx(0.2), 0], [0, 1]]
    assert Dataset.from_arrays(torch.zeros(2, 3, dtype=torch.bfloat16), [0, 0]).x.dtype == torch.float32


def test_a_fifth_is_held_out_where_there_is_no_test_set() -> None:
    x = torch.arange(40.0).view(20, 2)
    stream = from_arrays(x, [0] * 10 + [1] * 10, classes_per_task=1, name="mine", seed=5)
    assert (stream.name, len(stream.y), stream.y_test.tolist()) == ("split-mine", 16, [0, 0, 1, 1])
    assert sorted(torch.cat([stream.x, stream.x_test])[:, 0].tolist()) == x[:, 0].tolist()
    other = from_arrays(x, [0] * 10 + [1] * 10, classes_per_task=1, seed=6)
    assert not other.x_test.equal(stream.x_test)


def test_integers_are_labels_where_labels_are_integers() -> None:
    x, y = torch.zeros(6, 1), [1, 1, 2, 2, 3, 3]
    stream = from_arrays(x, y, tasks=[[3], [1]])
    assert stream.class_names == ("1", "3") and [task.classes for task in stream.tasks] == [(1,), (0,)]
    with refused("unknown label '0'"):
        from_arrays(x, y, tasks=[[0], [1]])


@pytest.mark.parametrize(
    ("arrays", "match"),
    [
        (([[1.0], [2.0, 3.0]], [0, 0]), "same shape"),
        ((["a", "b"], [0, 0]), "give numbers"),
        ((np.array([[1j], [2]]), [0, 0]), "give numbers"),
        ((5, [0, 0]), r"shape \[\]"),
        (([1.0, 2.0], [0, 0]), r"shape \[2\]"),
        ((np.zeros((0, 3)), []), r"shape \[0, 3\]"),
        ((np.zeros((2, 0)), [0, 0]), r"shape \[2, 0\]"),
        ((np.zeros((3, 2)), [0, 0]), "3 training inputs but 2 labels"),
        ((np.zeros((2, 2)), [0, 0], np.zeros((3, 2)), [0]), "3 test inputs but 1 labels"),
        ((np.zeros((2, 2)), np.eye(2)), "one label per example"),
        ((np.zeros((2, 2)), [0.5, 1]), "integers or strings"),
        ((np.zeros((2, 2)), [float("nan"), 1]), "integers or strings"),
        ((np.zeros((2, 2)), [1e19, 2e19]), "integers or strings"),  # int64 would make one class of them
        ((np.zeros((2, 2)), [2**70, 1]), "integers or strings"),
        ((np.zeros((2, 2)), np.array(["a", None])), "none missing"),
        ((np.zeros((2, 2)), np.array(["a", float("nan")], dtype=object)), "none missing"),
        ((np.zeros((2, 2)), [0, 1]), "class '0' has one training example"),
        ((np.zeros((2, 2)), [0, 0], np.zeros((1, 2)), [4]), "test label '4' is never trained"),
        ((np.zeros((2, 2)), [0, 0], np.zeros((1, 3)), [0]), r"shape \[2\], test inputs \[3\]"),
        ((np.zeros((2, 2)), [0, 0], np.zeros((1, 2))), "both or neither"),
        ((np.full((2, 2), 1e300), [0, 0]), "input 0 holds NaN or infinity"),
    ],
)
def test_bad_arrays_are_refused(arrays: tuple[object, ...], match: str) -> None:
    with refused(match):
        from_arrays(*arrays, classes_per_task=1)


def test_large_finite_inputs_are_welcome() -> None:
    x = torch.full((4, 2), 3e38)  # their sum is infinite
    assert from_arrays(x, [0, 0, 1, 1], classes_per_task=1).x.isfinite().all()


# Bad splits -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({}, "either classes_per_task or tasks"),
        ({"classes_per_task": 2, "tasks": [["ant"]]}, "not both"),
        ({"classes_per_task": 0}, "1 or larger"),
        ({"classes_per_task": -2}, "1 or larger"),
        ({"classes_per_task": 1.5}, "whole number"),
        ({"classes_per_task": 2, "order_seed": -1}, "the seed is -1"),
        ({"tasks": [["ant"]], "order_seed": 1}, "drop order_seed"),
        ({"tasks": []}, "tasks is empty"),
        ({"tasks": [["ant"], []]}, "task 1 has no class"),
        ({"tasks": [["ant", "bee"], ["cat", "ant"]]}, "class 'ant' is in two tasks"),
        ({"tasks": [["ant", 0]]}, "names a class twice"),
        ({"tasks": [["bea"]]}, "unknown label 'bea': did you mean 'bee'"),
        ({"tasks": [[6]]}, "unknown label '6'"),
        ({"tasks": [[-1]]}, "unknown label '-1'"),
        ({"tasks": ["ant", "bee"]}, "task 0 is 'ant': give a list"),
        ({"tasks": "ant"}, "one list of labels per task"),
        ({"tasks": 3}, "one list of labels per task"),
        ({"tasks": [0, 1]}, "task 0 is 0: give a list"),
    ],
)
def test_bad_splits_are_refused(arguments: dict[str, object], match: str) -> None:
    with refused(match):
        split(toy(), **arguments)


@unhurried
@given(groupings(), st.data())
def test_any_repeated_class_is_refused(groups: list[list[int]], data: st.DataObject) -> None:
    again = data.draw(st.sampled_from([c for group in groups for c in group]))
    groups = [list(group) for group in groups]
    groups.insert(data.draw(st.integers(0, len(groups))), [again])
    with refused(f"class '{NAMES[again]}' is in two tasks"):
        split(toy(), tasks=groups)


@unhurried
@given(groupings(), st.text() | st.integers().filter(lambda n: not 0 <= n < 6) | st.floats(), st.data())
def test_any_stranger_is_refused(groups: list[list[object]], stranger: object, data: st.DataObject) -> None:
    group = list(data.draw(st.sampled_from(groups)))
    group.insert(data.draw(st.integers(0, len(group))), stranger)
    if str(stranger) not in NAMES:
        with refused("unknown label"):
            split(toy(), tasks=[group])


@pytest.mark.parametrize("tasks", [0, -1, 2.5])
def test_permuted_needs_a_task(tasks: object) -> None:
    with refused("tasks is"):
        permuted(toy(), tasks=tasks)


# Bad contents -----------------------------------------------------------------------------------------------


@unhurried
@given(st.sampled_from(["x", "x_test"]), st.sampled_from([float("nan"), float("inf"), -float("inf")]), st.data())
def test_any_non_finite_input_is_refused(part: str, value: float, data: st.DataObject) -> None:
    dataset = toy()
    inputs = getattr(dataset, part).clone()
    position = data.draw(st.integers(0, inputs.numel() - 1))
    inputs.view(-1)[position] = value
    kind = "training" if part == "x" else "test"
    with refused(f"{kind} input {position // 6} holds NaN or infinity"):
        replace(dataset, **{part: inputs})
    with refused("NaN or infinity"):
        replace(split(dataset, 2), **{part: inputs})


@unhurried
@given(st.sampled_from(["y", "y_test"]), st.integers(-(2**62), -1) | st.integers(6, 2**62), st.integers(0, 11))
def test_any_label_out_of_range_is_refused(part: str, label: int, position: int) -> None:
    dataset = toy()
    labels = getattr(dataset, part).clone()
    labels[position] = label
    with refused(f"label {label} is not among 0 to 5"):
        replace(dataset, **{part: labels})
    with refused(f"label {label} is not among 0 to 5"):
        replace(split(dataset, 2), **{part: labels})


@unhurried
@given(st.sampled_from(["x", "y", "x_test", "y_test"]), st.integers(0, 10))
def test_any_missing_example_is_refused(part: str, length: int) -> None:
    dataset = toy()
    with refused("one label per example|give examples"):
        replace(dataset, **{part: getattr(dataset, part)[:length]})


def test_bad_datasets_are_refused() -> None:
    dataset = toy()
    with refused("class 'fox' has no training example"):
        replace(dataset, y=dataset.y.clamp(max=4))
    with refused("same name"):
        replace(dataset, class_names=("ant",) * 6)
    with refused("convert them to torch.float32"):
        replace(dataset, x=dataset.x.long())
    with refused("convert them to torch.int64"):
        replace(dataset, y=dataset.y.int())
    with refused(r"labels have shape \[30, 1\]"):
        replace(dataset, y=dataset.y[:, None])
    with refused(r"shape \[2, 3\], test inputs \[6\]"):
        replace(dataset, x_test=dataset.x_test.flatten(1))


def test_a_task_without_test_examples_is_refused() -> None:
    dataset = toy()
    without = dataset.y_test != 5
    dataset = replace(dataset, x_test=dataset.x_test[without], y_test=dataset.y_test[without])
    assert len(split(dataset, 2)) == 3  # "elk" still tests the last task
    with refused("task 5 has no test example"):
        split(dataset, 1)


def index(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int64)


@pytest.mark.parametrize(
    ("task", "match"),
    [
        (Task((), index(0), index(0)), "task 0 has no class"),
        (Task((6,), index(0), index(0)), "among 0 to 5"),
        (Task((0,), index(), index(0)), "no training example"),
        (Task((0,), index(0), index()), "no test example"),
        (Task((0,), index(30), index(0)), "outside the 30 training examples"),
        (Task((0,), index(0), index(-1)), "outside the 12 test examples"),
        (Task((0,), torch.tensor([0.0]), index(0)), "give int64"),
        (Task((0,), index(0, 1), index(0)), "examples of class 'bee'"),
        (Task((0,), index(0), index(0, 1)), "examples of class 'bee'"),
        (Task((0, 1), index(0), index(0, 1)), "class 'bee' of task 0 has no training example"),
    ],
)
def test_bad_tasks_are_refused(task: Task, match: str) -> None:
    with refused(match):
        replace(split(toy(), 2), tasks=(task,))


@pytest.mark.parametrize(
    ("rows", "why"),
    [
        ([[0, 1, 2]], "one position for each of 6 places"),
        ([0, 1, 2, 3, 4, 5], "one position for each of 6 places"),
        ([[0, 1, 2, 3, 4, 7]], "0 to 5, or 6 where nothing is shown"),
    ],
)
def test_bad_views_are_refused(rows: list[object], why: str) -> None:
    with refused(why):
        replace(permuted(toy(), 1), views=torch.tensor(rows))


def test_views_are_indices_and_bound_the_numbers() -> None:
    stream = permuted(toy(), 2)
    with refused("convert them to torch.int64"):
        replace(stream, views=stream.views.double())
    beyond = Task(tuple(range(6)), stream.tasks[1].train + 30, stream.tasks[1].test)
    with refused("task 0 points outside the 60 training examples"):
        replace(stream, tasks=(beyond,))


def test_a_stream_needs_a_task_and_a_class_one_home() -> None:
    stream = split(toy(), 2)
    with refused("at least one task"):
        replace(stream, tasks=())
    with refused("class 'ant' is in two tasks, task 1 the second"):
        split(toy(), tasks=[["ant", "bee"], ["ant"]])
    assert isinstance(stream, Stream)


def test_inputs_of_two_types_become_one() -> None:
    data = toy()
    mixed = split(replace(data, x_test=data.x_test.double()), classes_per_task=2)
    assert mixed.to("cpu", torch.float32).x_test.dtype == torch.float32
    assert mixed.to("cpu") is mixed


def test_pixels_beside_other_numbers_are_refused() -> None:
    """Training inputs would lie in [0, 1], test inputs in [0, 255]."""
    pixels, y = np.full((4, 3), 200, np.uint8), [0, 0, 1, 1]
    for x, x_test in ((pixels, pixels.astype(np.float32)), (pixels.astype(np.int64), pixels)):
        with refused("uint8"):
            Dataset.from_arrays(x, y, x_test, y)
    assert Dataset.from_arrays(pixels, y, pixels, y).x_test.max() < 1


def test_labels_of_bytes_that_are_no_utf_8_stay_different() -> None:
    data = Dataset.from_arrays(np.zeros((4, 2)), np.array([b"caf\xe8", b"caf\xe8", b"caf\xe9", b"caf\xe9"]))
    assert data.class_names == ("caf\\xe8", "caf\\xe9")


def test_validation_of_a_blurred_stream_tests_every_task_with_its_own_classes() -> None:
    x, y = torch.randn(120, 3), torch.arange(120) % 6
    held_out = validation_split(blurred(from_arrays(x, y, classes_per_task=2), 0.4), 0.25)
    for task in held_out.tasks:
        assert task.others
        assert set(held_out.y_test[task.test].tolist()) == set(task.classes)


def test_an_unusable_example_has_the_number_that_the_user_gave_it() -> None:
    x = np.zeros((60, 3))
    x[57, 1] = np.nan
    with refused("training input 57 holds NaN"):
        from_arrays(x, np.arange(60) % 4, classes_per_task=2)
    with refused("training input 0 holds .* more than float32 can"):
        from_arrays(np.full((60, 3), 1e300), np.arange(60) % 4, classes_per_task=2)


def test_blurry_boundaries_that_move_nothing_are_refused() -> None:
    stream = from_arrays(torch.zeros(60, 3), np.arange(60) % 4, classes_per_task=2)
    with refused("blurry is 0.001, which moves no example"):
        blurred(stream, 0.001)
