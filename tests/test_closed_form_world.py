"""Unknown classes, rare classes, honest probabilities, and a world that changes."""

from __future__ import annotations

import copy
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.datasets import load_digits, load_iris, make_classification
from sklearn.linear_model import LogisticRegression, SGDClassifier
from sklearn.metrics import f1_score, roc_auc_score

from rwalk import IncrementalClassifier, IncrementalRegressor, InputError, prequential

Arrays = tuple[NDArray[Any], NDArray[Any]]


@pytest.fixture(scope="module")
def digits() -> Arrays:
    x, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(x))
    return x[order], y[order]


@pytest.fixture(scope="module")
def six_digits(digits: Arrays) -> IncrementalClassifier:
    """A classifier that has learned 0 to 6, and never 7 to 9."""
    x, y = digits
    clf = IncrementalClassifier(size=500)
    for pair in ([0, 1], [2, 3, 4], [5, 6]):
        some = np.isin(y[:1000], pair)
        clf.partial_fit(x[:1000][some], y[:1000][some])
    return clf


# ── unknown classes ───────────────────────────────────────────────────────────────────────────────────────────


def test_novelty_tells_unknown_classes_better_than_logistic_regression(
    digits: Arrays, six_digits: IncrementalClassifier
) -> None:
    x, y = digits
    known = y[:1000] < 7
    logistic = LogisticRegression(max_iter=300).fit(x[:1000][known] / 16, y[:1000][known])
    unknown = y[1000:] >= 7
    theirs = roc_auc_score(unknown, -logistic.predict_proba(x[1000:] / 16).max(1))
    assert roc_auc_score(unknown, six_digits.novelty(x[1000:])) >= max(theirs, 0.95)


def test_predict_unknown_rejects_the_promised_share(digits: Arrays, six_digits: IncrementalClassifier) -> None:
    x, y = (each[1000:] for each in digits)
    for at in (0.05, 0.1):
        predicted = six_digits.predict(x, unknown=-1, at=at)
        assert np.mean(predicted[y < 7] == -1) == pytest.approx(at, abs=0.035)  # three deviations of 550 examples
    assert np.mean(six_digits.predict(x, unknown=-1)[y >= 7] == -1) > 0.6
    named = six_digits.predict(x, unknown="other")  # numbers stay numbers beside it
    assert {type(label) for label in named} == {int, str} and np.mean(named[y >= 7] == "other") > 0.6
    kept = predicted != -1
    np.testing.assert_array_equal(predicted[kept], six_digits.predict(x)[kept])


def test_novelty_of_noise_far_away_is_extreme(six_digits: IncrementalClassifier) -> None:
    noise = np.random.default_rng(0).normal(scale=1000, size=(20, 64))
    assert (six_digits.novelty(noise) > 0.999).all()


def test_novelty_survives_a_file_which_holds_no_sample(
    digits: Arrays, six_digits: IncrementalClassifier, tmp_path: Path
) -> None:
    x, _ = digits
    before = six_digits.novelty(x[1000:1100])
    six_digits.save(tmp_path / "clf")
    again = IncrementalClassifier.load(tmp_path / "clf")
    np.testing.assert_allclose(again.novelty(x[1000:1100]), before, atol=1e-9)
    assert not len(again._sums()._model.counted.sample.y)  # type: ignore[union-attr]


def test_novelty_needs_examples_and_says_so() -> None:
    clf = IncrementalClassifier(size=10).fit([[0.0], [1.0]], [0, 1])
    with pytest.raises(InputError, match="too few are at hand"):
        clf.novelty([[0.0]])
    with pytest.raises(InputError, match="no share"):
        clf.predict([[0.0]], unknown=9, at=5)


def test_sample_is_the_same_in_any_order_and_any_portions() -> None:
    draw = np.random.default_rng(0)
    x, y = draw.normal(size=(3000, 4)), draw.integers(0, 3, 3000)
    start = IncrementalClassifier(size=10).fit(x, y).fresh()
    whole = start.fresh().partial_fit(x, y)
    order = draw.permutation(3000)
    parts = start.fresh()
    for some in np.array_split(order, 7):
        parts.partial_fit(x[some], y[some])
    a, b = start.fresh().partial_fit(x[:900], y[:900]), start.fresh().partial_fit(x[900:], y[900:])
    for other in (parts, a + b):
        np.testing.assert_allclose(other.predict_proba(x[:50]), whole.predict_proba(x[:50]), atol=1e-6)


