"""The estimator: scikit-learn's own checks, equality with the fleet, growth, labels, inputs, files."""

from __future__ import annotations

import json
import pickle
import struct
import warnings
from collections.abc import Callable, Iterator
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator
from torch import Tensor, nn

from rwalk import model_file
from rwalk.classifier import network as classifier_files
from rwalk.classifier.call_as_task import Call, longest, stream_of, take_up
from rwalk.classifier.network import NetworkClassifier, learner_of
from rwalk.data import datasets, splits
from rwalk.data.memory import MemorySpec
from rwalk.data.streams import Stream
from rwalk.engine.fleet import Fleet
from rwalk.engine.parameter_matrix import Layout
from rwalk.errors import InputError
from rwalk.learners import LAMS, learner
from rwalk.methods import EWCpp, RWalk
from rwalk.parts import stack
from rwalk.projectors.gem import AGEM, GEM
from rwalk.training import Training

pytestmark = pytest.mark.filterwarnings("ignore:without exemplars no batch shows")

# scikit-learn's checks that do not run here, and why. None fails.
SKIPPED = {
    "check_array_api_input": "runs only where the environment sets SCIPY_ARRAY_API, and passes there",
    "check_classifier_data_not_an_array": "its first half, inputs by __array__, passes; its second needs pandas",
}

PLACES = "abcdefgh"


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def digits() -> Stream:
    return splits.split(datasets.load("digits"), classes_per_task=2)


def blobs(names: str, n: int = 20, seed: int = 0) -> tuple[NDArray[np.float32], NDArray[Any]]:
    """n examples of each letter, around a corner of its own."""
    draws = np.random.default_rng([seed, *names.encode()])
    corners = np.eye(8, dtype=np.float32)[[PLACES.index(name) for name in names]]
    noise = 0.1 * draws.standard_normal((n * len(names), 8), dtype=np.float32)
    return np.repeat(corners, n, axis=0) + noise, np.repeat(list(names), n)


def quick(**params: Any) -> NetworkClassifier:
    return NetworkClassifier(**{"memory": 5, "epochs": 30, "random_state": 0, **params})


def theta(classifier: NetworkClassifier) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in classifier.network_.parameters()])


