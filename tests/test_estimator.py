"""IncrementalClassifier: the family behind it does the work; here is what the face adds."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.utils.estimator_checks import check_estimator
from torch import nn

import rwalk
from rwalk import IncrementalClassifier, IncrementalRegressor, InputError, model_file
from rwalk.classifier.closed_form import ClosedFormClassifier
from rwalk.classifier.network import NetworkClassifier
from rwalk.data import datasets, splits

NETWORK: dict[str, Any] = {"method": "rwalk", "memory": 3, "epochs": 20}


def table(n: int = 240, classes: int = 4) -> tuple[NDArray[np.float64], NDArray[np.str_]]:
    draws = np.random.default_rng(0)
    y = draws.integers(0, classes, n)
    x = draws.normal(size=(classes, 5))[y] * 3 + draws.normal(size=(n, 5))
    return x * 10.0 ** np.arange(5), np.array(list("abcd"))[y]


def in_calls(clf: Any) -> Any:
    x, y = table()
    for pair in ("ca", "bd"):
        some = np.isin(y, list(pair))
        clf.partial_fit(x[some], y[some])
    return clf


def test_the_default_needs_no_tuning_and_no_exemplars() -> None:
    stream = splits.split(datasets.load("digits"), classes_per_task=2)
    clf = IncrementalClassifier()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for task in stream.tasks:
            clf.partial_fit(stream.x[task.train], stream.y[task.train])
    assert clf.score(stream.x_test, stream.y_test) >= 0.975
    assert not hasattr(clf, "exemplars_")


@pytest.mark.parametrize(("params", "kind"), [({"size": 50}, ClosedFormClassifier), (NETWORK, NetworkClassifier)])
def test_it_is_the_family_that_the_method_names(params: dict[str, Any], kind: type[Any]) -> None:
    x, _ = table()
    face, alone = in_calls(IncrementalClassifier(**params)), in_calls(kind(**params))
    np.testing.assert_array_equal(face.predict(x), alone.predict(x))
    np.testing.assert_array_equal(face.predict_proba(x), alone.predict_proba(x))
    np.testing.assert_array_equal(face.decision_function(x), alone._scores(x).numpy())
    assert face.classes_.tolist() == alone.classes_.tolist() == ["a", "b", "c", "d"]
    assert face.n_features_in_ == 5


@pytest.mark.parametrize("params", [{"size": 50}, {"size": 50, "method": "lda"}, NETWORK])
def test_a_loaded_one_goes_on_exactly(params: dict[str, Any], tmp_path: Path) -> None:
    x, _ = table()
    clf = in_calls(IncrementalClassifier(**params))
    clf.save(tmp_path / "clf")
    again = IncrementalClassifier.load(tmp_path / "clf")
    assert again.get_params() == clf.get_params()
    for each in (clf, again):
        each.partial_fit(x[:20], ["e"] * 20)
    np.testing.assert_array_equal(again.predict_proba(x), clf.predict_proba(x))


def test_a_file_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "x.py").write_text("print()")
    for path in ("x.py", "missing"):
        with pytest.raises(InputError, match="cannot be loaded"):
            IncrementalClassifier.load(tmp_path / path)


def test_forgetting_and_merging_equal_what_was_never_apart() -> None:
    x, y = table()
    all_at_once = IncrementalClassifier(size=50).fit(x, y)
    a, b = all_at_once.fresh().partial_fit(x[:150], y[:150]), all_at_once.fresh().partial_fit(x[150:], y[150:])
    scale = np.abs(all_at_once.coef_).max()
    for merged in (a + b, sum([a, b])):
        np.testing.assert_allclose(merged.coef_ / scale, all_at_once.coef_ / scale, rtol=0, atol=1e-8)
    both = a + b
    with pytest.warns(UserWarning, match="feature map"):
        both.forget(x[150:], y[150:])
    np.testing.assert_allclose(both.coef_ / scale, a.coef_ / scale, rtol=0, atol=1e-8)


def test_networks_cannot_be_taken_apart_and_say_so() -> None:
    clf, (x, y) = in_calls(IncrementalClassifier(**NETWORK)), table()
    for attempt in (lambda: clf.forget(x, y), lambda: clf.merge(clf), lambda: clf.fresh(), lambda: clf + clf):
        with pytest.raises(InputError, match="set method='closed-form'"):
            attempt()


def test_weights_count_as_repetitions_and_networks_refuse_them() -> None:
    x, y = table(60)
    start = IncrementalClassifier(size=30, ridge=0.1).fit(x, y).fresh()
    weights = np.random.default_rng(1).integers(1, 4, len(x))
    weighted = start.fresh().partial_fit(x, y, sample_weight=weights)
    repeated = start.fresh().partial_fit(np.repeat(x, weights, axis=0), np.repeat(y, weights))
    np.testing.assert_allclose(weighted.coef_, repeated.coef_, rtol=0, atol=1e-8 * np.abs(repeated.coef_).max())
    with pytest.raises(InputError, match="networks take no sample_weight"):
        IncrementalClassifier(**NETWORK).fit(x, y, sample_weight=weights)


@pytest.mark.parametrize(
    ("params", "match"),
    [
        ({"memory": 10}, "'closed-form' does not use memory: method='rwalk' does"),
        ({"lam": 3.0, "epochs": 2}, "does not use epochs, lam"),
        ({"method": "rwalk", "memory": 2, "ridge": 0.1}, "'rwalk' does not use ridge: method='closed-form' does"),
    ],
)
def test_a_parameter_that_is_not_used_is_named_once(params: dict[str, Any], match: str) -> None:
    clf, (x, y) = IncrementalClassifier(**params), table(40)
    with pytest.warns(UserWarning, match=match):
        clf.partial_fit(x, y)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        clf.partial_fit(x, y)


def test_another_family_cannot_go_on() -> None:
    clf = in_calls(IncrementalClassifier(size=20))
    clf.set_params(method="rwalk", memory=2)
    with pytest.raises(InputError, match="method='rwalk' did not learn this: set it back, or call fit"):
        clf.predict(table()[0])
    clf.set_params(method="closed-form")
    assert clf.score(*table()) > 0.9


def test_a_trained_network_gives_the_features() -> None:
    x, y = table()
    torch.manual_seed(0)
    backbone = nn.Sequential(nn.Linear(5, 32), nn.Tanh(), nn.Linear(32, 3))
    x = x / 10.0 ** np.arange(5)
    clf = IncrementalClassifier(network=backbone).partial_fit(x, y)
    assert clf.coef_.shape == (4, 32 + 1000)  # its own features and their lift
    with pytest.raises(InputError, match="give a function"):
        IncrementalClassifier(network=backbone, method="rwalk", memory=2).partial_fit(x, y)
    with pytest.raises(InputError, match="not from network='cnn'"):
        IncrementalClassifier(network="cnn").partial_fit(x, y)


def test_searches_clones_and_unfitted_ones() -> None:
    x, y = table()
    assert clone(IncrementalClassifier(lam=3, method="rwalk")).get_params()["lam"] == 3
    search = GridSearchCV(IncrementalClassifier(size=30), {"ridge": [1e-4, 1e-2, 1.0]}, cv=2).fit(x, y)
    assert search.best_score_ > 0.8
    assert cross_val_score(IncrementalClassifier(size=30), x, y, cv=2).min() > 0.8
    with pytest.raises(NotFittedError):
        IncrementalClassifier().predict(x)
    with pytest.raises(AttributeError):
        IncrementalClassifier().classes_  # noqa: B018
    assert rwalk.IncrementalRegressor is IncrementalRegressor


def test_scikit_learns_checks_pass_without_exception() -> None:
    failed = [
        each
        for each in check_estimator(IncrementalClassifier(size=100), on_skip=None, on_fail=None)
        if each["status"] == "failed"
    ]
    assert not failed


def test_a_generator_of_batches_is_a_call_each() -> None:
    x, y = table()
    one_by_one = IncrementalClassifier(size=30)
    for rows in np.split(np.arange(len(x)), 8):
        one_by_one.partial_fit(x[rows], y[rows])
    at_once = IncrementalClassifier(size=30).partial_fit((x[r], y[r]) for r in np.split(np.arange(len(x)), 8))
    np.testing.assert_array_equal(at_once.coef_, one_by_one.coef_)


def calls() -> list[tuple[Any, Any]]:
    x, y = table()
    return [(x[np.isin(y, list(pair))], y[np.isin(y, list(pair))]) for pair in ("ca", "bd")]


@pytest.mark.filterwarnings("ignore:without exemplars no batch shows")
def test_a_search_over_a_stream_finds_what_one_fit_cannot() -> None:
    x, y = table()
    found = rwalk.stream_search(
        IncrementalClassifier(method="ewc", epochs=20), {"memory": [None, 20], "lam": [0.1]}, calls()
    )
    assert found.best_params_["memory"] == 20
    assert found.best_score_ == max(trial.score for trial in found.trials)
    assert [len(trial.scores) for trial in found.trials] == [2, 2]
    assert found.best_estimator_.score(x, y) > 0.9
    with pytest.warns(UserWarning, match="nothing to forget"):
        IncrementalClassifier(method="rwalk", memory=2, lam=10.0, epochs=1).fit(x, y)


def test_what_a_search_holds_out_is_not_learned() -> None:
    """An estimator that knows only what it saw by heart scores nothing on what was held out."""

    class ByHeart:
        def __init__(self, luck: int = 0) -> None:
            self.luck, self.seen = luck, set()

        def get_params(self, deep: bool = True) -> dict[str, Any]:
            return {"luck": self.luck}

        def set_params(self, **params: Any) -> Any:
            self.luck = params["luck"]
            return self

        def partial_fit(self, x: Any, y: Any) -> Any:
            self.seen |= {row.tobytes() for row in x}
            return self

        def score(self, x: Any, y: Any) -> float:
            return float(np.mean([row.tobytes() in self.seen for row in x]))

    found = rwalk.stream_search(ByHeart(), {"luck": [0, 1]}, calls())
    assert [trial.scores for trial in found.trials] == [[0.0, 0.0]] * 2
    assert found.best_estimator_.score(*table()) == 1.0


@pytest.mark.parametrize(
    ("grid", "stream", "options", "match"),
    [
        ({"ridge": [1.0]}, [], {}, "no calls"),
        ({"ridge": [1.0]}, [([[0.0], [1.0]], ["a", "b"])], {}, "no class with two examples"),
        ({"ridge": [1.0]}, [([[0.0], [1.0]], ["a", "a"])], {"holdout": 1.5}, "no share"),
    ],
)
def test_searches_that_cannot_be(grid: Any, stream: Any, options: Any, match: str) -> None:
    with pytest.raises(InputError, match=match):
        rwalk.stream_search(IncrementalClassifier(size=5), grid, stream, **options)


def test_wrong_input_is_one_line() -> None:
    x, y = table(40)
    with pytest.raises(InputError, match=r"unknown method 'closedform'.*did you mean 'closed-form'"):
        IncrementalClassifier(method="closedform").partial_fit(x, y)
    x[3, 3] = np.nan
    with pytest.raises(InputError, match=r"^Input X contains NaN: fill in or leave out missing values$"):
        IncrementalClassifier().partial_fit(x, y)


def test_labels_that_pandas_calls_booleans_stay_booleans() -> None:
    pd = pytest.importorskip("pandas")
    x, y = table(40)
    clf = IncrementalClassifier(size=10).fit(x, pd.Series(y == "a", dtype="boolean"))
    assert clf.predict(x).dtype == bool


def test_an_iterator_of_rows_is_refused_in_one_line() -> None:
    x, y = table(40)
    with pytest.raises(InputError, match=r"^X is an iterator: let it give \(X, y\)"):
        IncrementalClassifier(size=10).partial_fit(iter(x), y)


def test_method_auto_and_its_files_are_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"^method='auto' is no more: .*rwalk\.stream_search$"):
        IncrementalClassifier(method="auto", memory=10).partial_fit(*table(40))
    model_file.write(tmp_path / "old", "rwalk.auto/1", {}, {"judges.y": torch.zeros(1)})
    with pytest.raises(InputError, match=r"learned with method='auto', .*rwalk\.stream_search$"):
        IncrementalClassifier.load(tmp_path / "old")


@pytest.mark.parametrize("params", [{"size": 30}, NETWORK], ids=["closed form", "network"])
def test_pandas_frames_keep_their_names_and_cause_no_warning(params: dict[str, Any]) -> None:
    pd = pytest.importorskip("pandas")
    x, y = table()
    frame = pd.DataFrame(x, columns=list("abcde")).assign(f=np.arange(len(x)) % 3)
    numbers = pd.Series(np.unique(y, return_inverse=True)[1])
    for labels in (pd.Series(y), pd.Series(y).astype("category"), numbers.astype("Int64")):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            clf = IncrementalClassifier(**params).partial_fit(frame[:120], labels[:120])
            clf.partial_fit(frame[120:], labels[120:])
            assert clf.score(frame, labels) > 0.7
        assert clf.feature_names_in_.tolist() == list("abcdef")
        assert clf.classes_.tolist() == sorted(set(labels.tolist()))
        assert clf.classes_.dtype.kind in "OUi"  # whole numbers stay whole
        with pytest.raises(InputError, match="same order"):
            clf.predict(frame[list("bacdef")])


@pytest.mark.parametrize("params", [{}, {"memory": 2}, {"method": "rwalk"}])
def test_a_sampler_that_does_not_exist_is_refused_even_if_nothing_is_kept(params: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="unknown sampler 'moff': did you mean 'mof'"):
        IncrementalClassifier(sampler="moff", **params).fit(*table())


def test_probabilities_survive_a_file(tmp_path: Path) -> None:
    x, y = table(1200)
    clf = IncrementalClassifier(method="rwalk", memory=2).partial_fit(x, y)
    assert clf._inner._sharpness() != 1
    clf.save(tmp_path / "a" / "b" / "model")
    again = IncrementalClassifier.load(tmp_path / "a" / "b" / "model")
    np.testing.assert_array_equal(clf.predict_proba(x), again.predict_proba(x))


@pytest.mark.parametrize("params", [{"size": 30}, NETWORK], ids=["closed form", "network"])
def test_folders_of_a_path_are_made(params: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "not" / "there" / "yet"
    IncrementalClassifier(**params).partial_fit(*table()).save(path)
    assert IncrementalClassifier.load(path).score(*table()) > 0.7
    with pytest.raises(InputError, match="cannot write"):
        IncrementalClassifier(**params).partial_fit(*table()).save(path / "below a file")


def test_another_kind_of_file_is_not_called_damaged(tmp_path: Path) -> None:
    (tmp_path / "x.py").write_text("print('a program')\n")
    with pytest.raises(InputError, match="it is no safetensors file: give the path that `save` was given"):
        IncrementalClassifier.load(tmp_path / "x.py")
    whole = tmp_path / "model"
    IncrementalClassifier(size=30).fit(*table()).save(whole)
    whole.write_bytes(whole.read_bytes()[:1000])
    with pytest.raises(InputError, match="damaged"):
        IncrementalClassifier.load(whole)