# ── probabilities ─────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def rare() -> Arrays:
    return make_classification(
        9000, 20, n_informative=6, weights=[0.98], class_sep=1.2, flip_y=0.005, random_state=1
    )


def test_rare_class_gets_its_share_of_probability(rare: Arrays) -> None:
    x, y = rare
    clf = IncrementalClassifier(size=500).fit(x[:4000], y[:4000])
    assert clf.predict_proba(x[4000:])[:, 1].mean() == pytest.approx(y[4000:].mean(), rel=0.35)
    logistic = LogisticRegression(max_iter=500).fit(x[:4000], y[:4000])
    assert f1_score(y[4000:], clf.predict(x[4000:])) >= f1_score(y[4000:], logistic.predict(x[4000:]))


@pytest.mark.filterwarnings("ignore:these examples were removed")
def test_rare_class_keeps_its_share_after_a_file_and_after_forgetting(rare: Arrays, tmp_path: Path) -> None:
    x, y = rare
    clf = IncrementalClassifier(size=200).fit(x[:4000], y[:4000])
    before = clf.predict(x[4000:]).sum()
    forgotten = copy.deepcopy(clf).forget(x[:20], y[:20])
    clf.save(tmp_path / "clf")
    loaded = IncrementalClassifier.load(tmp_path / "clf").partial_fit(x[4000:4020], y[4000:4020])
    for each in (clf.partial_fit(x[4000:4020], y[4000:4020]), loaded, forgotten):
        assert each.predict(x[4000:]).sum() == pytest.approx(before, rel=0.1)
    assert np.isfinite(loaded.set_params(ridge=10.0).predict_proba(x[:9])).all()  # scores of another scale


def test_class_weight_multiplies_probabilities(rare: Arrays) -> None:
    x, y = rare
    clf = IncrementalClassifier(size=100).fit(x[:4000], y[:4000])
    plain = clf.predict_proba(x[:200])
    weighted = clf.set_params(class_weight={1: 5.0}).predict_proba(x[:200])
    expected = plain * [1.0, 5.0]
    np.testing.assert_allclose(weighted, expected / expected.sum(1, keepdims=True), atol=1e-9)
    clf.set_params(class_weight="balanced")
    assert np.mean(clf.predict(x[4000:])[y[4000:] == 1] == 1) > 0.75
    with pytest.raises(InputError, match="class_weight"):
        clf.set_params(class_weight="even").predict(x[:1])


# ── a changing world ──────────────────────────────────────────────────────────────────────────────────────────


def weeks(count: int, swapped: int, seed: int = 0) -> list[Arrays]:
    """Parts of 100 examples of two classes, whose labels are swapped from one part on."""
    draw = np.random.default_rng(seed)
    parts = []
    for week in range(count):
        y = draw.integers(0, 2, 100)
        x = draw.normal(size=(100, 3)) + 3 * y[:, None]
        parts.append((x, 1 - y if week >= swapped else y))
    return parts


def test_half_life_recovers_from_swapped_labels_within_it() -> None:
    stream = weeks(24, swapped=12)
    faded = prequential(IncrementalClassifier(size=50, half_life=200), stream).curve()
    kept = prequential(IncrementalClassifier(size=50), stream).curve()
    swap = 12 - 1  # the first part is not predicted
    assert faded[swap] < 0.3
    assert (faded[swap + 3 :] > 0.9).all()  # two parts are one half-life; the third is predicted after it
    assert kept[swap + 3] < 0.5


@pytest.mark.parametrize("portion", [1, 37, 200])
def test_half_life_equals_weights_by_age_in_any_portions(portion: int) -> None:
    draw = np.random.default_rng(0)
    x, y = draw.normal(size=(400, 3)), draw.integers(0, 2, 400)
    start = IncrementalClassifier(size=10, ridge=0.1).fit(x, y).fresh()
    faded = start.fresh().set_params(half_life=5)
    for begin in range(0, 400, portion):
        faded.partial_fit(x[begin : begin + portion], y[begin : begin + portion])
    weighted = start.fresh().partial_fit(x, y, sample_weight=2.0 ** (-np.arange(399, -1, -1) / 5))
    np.testing.assert_allclose(faded.coef_, weighted.coef_, atol=1e-7 * np.abs(weighted.coef_).max())