def wide(shape: tuple[int, ...], classes: int) -> nn.Module:
    """A network of one's own: a normalisation with running statistics, and a transposed head."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(shape[0], 16), nn.BatchNorm1d(16), nn.Dropout(0.1), Columns(16, classes)
    )


class Columns(nn.Module):
    def __init__(self, features: int, classes: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(features, classes) / features**0.5)

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight


# ── what the estimator is for ─────────────────────────────────────────────────────────────────────────────────


def final_accuracy(digits: Stream, **params: Any) -> float:
    classifier = NetworkClassifier(**params)
    for task in digits.tasks:
        classifier.partial_fit(digits.x[task.train], digits.y[task.train])
    return classifier.score(digits.x_test, digits.y_test)


def test_digits_in_five_tasks_are_kept(digits: Stream) -> None:
    kept = final_accuracy(digits, memory=10, random_state=0)
    assert kept >= final_accuracy(digits, method=None, random_state=0) + 0.25


@pytest.mark.slow
def test_the_table_in_the_documentation(digits: Stream) -> None:
    accuracy = {}
    for params in (
        {"method": None},
        {},
        {"method": None, "memory": 10},
        {"memory": 10},
        {"method": "pi", "memory": 10},
        {"method": "ewc++", "memory": 10},
        {"method": "icarl", "memory": 10},
    ):
        runs = [100 * final_accuracy(digits, random_state=seed, **params) for seed in range(5)]
        accuracy[str(params)] = runs
        print(f"{params!s:35} {np.mean(runs):5.1f} ± {np.std(runs, ddof=1):.1f}   least {min(runs):.1f}")
    whole = [NetworkClassifier(random_state=seed).fit(digits.x, digits.y) for seed in range(5)]
    runs = [100 * classifier.score(digits.x_test, digits.y_test) for classifier in whole]
    print(f"{'all at once':35} {np.mean(runs):5.1f} ± {np.std(runs, ddof=1):.1f}   least {min(runs):.1f}")
    assert min(accuracy["{'memory': 10}"]) >= max(accuracy["{'method': None}"]) + 25


@pytest.mark.slow
def test_a_second_round_of_the_same_classes_helps(digits: Stream) -> None:
    rounds = np.empty((5, 2))
    for seed in range(5):
        classifier = NetworkClassifier(memory=10, random_state=seed)
        for half in range(2):
            for task in digits.tasks:
                part = task.train[half::2]
                classifier.partial_fit(digits.x[part], digits.y[part])
            rounds[seed, half] = 100 * classifier.score(digits.x_test, digits.y_test)
    first, second = rounds.mean(0)
    print(f"after the first round {first:.1f}, after the second {second:.1f}")
    assert second > first


@pytest.mark.parametrize("memory", [10, None])
def test_scikit_learn_has_no_complaint(memory: int | None) -> None:
    results = check_estimator(NetworkClassifier(memory=memory, epochs=5), on_skip=None)
    assert len(results) > 40
    assert {result["check_name"] for result in results if result["status"] == "skipped"} <= SKIPPED.keys()


@pytest.mark.parametrize(
    ("name", "memory"),
    [("vanilla", None), ("rwalk", None), ("ewc", None), ("ewc++", None), ("pi", None), ("lwf", None)]
    + [("lwf", 10)]
    + [(name, 10) for name in ("vanilla", "rwalk", "ewc", "icarl", "icarl-hb1", "gem", "a-gem")],
)
def test_equals_a_fleet_on_the_whole_stream(name: str, memory: int | None, digits: Stream) -> None:
    recipe = learner(name, None if memory is None else MemorySpec(memory))
    fleet = Fleet(digits, "mlp", [recipe], [3], Training(epochs=1))
    fleet.train()
    classifier = NetworkClassifier(method=name, memory=memory, epochs=1, random_state=3, standardize=False)
    for task in digits.tasks:
        classifier.partial_fit(digits.x[task.train], digits.y[task.train], classes=range(10))
    assert torch.equal(theta(classifier), fleet.theta[0])
    tests = [len(task.test) for task in digits.tasks]
    measured = float(np.average(fleet.accuracy["single"][0, -1], weights=tests))
    assert classifier.score(digits.x_test, digits.y_test) == pytest.approx(measured, abs=1e-6)


# ── tasks ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_new_classes_grow_the_head_and_leave_the_rest_alone() -> None:
    still = 1e-12  # a learning rate at which nothing moves
    classifier = quick(epochs=3).partial_fit(*blobs("be"))
    x, _ = blobs("be", seed=1)
    before = classifier.network_(torch.from_numpy(x))
    classifier.set_params(learning_rate=still).partial_fit(*blobs("acd"))
    assert classifier.classes_.tolist() == list("abcde")
    after = classifier.network_(torch.from_numpy(x))
    assert torch.allclose(after[:, [1, 4]], before, atol=1e-6)


@pytest.mark.parametrize("name", ["rwalk", "ewc", "ewc++", "pi"])
def test_new_rows_are_held_by_nothing_and_old_ones_as_before(name: str) -> None:
    classifier = quick(method=name, epochs=2).partial_fit(*blobs("ac"))
    past, layout = classifier._knowledge, Layout.of(classifier._predictor.module)
    moves = [0, 2]  # b comes between a and c
    new = torch.from_numpy(blobs("b")[0]), torch.ones(20, dtype=torch.int64)
    stream, groups = stream_of(Call(*new, past.moved(moves, 3)))
    fleet = Fleet(stream, "mlp", [learner_of(classifier)], [9])
    fresh = fleet.theta.clone()
    take_up(fleet, past.moved(moves, 3), layout, moves, groups)

    def rows(vector: Tensor, layout: Layout) -> Tensor:
        parts = layout.split(vector[0])
        return torch.cat([parts["head.weight"], parts["head.bias"][:, None]], dim=1)

    wider = fleet.net.layout
    assert torch.equal(rows(fleet.theta, wider)[1], rows(fresh, wider)[1])
    assert torch.equal(rows(fleet.theta, wider)[moves], rows(past.theta, layout))
    (group,) = fleet.method_groups
    springs = zip(group.method.springs(group.state), group.method.springs(past.method), strict=True)
    for (_, importance, anchor), (_, old_importance, old_anchor) in springs:
        assert rows(importance, wider)[1].count_nonzero() == 0
        assert torch.equal(rows(importance, wider)[moves], rows(old_importance, layout))
        assert torch.equal(rows(anchor, wider)[moves], rows(old_anchor, layout))
    assert group.method.cost(group.state, fleet.theta) == 0


def test_compiled_fleets_go_on_too_whose_hyper_parameters_are_columns() -> None:
    classifier = quick(epochs=2).partial_fit(*blobs("ac"))
    past, layout, moves = classifier._knowledge, Layout.of(classifier._predictor.module), [0, 2]
    new = torch.from_numpy(blobs("b")[0]), torch.ones(20, dtype=torch.int64)
    stream, groups = stream_of(Call(*new, past.moved(moves, 3)))
    learners = [learner_of(classifier)] * 3
    fleet = Fleet(stream, "mlp", learners, [9, 9, 9])
    fleet.method_groups[0].method = stack([each.method for each in learners], fleet.theta, columns=True)
    take_up(fleet, past.moved(moves, 3), layout, moves, groups)
    assert torch.equal(fleet.theta[0], fleet.theta[2])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("lam", [1.0, "auto"])
def test_call_after_call_on_a_gpu(lam: float | str) -> None:
    classifier = quick(lam=lam, device="cuda").partial_fit(*blobs("ac"))
    classifier.partial_fit(*blobs("be"))
    assert classifier.score(*blobs("abce", seed=1)) > 0.9


def test_a_task_may_repeat_old_classes() -> None:
    classifier = quick().partial_fit(*blobs("ab")).partial_fit(*blobs("cd"))
    classifier.partial_fit(*blobs("bc", seed=1)).partial_fit(*blobs("ae", seed=1)).partial_fit(*blobs("e", seed=2))
    assert classifier.tasks_seen_ == 5
    assert classifier.classes_.tolist() == list("abcde")
    assert {label: len(kept) for label, kept in classifier.exemplars_.items()} == dict.fromkeys("abcde", 5)
    assert classifier.score(*blobs("abcde", seed=3)) > 0.95


def test_returning_classes_choose_their_exemplars_again() -> None:
    x, y = blobs("ab", seed=1)
    classifier = quick().partial_fit(*blobs("ab")).partial_fit(x, y)
    candidates = np.concatenate([blobs("ab")[0], x])
    for kept in classifier.exemplars_.values():
        assert all((candidates == exemplar).all(1).any() for exemplar in kept)
        assert any((x == exemplar).all(1).any() for exemplar in kept)


def test_a_class_without_exemplars_is_not_trained_away_by_the_softmax() -> None:
    classifier = quick(memory=None).partial_fit(*blobs("ab"))
    rows = classifier._predictor.module.head.weight[:2].detach()
    classifier.partial_fit(*blobs("cd"))
    moved = classifier._predictor.module.head.weight[:2].detach() - rows
    assert moved.abs().max() < 1e-6  # rows outside the current task's softmax get no gradient


def test_one_class_a_call_and_one_example_a_class() -> None:
    classifier = quick(memory=1, epochs=60)
    for name in "abc":
        classifier.partial_fit(*blobs(name, n=1))
    assert classifier.predict(blobs("abc", n=1)[0]).tolist() == ["a", "b", "c"]


def test_a_total_budget_is_shared() -> None:
    classifier = quick(memory=None, memory_total=12).partial_fit(*blobs("ab"))
    assert [len(kept) for kept in classifier.exemplars_.values()] == [6, 6]
    classifier.partial_fit(*blobs("cd"))
    assert [len(kept) for kept in classifier.exemplars_.values()] == [3, 3, 3, 3]


def test_announced_classes_wait() -> None:
    classifier = quick().partial_fit(*blobs("ab"), classes=list("abz"))
    assert classifier.classes_.tolist() == ["a", "b", "z"]
    probability = classifier.predict_proba(blobs("ab")[0])
    assert (probability[:, 2] == 0).all()
    assert np.allclose(probability.sum(1), 1)


def test_fit_forgets() -> None:
    classifier = quick().partial_fit(*blobs("ab")).partial_fit(*blobs("cd")).fit(*blobs("ef"))
    assert classifier.classes_.tolist() == ["e", "f"]
    assert classifier.tasks_seen_ == 1
    assert torch.equal(theta(classifier), theta(quick().fit(*blobs("ef"))))


def test_a_call_that_fails_changes_nothing() -> None:
    classifier = quick().partial_fit(*blobs("ab"))
    before = theta(classifier)
    with pytest.raises(InputError, match="not finite"):
        classifier.set_params(learning_rate=1e30).partial_fit(*blobs("cd"))
    assert classifier.classes_.tolist() == ["a", "b"]
    assert torch.equal(theta(classifier), before)
    assert classifier.tasks_seen_ == 1


def test_it_says_once_that_learning_without_memory_is_hard() -> None:
    with pytest.warns(UserWarning, match="no batch shows old and new classes together"):
        classifier = quick(memory=None).partial_fit(*blobs("ab"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        classifier.partial_fit(*blobs("cd"))
        quick(memory=None).fit(*blobs("ab"))
        quick().partial_fit(*blobs("ab"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"method": "ewc"}, "EWC is not the method that learned so far"),
        ({"network": lambda shape, classes: nn.Linear(shape[0], classes)}, "not the one that learned so far"),
        ({"network": wide, "sampler": "uniform"}, "not the one that learned so far"),
        ({"network": lambda shape, classes: nn.Linear(8, 2 * classes)}, "gives"),
    ],
)
def test_what_cannot_change_between_calls(change: dict[str, Any], message: str) -> None:
    classifier = quick(epochs=1).partial_fit(*blobs("ab"))
    with pytest.raises(InputError, match=message):
        classifier.set_params(**change).partial_fit(*blobs("cd"))


def test_what_can_change_between_calls() -> None:
    classifier = quick(method=RWalk(lam=1.0), epochs=1).partial_fit(*blobs("ab"))
    classifier.set_params(method=RWalk(lam=5.0), memory=2, sampler="uniform").partial_fit(*blobs("cd"))
    assert {len(kept) for kept in classifier.exemplars_.values()} == {2}
    assert classifier.set_params(memory=None).partial_fit(*blobs("ef")).exemplars_ == {}


def test_networks_of_your_own_grow_too() -> None:
    classifier = quick(network=wide, sampler="uniform", epochs=60)
    classifier.partial_fit(*blobs("bd")).partial_fit(*blobs("ac")).partial_fit(*blobs("e"))
    assert classifier.score(*blobs("abcde", seed=3)) > 0.9


def test_a_network_that_cannot_grow_says_so() -> None:
    def bottleneck(shape: tuple[int, ...], classes: int) -> nn.Module:
        return nn.Sequential(nn.Linear(shape[0], 2 * classes), nn.Linear(2 * classes, classes))

    classifier = quick(network=bottleneck, epochs=1).partial_fit(*blobs("ab"))
    with pytest.raises(InputError, match="announce all classes"):
        classifier.partial_fit(*blobs("c"))
    announced = quick(network=bottleneck, epochs=1).partial_fit(*blobs("ab"), classes=list("abc"))
    assert announced.partial_fit(*blobs("c")).tasks_seen_ == 2


@pytest.mark.parametrize("standardize", [True, False])
def test_the_network_is_yours(standardize: bool) -> None:
    classifier = quick(epochs=2, standardize=standardize).partial_fit(*blobs("ab"))
    x, _ = blobs("ab")
    before = classifier.predict_proba(x)
    module = classifier.network_
    assert not module.training
    logits = classifier._sharpness() * module(torch.from_numpy(x))
    assert np.allclose(logits.softmax(1).detach(), before, atol=1e-6)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.zero_()
    assert np.array_equal(classifier.predict_proba(x), before)
    classifier.partial_fit(*blobs("c"))


@pytest.mark.parametrize("method", [None, "vanilla", "icarl", RWalk(lam=3), EWCpp(), AGEM(), GEM(margin=0.1)])
def test_methods_by_name_and_by_object(method: Any) -> None:
    classifier = quick(method=method, epochs=2).partial_fit(*blobs("ab")).partial_fit(*blobs("cd"))
    assert clone(classifier).get_params()["method"] == method
    assert np.allclose(classifier.predict_proba(blobs("abcd")[0]).sum(1), 1)


# ── labels and inputs ─────────────────────────────────────────────────────────────────────────────────────────


class Colour(Enum):
    RED = "r"
    GREEN = "g"
    BLUE = "b"


def objects(*labels: Any) -> NDArray[Any]:
    array = np.empty(len(labels), dtype=object)
    for place, label in enumerate(labels):
        array[place] = label
    return array


@pytest.mark.parametrize(
    "labels",
    [
        np.array([7, -3, 100]),
        np.array([2, 0, 1], dtype=np.uint8),
        np.array([2.0, 0.0, 1.0]),
        np.array(["short", "x", "much longer"]),
        np.array(["short", "x", "much longer"], dtype=object),
        np.array(["short", "x", "much longer"], dtype=np.dtypes.StringDType()),
        np.array([b"z", b"yy", b"x"]),
        np.array(["2024-02-01", "2023-01-01", "2025-01-01"], dtype="datetime64[D]"),
        np.array([True, False, True]),
        torch.tensor([5, 3, 4]),
        objects((1, 2), (0, 1), (3, 3)),
        objects(Colour.RED, Colour.GREEN, Colour.BLUE),
        objects(3, "three", 3.5),
    ],
    ids=lambda labels: str(labels.dtype) + str(np.asarray(labels)[0])[:8],
)
def test_labels_of_any_type(labels: Any) -> None:
    x = np.repeat(np.eye(3, 8, dtype=np.float32), 10, axis=0)
    y = labels.repeat_interleave(10) if isinstance(labels, Tensor) else np.repeat(labels, 10)
    classifier = quick().partial_fit(x[:10], y[:10]).partial_fit(x[10:20], y[10:20]).partial_fit(x[20:], y[20:])
    if labels.dtype not in (bool, torch.bool):
        assert list(classifier.predict(x[::10])) == list(np.asarray(labels))
    assert set(classifier.classes_) == set(np.asarray(labels))
    assert classifier.score(x, y) > 0.6


@pytest.mark.parametrize(
    ("y", "message"),
    [
        (np.linspace(0.1, 0.9, 40), "Unknown label type"),
        (objects(*[None] * 20, *["a"] * 20), "missing"),
        (np.zeros((40, 2), dtype=int), "1d array"),
        (np.zeros(39, dtype=int), "inconsistent numbers of samples"),
        (np.zeros(40, dtype=int), "numbers and strings"),
        (None, "requires y"),
    ],
)
def test_labels_that_name_no_class(y: Any, message: str) -> None:
    classifier = quick(epochs=1).partial_fit(*blobs("ab"))
    with pytest.raises(InputError, match=message) as caught:
        classifier.partial_fit(blobs("ab")[0], y)
    assert "\n" not in str(caught.value)


class Wrapped:
    def __init__(self, values: NDArray[Any]) -> None:
        self.values = values

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return np.array(self.values, dtype=dtype)


def test_inputs_of_any_kind_are_the_same() -> None:
    x, y = blobs("ab")
    x = x.astype(np.float16)  # exact in every type below
    expected = theta(quick(epochs=2).fit(x, y))
    numbers = torch.from_numpy(x)
    kinds = [
        x.astype(np.float64),
        x.tolist(),
        numbers,
        numbers.double().requires_grad_(),
        Wrapped(x),
        np.asfortranarray(x),
    ]
    for given in kinds:
        classifier = quick(epochs=2).fit(given, y)
        assert torch.equal(theta(classifier), expected)
        assert (classifier.predict(given) == classifier.predict(x)).all()
    coarse = torch.from_numpy(x).bfloat16()
    assert quick(epochs=2).fit(coarse, y).predict(coarse).shape == (40,)


def test_the_given_arrays_are_neither_changed_nor_kept() -> None:
    x, y = blobs("ab")
    copy = x.copy()
    classifier = quick(epochs=2).partial_fit(x, y)
    assert np.array_equal(x, copy)
    kept = classifier.exemplars_
    x[:] = 0
    assert all(np.array_equal(classifier.exemplars_[label], kept[label]) for label in kept)


def test_images(tmp_path: Path) -> None:
    x = np.random.default_rng(0).random((30, 1, 8, 8), dtype=np.float32)
    x[:15] += 1
    y = np.repeat(["bright", "dark"], 15)
    for network in ("mlp", "cnn", "resnet18"):
        classifier = quick(network=network).fit(x, y)
        assert classifier.score(x, y) > 0.9
        assert classifier.input_shape_ == (1, 8, 8)
        with pytest.raises(InputError, match=r"shape \[1, 4, 16\]"):
            classifier.predict(x.reshape(30, 1, 4, 16))
        classifier.save(tmp_path / network)
        loaded = NetworkClassifier.load(tmp_path / network)
        assert np.array_equal(loaded.predict_proba(x), classifier.predict_proba(x))
    with pytest.raises(InputError, match="cnn needs images"):
        quick(network="cnn").fit(*blobs("ab"))


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"method": "rwlk"}, "did you mean 'rwalk'"),
        ({"memory": 0}, "at least 1 exemplar"),
        ({"memory": 5, "memory_total": 5}, "not both"),
        ({"sampler": "mop"}, "did you mean 'mof'"),
        ({"network": "cnm"}, "did you mean 'cnn'"),
        ({"epochs": 0}, "epochs must be"),
        ({"batch_size": 2.5}, "the batch size must be"),
        ({"learning_rate": -1}, "the learning rate must be"),
        ({"device": "abacus"}, "device 'abacus' cannot be used"),
        ({"method": "icarl", "memory": None}, "needs exemplars"),
    ],
)
def test_parameters_that_cannot_be_used(params: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        quick(**params).partial_fit(*blobs("ab"))


# ── scikit-learn's manners, beyond its checks ─────────────────────────────────────────────────────────────────


def test_pipelines_and_searches() -> None:
    x, y = blobs("abc")
    pipeline = make_pipeline(StandardScaler(), quick())
    assert pipeline.fit(x, y).score(x, y) > 0.95
    search = GridSearchCV(quick(), {"epochs": np.array([1, 30]), "method": ["rwalk", RWalk(lam=2.0)]}, cv=2)
    assert search.fit(x, y).best_params_["epochs"] == 30


def test_random_state_by_number_by_generator_and_by_chance() -> None:
    def trained(random_state: Any) -> Tensor:
        return theta(quick(epochs=1, random_state=random_state).fit(*blobs("ab")))

    assert torch.equal(trained(1), trained(1)) and not torch.equal(trained(1), trained(2))
    assert torch.equal(trained(np.int64(1)), trained(1))
    state = np.random.RandomState(0)
    assert not torch.equal(trained(state), trained(state))
    assert torch.equal(trained(np.random.RandomState(0)), trained(np.random.RandomState(0)))
    assert not torch.equal(trained(None), trained(None))


def test_no_global_random_state_is_consumed() -> None:
    before = torch.random.get_rng_state(), str(np.random.get_state())  # noqa: NPY002 - the global state is the point
    quick(network=wide, sampler="uniform").partial_fit(*blobs("ab")).partial_fit(*blobs("c")).predict(
        blobs("a")[0]
    )
    after = torch.random.get_rng_state(), str(np.random.get_state())  # noqa: NPY002
    assert torch.equal(before[0], after[0]) and before[1] == after[1]


def test_unfitted_is_said_as_scikit_learn_says_it(tmp_path: Path) -> None:
    with pytest.raises(NotFittedError):
        quick().predict(blobs("a")[0])
    with pytest.raises(NotFittedError):
        quick().save(tmp_path / "nothing")


def test_verbose_says_a_line_a_call(capsys: pytest.CaptureFixture[str]) -> None:
    quick(verbose=True).partial_fit(*blobs("ab")).partial_fit(*blobs("c"))
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("task 1: 40 examples, 2 classes in all; 30 steps")
    assert second.startswith("task 2: 20 examples, 3 classes in all") and "old exemplars" in second


def test_a_few_examples_are_soon_learned_and_many_as_long_as_it_pays(digits: Stream) -> None:
    assert [longest(n, 64) for n in (1, 20, 100, 10**4, 10**6)] == [20, 40, 200, 3140, 5000]
    few = quick(epochs=None).partial_fit(*blobs("ab", n=5))
    assert few.steps_ == 20
    separable = quick(epochs=None).partial_fit(*blobs("abcd", n=2000))
    assert 100 <= separable.steps_ < longest(8000, 64) / 4
    assert separable.score(*blobs("abcd", seed=1)) > 0.99


def test_units_and_offsets_do_not_matter() -> None:
    x, y = blobs("abcd", n=50)
    units = 10.0 ** np.arange(-4, 4)
    plain = quick().partial_fit(x, y)
    odd = quick().partial_fit(x * units + 30 * units, y)
    assert odd.score(x * units + 30 * units, y) > 0.99
    assert np.allclose(odd.predict_proba(x * units + 30 * units), plain.predict_proba(x), atol=0.02)


def test_exemplars_held_out_are_kept_like_the_others() -> None:
    classifier = quick(memory=30, epochs=None).partial_fit(*blobs("ab", n=100))
    before = classifier.exemplars_
    classifier.partial_fit(*blobs("cd", n=100))
    for label in "ab":
        assert np.array_equal(classifier.exemplars_[label], before[label])


def test_lam_reaches_the_method_and_stops_what_it_should() -> None:
    x, y = blobs("cd")

    def moved(lam: float | None) -> float:
        classifier = quick(lam=lam, epochs=10).partial_fit(*blobs("ab"))
        before = theta(classifier)[: 8 * 256]
        return float((theta(classifier.partial_fit(x, y))[: 8 * 256] - before).norm())

    assert moved(1e5) < 0.5 * moved(0.0)
    assert moved(None) == moved(1.0)
    with pytest.raises(InputError, match="nothing here has a λ"):
        quick(lam=1.0, method=None).fit(x, y)
    with pytest.raises(InputError, match="lam='much' is unknown"):
        quick(lam="much").fit(x, y)


def test_lam_is_chosen_by_what_is_held_out(tmp_path: Path) -> None:
    """Two tasks that need the same features: whoever forgets the first fails on its exemplars."""
    classifier = quick(lam="auto", memory=10, epochs=None)
    for pair in ("ab", "cd", "ef"):
        classifier.partial_fit(*blobs(pair, n=50))
    assert classifier.lam_ in LAMS and len(classifier._knowledge.theta) == len(LAMS)
    assert classifier.score(*blobs("abcdef", seed=1)) > 0.95
    classifier.save(tmp_path / "auto")
    again = NetworkClassifier.load(tmp_path / "auto")
    for each in (classifier, again):
        each.partial_fit(*blobs("gh", n=50))
    assert torch.equal(theta(classifier), theta(again)) and classifier.lam_ == again.lam_
    with pytest.raises(InputError, match="lam='auto' is judged by exemplars"):
        quick(lam="auto", memory=None).fit(*blobs("ab"))


def test_every_lam_goes_on_as_if_it_were_alone() -> None:
    """What is chosen after a call must not change what the runs are: each is what its λ alone would have been."""
    options = {"memory": 4, "sampler": "uniform", "standardize": False}
    auto, alone = quick(lam="auto", **options), {}
    for number, pair in enumerate(("ab", "cd", "ef")):
        x, y = blobs(pair, n=30, seed=number)
        auto.partial_fit(x, y)
        judges = auto._knowledge.judges
        learned = [
            row
            for row in range(len(x))
            if not any((x[row] == each.numpy()).all(1).any() for each in judges.values())
        ]
        for lam in (0.0, 100.0):
            alone.setdefault(lam, quick(lam=lam, **options)).partial_fit(x[learned], y[learned])
    for lam, one in alone.items():
        expected = one._knowledge.theta[0]
        assert torch.allclose(auto._knowledge.theta[LAMS.index(lam)], expected, atol=1e-4)


def test_probabilities_are_calibrated_by_what_is_held_out() -> None:
    """Classes that overlap, learned for long: the softmax alone is far surer than it is right."""
    draws = np.random.default_rng(0)
    y = draws.integers(0, 3, 3000)
    x = (np.eye(3)[y] + draws.normal(size=(3000, 3))).astype(np.float32)
    classifier = quick(epochs=None).partial_fit(x[:1500], y[:1500])
    sure, right = classifier.predict_proba(x[1500:]).max(1), classifier.predict(x[1500:]) == y[1500:]
    assert abs(sure.mean() - right.mean()) < 0.05


def test_judges_are_never_trained_on() -> None:
    classifier = quick(lam="auto", memory=4)
    for pair in ("ab", "cd", "ac"):
        classifier.partial_fit(*blobs(pair, n=30, seed=ord(pair[0])))
    judges = classifier._knowledge.judges
    assert {column: len(x) for column, x in judges.items()} == dict.fromkeys(range(4), 4)
    for column, x in judges.items():
        exemplars = torch.from_numpy(classifier.exemplars_["abcd"[column]])
        assert not (exemplars[:, None] == x[None]).all(-1).any()


# ── files ─────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"memory": None},
        {"method": RWalk(lam=2.0, dt=5), "memory": np.int64(3)},
        {"method": "ewc"},
        {"method": "icarl"},
        {"method": AGEM()},
        {"method": None, "memory": None, "memory_total": 9, "sampler": "uniform"},
        {"network": wide, "sampler": "uniform"},
        {"standardize": False},
    ],
    ids=lambda params: (
        ",".join(f"{name}={getattr(value, '__name__', value)}" for name, value in params.items()) or "default"
    ),
)
def test_a_loaded_classifier_goes_on_exactly_as_if_never_saved(params: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "some" / "classifier.safetensors"
    classifier = quick(epochs=2, **params).partial_fit(*blobs("bd")).partial_fit(*blobs("ab", seed=1))
    classifier.save(path)
    code = {"network": wide} if params.get("network") is wide else {}
    loaded = NetworkClassifier.load(path, **code)
    unpickled = pickle.loads(pickle.dumps(classifier))
    assert [file.name for file in path.parent.iterdir()] == [path.name]
    assert loaded.get_params() == classifier.get_params()
    x, _ = blobs("abcd", seed=2)
    for other in (loaded, unpickled):
        assert np.array_equal(other.predict_proba(x), classifier.predict_proba(x))
    for each in (classifier, loaded, unpickled):
        each.partial_fit(*blobs("ac", seed=3))
    for other in (loaded, unpickled):
        assert torch.equal(theta(other), theta(classifier))
        assert np.array_equal(other.predict_proba(x), classifier.predict_proba(x))
        assert other.exemplars_.keys() == classifier.exemplars_.keys()
        assert all(np.array_equal(other.exemplars_[c], kept) for c, kept in classifier.exemplars_.items())


@pytest.mark.parametrize(
    "labels",
    [
        ["x", "yy"],
        [2, 1],
        [1.0, 2.0],
        [True, False],
        objects("x", "yy"),
        objects(1, "x"),
        np.array([1, 2], np.int8),
    ],
    ids=str,
)
def test_labels_survive_a_file(labels: Any, tmp_path: Path) -> None:
    classifier = quick(epochs=1).fit(np.eye(2), labels)
    classifier.save(tmp_path / "file")
    loaded = NetworkClassifier.load(tmp_path / "file")
    assert loaded.classes_.dtype == classifier.classes_.dtype
    assert list(loaded.classes_) == list(classifier.classes_)
    assert list(loaded.predict(np.eye(2))) == list(classifier.predict(np.eye(2)))


def test_labels_that_json_cannot_hold(tmp_path: Path) -> None:
    classifier = quick(epochs=1).fit(np.eye(2), objects(Colour.RED, Colour.BLUE))
    with pytest.raises(InputError, match="labels of type Colour cannot be written"):
        classifier.save(tmp_path / "file")
    assert not list(tmp_path.iterdir())


class Stiffer(RWalk):
    """A method of one's own."""


