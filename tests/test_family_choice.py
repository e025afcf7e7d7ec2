"""method="auto": all families learn, and examples that none of them has learned choose between them."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from rwalk import IncrementalClassifier, InputError, model_file
from rwalk.classifier import family_choice
from rwalk.classifier.family_choice import AutoClassifier

QUICK: dict[str, Any] = {"method": "auto", "memory": 5, "size": 60, "epochs": 2}


def products(n: int, seed: int = 0) -> tuple[NDArray[np.float64], NDArray[np.str_]]:
    """The class is said by a product of two columns among twenty: fixed features hardly see it."""
    x = np.random.default_rng(seed).normal(size=(n, 20))
    return x, np.where(x[:, 0] * x[:, 1] > 0, "same", "other")


def corners(n: int = 300, seed: int = 0) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    draw = np.random.default_rng(seed)
    y = draw.integers(0, 6, n)
    return draw.normal(size=(6, 8))[y] * 4 + draw.normal(size=(n, 8)), y


def in_calls(clf: Any, x: NDArray[Any], y: NDArray[Any]) -> Any:
    for first in (0, 2, 4):
        mine = (y // 2) == first // 2
        clf.partial_fit(x[mine], y[mine])
    return clf


def test_closed_form_is_used_where_no_network_is_better() -> None:
    x, y = corners()
    clf = in_calls(IncrementalClassifier(**QUICK), x, y)
    assert clf.chosen_ == "closed-form"
    assert clf.judged_.keys() == set(family_choice.CANDIDATES)
    alone = in_calls(IncrementalClassifier(size=60), x, y)
    assert (clf.predict(x) == alone.predict(x)).mean() > 0.97


def test_a_network_is_used_where_features_must_be_learned() -> None:
    x, y = products(1500)
    clf = IncrementalClassifier(
        method="auto", memory=60, size=100, epochs=30, batch_size=256, learning_rate=3e-3
    ).partial_fit(x, y)
    assert clf.chosen_ in family_choice.CANDIDATES[1:]
    test = products(1000, seed=1)
    assert clf.score(*test) > IncrementalClassifier(size=100).fit(x, y).score(*test) + 0.1


def test_judges_are_learned_by_nobody_but_closed_form_in_the_end() -> None:
    x, y = corners()
    auto = AutoClassifier(**QUICK)
    in_calls(auto, x, y)
    counts = np.unique(auto._judges.y, return_counts=True)[1]
    assert counts.tolist() == [5] * 6  # as many as exemplars
    closed = auto._candidates["closed-form"]
    assert closed._model.counts.sum() == len(x) - 30  # type: ignore[union-attr]
    seen = {row.tobytes() for row in auto._judges.x.numpy()}
    for name in family_choice.CANDIDATES[1:]:
        kept = np.concatenate([*auto._candidates[name].exemplars_.values()])  # type: ignore[union-attr]
        assert not seen & {row.astype(np.float64).tobytes() for row in kept}
    assert auto._in_use()._model.counts.sum() == len(x)  # type: ignore[union-attr]


def test_a_loaded_one_goes_on_exactly(tmp_path: Path) -> None:
    x, y = corners()
    clf = IncrementalClassifier(**QUICK).partial_fit(x[y < 3], y[y < 3])
    clf.save(tmp_path / "auto")
    again = IncrementalClassifier.load(tmp_path / "auto")
    assert again.get_params() == clf.get_params()
    for each in (clf, again):
        each.partial_fit(x[y >= 3], y[y >= 3])
    np.testing.assert_array_equal(clf.predict_proba(x), again.predict_proba(x))
    assert clf.judged_ == again.judged_ and clf.chosen_ == again.chosen_


def test_a_damaged_file_is_one_line(tmp_path: Path) -> None:
    x, y = corners()
    path = tmp_path / "auto"
    IncrementalClassifier(**QUICK).fit(x, y).save(path)
    metadata, tensors = model_file.read(path)
    record = json.loads(metadata["record"])
    wrong = {
        "a judge": (record, {**tensors, "judges.y": tensors["judges.y"] + 100}),
        "the method": ({**record, "params": {**record["params"], "method": "rwalk"}}, tensors),
        "the network": ({**record, "params": {**record["params"], "network": "os:system"}}, tensors),
        "the list of tensors": (record, {**tensors, "stranger": tensors["judges.y"].clone()}),
        "damaged": ({**record, "candidates": {}}, tensors),
    }
    for what, contents in wrong.items():
        model_file.write(path, family_choice.FORMAT, *contents)
        with pytest.raises(InputError, match=what) as error:
            IncrementalClassifier.load(path)
        assert "\n" not in str(error.value)


def test_a_call_that_fails_changes_nothing() -> None:
    x, y = corners()
    clf = IncrementalClassifier(**QUICK).partial_fit(x[y < 3], y[y < 3])
    before = clf.predict_proba(x)
    clf.set_params(learning_rate=1e30)
    with pytest.raises(InputError, match="not finite"):
        clf.partial_fit(x, y)
    clf.set_params(learning_rate=1e-3)
    np.testing.assert_array_equal(clf.predict_proba(x), before)
    assert clf.classes_.tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("act", "match"),
    [
        (lambda x, y: IncrementalClassifier(method="auto").fit(x, y), "set memory=10, or name a method"),
        (lambda x, y: IncrementalClassifier(**QUICK).fit(x, y, sample_weight=y + 1), "take no sample_weight"),
        (lambda x, y: IncrementalClassifier(**QUICK).fit(x, y).forget(x, y), "only sums can be taken apart"),
    ],
)
def test_what_it_cannot_do_is_said(act: Any, match: str) -> None:
    with pytest.raises(InputError, match=match):
        act(*corners(60))


def test_every_parameter_is_used_and_nothing_is_warned_about() -> None:
    x, y = corners()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        in_calls(IncrementalClassifier(**QUICK, ridge=0.1, lam=2.0), x, y)