def test_half_life_merges_what_was_learned_at_the_same_time() -> None:
    draw = np.random.default_rng(0)
    x, y = draw.normal(size=(600, 3)), draw.integers(0, 2, 600)
    start = IncrementalClassifier(size=10, ridge=0.1, half_life=20).fit(x, y).fresh()
    a, b = start.fresh().partial_fit(x[:300], y[:300]), start.fresh().partial_fit(x[300:], y[300:])
    age = np.tile(np.arange(299, -1, -1), 2)
    weighted = IncrementalClassifier(size=10, ridge=0.1).fit(x, y).fresh()
    weighted.partial_fit(x, y, sample_weight=2.0 ** (-age / 20))
    for both in (a + b, b + a):
        np.testing.assert_allclose(both.coef_, weighted.coef_, atol=1e-7 * np.abs(weighted.coef_).max())


def test_half_life_none_is_the_default_to_the_bit_and_a_file_goes_on(tmp_path: Path) -> None:
    parts = weeks(4, swapped=2)
    default, none, faded = (
        IncrementalClassifier(size=20, **params) for params in ({}, {"half_life": None}, {"half_life": 50})
    )
    for x, y in parts[:3]:
        for clf in (default, none, faded):
            clf.partial_fit(x, y)
    np.testing.assert_array_equal(default.coef_, none.coef_)
    faded.save(tmp_path / "clf")
    again = IncrementalClassifier.load(tmp_path / "clf")
    for clf in (faded, again):
        clf.partial_fit(*parts[3])
    np.testing.assert_array_equal(again.coef_, faded.coef_)
    with pytest.raises(InputError, match="nothing was forgotten"):
        faded.forget(*parts[0])
    with pytest.raises(InputError, match=r"half_life=0\.5"):
        IncrementalClassifier(half_life=0.5).fit(*parts[0])


def test_half_life_much_shorter_than_a_call_keeps_the_last_examples_alone() -> None:
    x, y = weeks(1, swapped=9)[0]
    clf = IncrementalClassifier(size=10, half_life=1).fit(np.tile(x, (30, 1)), np.tile(y, 30))
    assert np.isfinite(clf.predict_proba(x)).all()


def test_moved_names_the_class_whose_inputs_moved() -> None:
    draw = np.random.default_rng(0)
    y = np.repeat(["a", "b"], 200)
    x = draw.normal(size=(400, 4)) + 4 * (y == "b")[:, None]
    clf = IncrementalClassifier(size=50).partial_fit(x, y)
    assert clf.moved_ == {}
    clf.partial_fit(x[100:300] + draw.normal(scale=0.1, size=(200, 4)), y[100:300])
    assert max(clf.moved_.values()) < 0.2
    moved = x + 2 * (y == "b")[:, None]
    clf.partial_fit(moved, y)
    assert clf.moved_["b"] > 0.5 > 3 * clf.moved_["a"]


def test_a_column_in_another_unit_is_named_in_a_warning() -> None:
    pandas = pytest.importorskip("pandas")
    draw = np.random.default_rng(0)
    y = draw.integers(0, 4, 400)
    frame = pandas.DataFrame({"mass": draw.normal(size=400), "celsius": 10.0 * y + draw.normal(size=400)})
    clf = IncrementalClassifier(size=50).partial_fit(frame[:200], y[:200])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        clf.partial_fit(frame[200:], y[200:])
    with pytest.warns(UserWarning, match="column 'celsius' was between .* convert it"):
        clf.partial_fit(frame[200:].assign(celsius=frame[200:]["celsius"] + 273.15), y[200:])


@pytest.mark.parametrize("kind", ["classes", "numbers"])
def test_another_unit_in_the_second_small_call_is_a_warning(kind: str) -> None:
    """Fewer examples than `warm_up`, of which no features are made yet."""
    x, y = load_iris(return_X_y=True)
    order = np.random.default_rng(0).permutation(150)
    x, y = x[order], y[order]
    make: Any = IncrementalClassifier if kind == "classes" else IncrementalRegressor
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        make(size=50).partial_fit(x[:75], y[:75]).partial_fit(x[75:], y[75:])
        make(size=50).partial_fit(x[:6], y[:6]).partial_fit(x[6:20], y[6:20])
    estimator = make(size=50).partial_fit(x[:75], y[:75])
    with pytest.warns(UserWarning, match="column 0 was between .* convert it"):
        estimator.partial_fit(x[75:] + np.array([273.15, 0, 0, 0]), y[75:])