def test_code_is_not_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    quick(epochs=1, network=wide, sampler="uniform", method=Stiffer()).fit(*blobs("ab")).save(path)
    with pytest.raises(InputError, match=r"its (network|method) is code.*load\(path, (network|method)=…\)"):
        NetworkClassifier.load(path)
    assert NetworkClassifier.load(path, network=wide, method=Stiffer()).tasks_seen_ == 1
    with pytest.raises(InputError, match=r"unknown parameter 'epoch'.*did you mean 'epochs'"):
        NetworkClassifier.load(path, epoch=1)
    with pytest.raises(InputError, match=r"the network has 68,610 parameters, its own 208: give the one"):
        NetworkClassifier.load(path, network="mlp", method=Stiffer())
    with pytest.raises(InputError, match="not the method that learned"):
        NetworkClassifier.load(path, network=wide, method="pi")


def test_a_parameter_that_is_newer_than_a_file_has_its_default(tmp_path: Path) -> None:
    path = tmp_path / "classifier"
    NetworkClassifier(memory=1, epochs=1, verbose=False).fit([[0.0], [1.0]], [0, 1]).save(path)
    metadata, tensors = model_file.read(path)
    record = json.loads(metadata["record"])
    del record["params"]["learning_rate"]
    model_file.write(path, classifier_files.FORMAT, record, tensors)
    assert NetworkClassifier.load(path).learning_rate == 1e-3