def test_new_classes_in_small_calls_are_no_other_unit() -> None:
    x, y = load_iris(return_X_y=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        clf = IncrementalClassifier(size=50).partial_fit(x[:40], y[:40])
        clf.partial_fit(x[60:100], y[60:100])
        assert clf.classes_.tolist() == [0, 1]


def test_new_classes_in_later_calls_are_no_other_unit() -> None:
    """A pixel that was nearly constant in the classes so far may be bright in a new one."""
    x, y = load_digits(return_X_y=True)
    clf = IncrementalClassifier(size=50)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for digit in range(10):
            clf.partial_fit(x[y == digit], y[y == digit])
    with pytest.warns(UserWarning, match="convert it"):
        clf.partial_fit(x + 273.15, y)


def test_prequential_takes_other_estimators_and_counts_before_learning() -> None:
    stream = weeks(6, swapped=99)
    done = prequential(SGDClassifier(random_state=0), stream, classes=[0, 1])
    assert len(done.curve()) == 5 and done.examples.tolist() == [100] * 5
    assert done.accuracy == pytest.approx(done.right.sum() / 500)
    assert done.curve(parts=5)[-1] == pytest.approx(done.accuracy)
    with pytest.raises(InputError, match="at least two parts"):
        prequential(IncrementalClassifier(size=10), stream[:1])


def test_predicting_in_another_unit_warns_and_usual_inputs_do_not() -> None:
    draw = np.random.default_rng(0)
    y = np.arange(200) % 4
    celsius = draw.normal(size=(200, 3)) + 5 * y[:, None]
    clf = IncrementalClassifier(size=20).fit(celsius, y)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        clf.predict(celsius[:50])
        clf.predict(celsius[:1] + 273)  # a single input may be an outlier
    with pytest.warns(UserWarning, match=r"column 0 was between .* if its unit has changed, convert it"):
        clf.predict(celsius + 273)


def test_images_between_0_and_1_after_images_of_bytes_warn() -> None:
    images = np.random.default_rng(0).integers(0, 256, (60, 1, 16, 16), dtype=np.uint8)
    clf = IncrementalClassifier(size=10).fit(images, np.arange(60) % 2)
    with pytest.warns(UserWarning, match=r"channel 0 was between 0 and 255 so far and now is between 0 and 1"):
        clf.predict(images / 255)
    with pytest.warns(UserWarning, match=r"channel 0 was between 0 and 255"):
        clf.partial_fit(images / 255, np.arange(60) % 2)


@pytest.mark.parametrize("value", [1000000000.5, -1e9])
def test_one_value_far_away_hides_no_others_of_its_column(value: float) -> None:
    x = np.random.default_rng(0).normal(size=(400, 3))
    y = (x[:, 1] > 0).astype(int)
    x[7, 1] = value
    assert IncrementalClassifier(size=50).fit(x[:200], y[:200]).score(x[200:], y[200:]) > 0.9


def test_marks_of_missing_values_warn_and_cost_little(digits: Arrays) -> None:
    x, y = digits[0].copy(), digits[1]
    x[np.random.default_rng(0).random(x.shape) < 0.02] = -999
    with pytest.warns(
        UserWarning, match=r"^-999 occurs \d+ times, first in column \d, far from all others there: "
    ):
        clf = IncrementalClassifier(size=200).fit(x[:1000], y[:1000])
    assert clf.score(x[1000:], y[1000:]) > 0.8  # 10 % where they set the scale


def test_one_column_of_a_far_larger_unit_hides_no_others() -> None:
    draw = np.random.default_rng(0)
    x = np.concatenate([draw.integers(1, 11, (400, 11)), draw.integers(10**6, 10**7, (400, 1))], axis=1)
    y = (x[:, :3].sum(1) > 16).astype(int)
    assert IncrementalClassifier(size=50).fit(x[:200], y[:200]).score(x[200:], y[200:]) > 0.85


def test_one_mistake_rare_indicators_and_long_tails_are_no_marks() -> None:
    draw = np.random.default_rng(0)
    x = np.stack([draw.normal(size=500), np.exp(3 * draw.normal(size=500)), np.zeros(500), np.ones(500)], axis=1)
    x[3, 0], x[3, 2] = -999, 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        IncrementalClassifier(size=20).fit(x, np.arange(500) % 2)