def test_a_failed_save_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    classifier = quick(epochs=1).fit(*blobs("ab"))
    classifier.save(path)
    before = path.read_bytes()

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(InputError, match="No space left"):
        classifier.partial_fit(*blobs("c")).save(path)
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["file"]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("saved") / "file"
    quick(epochs=1, memory=2).partial_fit(*blobs("ab")).partial_fit(*blobs("c")).save(path)
    return path.read_bytes()


def refused(content: bytes, path: Path) -> str:
    path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        NetworkClassifier.load(path)
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)
    return str(caught.value)


def test_a_damaged_file_is_refused(saved: bytes, tmp_path: Path) -> None:
    path = tmp_path / "file"
    for length in (0, 4, 8, 100, len(saved) // 2, len(saved) - 1):
        refused(saved[:length], path)
    refused(saved + b"\0", path)
    draws = np.random.default_rng(0)
    for place in [*draws.integers(len(saved), size=20), len(saved) - 1]:
        flipped = bytearray(saved)
        flipped[place] ^= 1 << int(draws.integers(8))
        refused(bytes(flipped), path)
    refused(pickle.dumps({"theta": 1}), path)
    with pytest.raises(InputError, match="no such file"):
        NetworkClassifier.load(tmp_path / "nowhere")
    with pytest.raises(InputError, match="no such file"):
        NetworkClassifier.load(tmp_path)


def forged(saved: bytes, tmp_path: Path, *keys: str | int, value: Any) -> bytes:
    """The file with one entry of its record replaced, and its checksum made right again."""
    (size,) = struct.unpack("<Q", saved[:8])
    header = json.loads(saved[8 : 8 + size])
    record = json.loads(header["__metadata__"]["record"])
    holder = record
    for key in keys[:-1]:
        holder = holder[key]
    holder[keys[-1]] = value
    text = json.dumps(record)
    path = tmp_path / "original"
    path.write_bytes(saved)
    _, tensors = model_file.read(path)
    header["__metadata__"] = model_file.metadata(classifier_files.FORMAT, text, tensors)
    packed = json.dumps(header).encode()
    packed += b" " * (-len(packed) % 8)
    return struct.pack("<Q", len(packed)) + packed + saved[8 + size :]


@pytest.mark.parametrize(
    ("keys", "value"),
    [
        (("params", "network"), "os:system"),
        (("params", "network"), "cnn"),
        (("params", "network"), ["mlp"]),
        (("params", "method"), "pi"),
        (("params", "method"), {"name": "rwalk", "lam": "1"}),
        (("params", "method"), {"name": "rwalk", "nonsense": 1}),
        (("params", "method"), {"nonsense": 1}),
        (("params", "method"), ["rwalk"]),
        (("params", "sampler"), {}),
        (("params", "memory"), "many"),
        (("params", "device"), ["cpu"]),
        (("params", "learning_rate"), 1e999),
        (("params", "nonsense"), 1),
        (("params",), []),
        (("classes", "values"), ["a", "b"]),
        (("classes", "values"), ["a", "b", "b"]),
        (("classes", "values"), ["a", "b", 3]),
        (("classes", "values"), [[], [], []]),
        (("classes", "values"), "abc"),
        (("classes", "type"), "V1000000000"),
        (("classes", "type"), "int64"),
        (("classes",), None),
        (("shape",), [10**9]),
        (("shape",), [2**12, 2**12, 2**12]),
        (("shape",), [4, 2]),
        (("shape",), [7]),
        (("shape",), []),
        (("shape",), [8.0]),
        (("seed",), -1),
        (("seed",), True),
        (("tasks",), 0),
        (("tasks",), "2"),
        (("last_seen",), [0, 0]),
        (("last_seen",), [0, 0, 2]),
        (("last_seen",), [0, 0, -1]),
        (("last_seen",), [-1, -1, -1]),
        (("last_seen",), None),
        (("feature_names",), ["one"]),
        (("feature_names",), [1] * 8),
    ],
    ids=str,
)
def test_a_forged_file_is_refused(saved: bytes, tmp_path: Path, keys: Any, value: Any) -> None:
    refused(forged(saved, tmp_path, *keys, value=value), tmp_path / "file")


def test_forging_changes_nothing_else(saved: bytes, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(forged(saved, tmp_path, "params", "epochs", value=7))
    assert NetworkClassifier.load(path).epochs == 7


def poisoned(name: str, value: float) -> Callable[[dict[str, Tensor]], None]:
    def poison(tensors: dict[str, Tensor]) -> None:
        tensors[name].view(-1)[-1] = value

    return poison


def replaced(name: str, make: Callable[[Tensor], Tensor]) -> Callable[[dict[str, Tensor]], None]:
    def replace_it(tensors: dict[str, Tensor]) -> None:
        tensors[name] = make(tensors["theta"])

    return replace_it


@pytest.mark.parametrize(
    "change",
    {
        "another theta": replaced("theta2", Tensor.clone),
        "an extra vector": replaced("method.extra", Tensor.clone),
        "an extra buffer": replaced("buffer.extra", Tensor.clone),
        "a name that leads elsewhere": replaced("../../evil", Tensor.clone),
        "exemplars of no class": replaced("exemplars.9", Tensor.clone),
        "no exemplars of a class": lambda tensors: tensors.pop("exemplars.0"),
        "no exemplars": lambda tensors: [tensors.pop(f"exemplars.{column}") for column in (0, 1)],
        "fewer exemplars of a class": lambda tensors: tensors.update({"exemplars.0": tensors["exemplars.0"][:1]}),
        "exemplars swapped between classes": lambda tensors: tensors.update(
            {"exemplars.0": tensors["exemplars.1"], "exemplars.1": tensors["exemplars.0"]}
        ),
        "theta in double precision": replaced("theta", Tensor.double),
        "theta of whole numbers": replaced("theta", Tensor.long),
        "theta twice": replaced("theta", lambda t: t.repeat(2, 1)),
        "theta without its row": replaced("theta", lambda t: t[0].clone()),
        "theta of nothing": replaced("theta", lambda t: t[:0].clone()),
        "a shorter vector": replaced("method.fisher", lambda t: t[:, 1:].clone()),
        "no anchor": lambda tensors: tensors.pop("method.anchor"),
        "no importance": lambda tensors: tensors.pop("method.importance"),
        "neither": lambda tensors: [tensors.pop(f"method.{name}") for name in ("anchor", "importance")],
        "no theta": lambda tensors: tensors.pop("theta"),
        "theta that is no number": poisoned("theta", float("nan")),
        "an infinite anchor": poisoned("method.anchor", float("-inf")),
        "an importance that is no number": poisoned("method.importance", float("nan")),
        "an importance that pushes away": poisoned("method.importance", -1.0),
    }.items(),
    ids=lambda change: change[0],
)
def test_tensors_that_do_not_belong_are_refused(change: tuple[str, Any], tmp_path: Path) -> None:
    classifier = quick(epochs=1, memory=2).partial_fit(*blobs("ab"))
    classifier.save(tmp_path / "original")
    metadata, tensors = model_file.read(tmp_path / "original")
    change[1](tensors)
    forged = model_file.metadata(metadata["format"], metadata["record"], tensors)
    (tmp_path / "original").write_bytes(safetensors.torch.save(tensors, forged))
    refused((tmp_path / "original").read_bytes(), tmp_path / "file")


def test_a_network_of_ones_own_is_measured_before_it_is_built(tmp_path: Path) -> None:
    """A forged shape must not make it fill the memory: it is built where nothing is allocated, and refused."""
    built_on = []

    def watched(shape: tuple[int, ...], classes: int) -> nn.Module:
        built_on.append(torch.empty(0).device.type)
        return wide(shape, classes)

    quick(epochs=1, network=wide, memory=None, standardize=False).fit(*blobs("ab")).save(tmp_path / "original")
    content = forged((tmp_path / "original").read_bytes(), tmp_path, "shape", value=[2**20])
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(InputError, match=r"the network has 16,777,\d+ parameters, its own"):
        NetworkClassifier.load(tmp_path / "file", network=watched)
    assert built_on == ["meta"]
