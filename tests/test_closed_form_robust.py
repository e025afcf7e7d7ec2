"""Learning in closed form never breaks predicting, and forgetting takes out only what was learned."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from torch import nn

from rwalk import IncrementalClassifier, IncrementalRegressor, InputError
from rwalk.closed_form import solve
from rwalk.closed_form.features.patches import PatchFeatures
from rwalk.closed_form.sums import Statistics

Arrays = tuple[NDArray[Any], NDArray[Any]]


def rows(n: int = 240, d: int = 5, classes: int = 3, seed: int = 0) -> Arrays:
    draw = np.random.default_rng(seed)
    y = draw.integers(0, classes, n)
    return draw.normal(size=(n, d)) + 2 * draw.normal(size=(classes, d))[y], y


def images(n: int = 120, seed: int = 0) -> Arrays:
    draw = np.random.default_rng(seed)
    y = np.arange(n) % 3
    x = draw.normal(size=(n, 1, 16, 16)).astype(np.float32)
    x[y == 1, :, :8] += 2
    x[y == 2, :, :, :8] *= 3
    return x, y


class Offset(nn.Module):
    """Features with an offset that is large beside their deviations, one of them constant."""

    def __init__(self, d: int = 5) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(d, 30)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        features = 0.1 * self.layer(x) + 10
        return torch.cat([features, torch.full_like(features[:, :1], 7.3)], dim=1)


# ── learning never breaks predicting ────────────────────────────────────────────────────────────────────────────


def test_predict_works_after_the_same_images_are_learned_twice() -> None:
    x, y = images()
    clf = IncrementalClassifier(size=40).partial_fit(x, y).partial_fit(x, y)
    assert clf.score(x, y) > 0.95


def test_predict_works_with_copies_of_one_image() -> None:
    x, y = images()
    clf = IncrementalClassifier(size=8).fit(np.repeat(x[:1], 120, axis=0), y)
    assert np.isfinite(clf.predict_proba(x)).all()


def test_predict_works_with_large_weights_on_images() -> None:
    x, y = images()
    clf = IncrementalClassifier(size=40).fit(x, y, sample_weight=np.full(len(x), 100.0))
    assert clf.score(x, y) > 0.95


def test_predict_works_with_features_that_have_an_offset() -> None:
    x, y = rows()
    clf = IncrementalClassifier(network=Offset()).partial_fit(x[:150], y[:150]).partial_fit(x[150:], y[150:])
    assert clf.score(x, y) > 0.9


@pytest.mark.parametrize("method", ["closed-form", "lda"])
def test_predict_works_with_a_ridge_below_rounding(method: str) -> None:
    x, y = rows()
    clf = IncrementalClassifier(method=method, size=400, ridge=1e-30).fit(x, y)
    assert clf.ridge_ >= 1e-30
    assert np.isfinite(clf.predict_proba(x)).all()


def test_inputs_whose_squares_overflow_are_refused_before_they_are_held() -> None:
    clf = IncrementalClassifier(size=50).partial_fit([[0.0], [1.0]], [0, 1])
    with pytest.raises(InputError, match="bring inputs to scale"):
        clf.partial_fit([[1e200]], [0])
    assert clf.predict([[0.0], [1.0]]).tolist() == [0, 1]


# ── forgetting ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_forget_is_exact_with_a_network_by_default() -> None:
    x, y = rows(600)
    clf = IncrementalClassifier(network=Offset()).fit(x, y)
    alone = clf.fresh().partial_fit(x[:300], y[:300])
    clf.forget(x[300:], y[300:])
    scale = np.abs(alone.coef_).max()
    np.testing.assert_allclose(clf.coef_ / scale, alone.coef_ / scale, rtol=0, atol=1e-6)


@pytest.mark.parametrize("kind", ["twice", "foreign", "another label"])
@pytest.mark.filterwarnings("ignore:these examples were removed:UserWarning")
def test_forget_refuses_what_was_not_learned_and_changes_nothing(kind: str) -> None:
    x, y = rows()
    clf = IncrementalClassifier(size=300).fit(x, y)
    gone, labels = x[:20], y[:20]
    if kind == "twice":
        clf.forget(gone, labels)
    if kind == "foreign":
        gone = np.clip(gone + 0.1, x.min(0), x.max(0))
    if kind == "another label":
        labels = (labels + 1) % 3
    before = clf.coef_
    with pytest.raises(InputError, match="nothing was forgotten"):
        clf.forget(gone, labels)
    np.testing.assert_array_equal(clf.coef_, before)


@pytest.mark.parametrize("learned", [1.0, 0.3])
@pytest.mark.parametrize("factor", [0.5, 1.1, 2.0])
@pytest.mark.filterwarnings("ignore:these examples were removed:UserWarning")
def test_forget_refuses_another_weight_than_all_were_learned_with(learned: float, factor: float) -> None:
    x, y = rows(400)
    weight = np.full(400, learned)
    clf = IncrementalClassifier(size=10).fit(x, y, sample_weight=weight)  # the Gram matrix shows nothing
    before = clf.coef_
    with pytest.raises(InputError, match=r"learned with other weights: nothing was forgotten"):
        clf.forget(x[:5], y[:5], sample_weight=weight[:5] * factor)
    np.testing.assert_array_equal(clf.coef_, before)
    clf.forget(x[:5], y[:5], sample_weight=weight[:5])
    regressor = IncrementalRegressor(size=10).fit(x, x[:, 0], sample_weight=weight)
    with pytest.raises(InputError, match=r"learned with other weights"):
        regressor.forget(x[:5], x[:5, 0], sample_weight=weight[:5] * factor)


def test_forget_refuses_rows_outside_the_range_that_was_learned() -> None:
    x, y = rows(400)
    clf = IncrementalClassifier(size=10).fit(x, y)
    with pytest.raises(InputError, match="nothing was forgotten"):
        clf.forget(x[:1] + 100, y[:1])


@pytest.mark.filterwarnings("ignore:these examples were removed:UserWarning")
def test_forget_twice_is_refused_for_numbers_too() -> None:
    x, _ = rows()
    regressor = IncrementalRegressor(size=300).fit(x, x @ np.arange(5.0))
    regressor.forget(x[:20], x[:20] @ np.arange(5.0))
    with pytest.raises(InputError, match="nothing was forgotten"):
        regressor.forget(x[:20], x[:20] @ np.arange(5.0))


@pytest.mark.filterwarnings("ignore:these examples were removed:UserWarning")
@pytest.mark.parametrize("saved", [False, True])
def test_ledger_recognises_rows_that_the_sums_cannot(tmp_path: Path, saved: bool) -> None:
    x, y = rows(400)
    clf = IncrementalClassifier(size=10, ledger=True).partial_fit(x[:200], y[:200])
    clf = clf + clf.fresh().partial_fit(x[200:], y[200:])
    if saved:
        clf.save(tmp_path / "clf")
        clf = IncrementalClassifier.load(tmp_path / "clf")
    clf.forget(x[190:210], y[190:210])
    before = clf.coef_
    for gone, labels in ((x[190:191], y[190:191]), (x[:1] + 1e-6, y[:1]), (x[:1], (y[:1] + 1) % 3)):
        with pytest.raises(InputError, match=r"row 0 .* was not learned"):
            clf.forget(gone, labels)
    np.testing.assert_array_equal(clf.coef_, before)
    clf.forget(x[:1], y[:1])


@pytest.mark.filterwarnings("ignore:these examples were removed:UserWarning")
def test_ledger_merges_ledgers_with_other_salts() -> None:
    x, y = rows(400)
    params: dict[str, Any] = {"size": 10, "standardize": False, "ledger": True}
    a = IncrementalClassifier(**params).fit(x[:200], y[:200])
    b = IncrementalClassifier(**params).fit(x[200:], y[200:])
    both = a + b
    both.forget(x[150:250], y[150:250])
    with pytest.raises(InputError, match="was not learned"):
        both.forget(x[240:241], y[240:241])
    with pytest.raises(InputError, match="one has a ledger"):
        a.merge(IncrementalClassifier(size=10, standardize=False).fit(x, y))


@pytest.mark.filterwarnings("ignore:these examples were removed:UserWarning")
def test_learn_forget_learn_returns_to_the_same_weights() -> None:
    x, y = rows(300)
    clf = IncrementalClassifier(size=100).fit(x, y)
    before = clf.coef_
    clf.forget(x[100:], y[100:]).partial_fit(x[100:], y[100:])
    np.testing.assert_allclose(clf.coef_, before, rtol=0, atol=1e-6 * np.abs(before).max())


def test_merge_takes_sums_that_were_centred_elsewhere() -> None:
    x, y = rows(400)
    network = Offset()
    a = IncrementalClassifier(network=network).fit(x[:200], y[:200])
    b = IncrementalClassifier(network=network).fit(x[200:] + 1, y[200:])
    together = IncrementalClassifier(network=network).fit(np.concatenate([x[:200], x[200:] + 1]), y)
    np.testing.assert_allclose((a + b).decision_function(x), together.decision_function(x), atol=1e-6)


# ── weights ─────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("factor", [1 / 240, 1e-6, 100.0, 1e6])
def test_weights_of_any_scale_give_the_same_classifier(factor: float) -> None:
    x, y = rows()
    draw = np.random.default_rng(1)
    for weight in (np.ones(len(x)), draw.uniform(0.5, 2, len(x))):
        one = IncrementalClassifier(size=100).fit(x, y, sample_weight=weight)
        other = IncrementalClassifier(size=100).fit(x, y, sample_weight=weight * factor)
        assert other.ridge_ == pytest.approx(one.ridge_, rel=1e-6)
        np.testing.assert_allclose(other.predict_proba(x), one.predict_proba(x), atol=1e-6)


# ── files ───────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("n", [60, 240])
def test_predict_from_a_file_solves_nothing(n: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = images(n)
    clf = IncrementalClassifier(size=20).fit(x, y)
    clf.save(tmp_path / "clf")

    def fail(*_: Any) -> Any:
        raise AssertionError("solved again")

    monkeypatch.setattr(solve, "_factor", fail)
    monkeypatch.setattr(PatchFeatures, "make", fail)
    again = IncrementalClassifier.load(tmp_path / "clf")
    np.testing.assert_array_equal(again.predict_proba(x), clf.predict_proba(x))


@pytest.mark.parametrize("method", ["closed-form", "lda"])
@pytest.mark.parametrize("n", [60, 240])
def test_few_examples_are_solved_in_their_span(n: int, method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With fewer examples than a third of the features, and with the same result as of all features."""
    x, y = images(n + 40)
    new = x[n:].astype(np.float64)
    new[:10] = new[:10].transpose(0, 1, 3, 2)[:, :, ::-1]  # unlike the others
    sizes, factor = [0], solve._factor

    def measured(gram: torch.Tensor, lam: float) -> Any:
        sizes.append(len(gram))
        return factor(gram, lam)

    with monkeypatch.context() as patch:
        patch.setattr(solve, "_factor", measured)
        span = IncrementalClassifier(size=120, method=method, dtype="float64").fit(x[:n], y[:n])
        found = span.coef_, span.predict_proba(new), span.novelty(new), span.ridge_
    assert 0 < max(sizes) < n and len(span.coef_.T) >= 3 * n
    monkeypatch.setattr(Statistics, "low_rank", lambda self, gram: None)
    whole = IncrementalClassifier(size=120, method=method, dtype="float64").fit(x[:n], y[:n])
    assert whole.ridge_ == pytest.approx(found[3])
    np.testing.assert_allclose(found[0], whole.coef_, rtol=0, atol=1e-7 * np.abs(whole.coef_).max())
    np.testing.assert_allclose(found[1], whole.predict_proba(new), rtol=0, atol=1e-6)
    np.testing.assert_allclose(found[2], whole.novelty(new), rtol=0, atol=1e-6)
    for each in (span, whole):  # by updates of the solution
        each.partial_fit(x[n : n + 2], y[n : n + 2])
    np.testing.assert_allclose(span.predict_proba(new), whole.predict_proba(new), rtol=0, atol=1e-6)


def test_novelty_from_a_file_of_few_images_makes_no_features_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y = images(80)
    clf = IncrementalClassifier(size=20).fit(x, y)
    clf.save(tmp_path / "clf")
    expected = clf.novelty(x)

    def fail(*_: Any) -> Any:
        raise AssertionError("made again")

    monkeypatch.setattr(PatchFeatures, "make", fail)
    monkeypatch.setattr(solve, "_chosen", fail)
    again = IncrementalClassifier.load(tmp_path / "clf")
    np.testing.assert_allclose(again.novelty(x), expected, atol=1e-9)


def test_a_file_with_a_solution_goes_on_exactly_and_takes_another_ridge(tmp_path: Path) -> None:
    x, y = rows(120)
    clf = IncrementalClassifier(size=20).fit(x[:60], y[:60])
    clf.save(tmp_path / "clf")
    again = IncrementalClassifier.load(tmp_path / "clf")
    np.testing.assert_array_equal(
        again.partial_fit(x[60:], y[60:]).predict_proba(x), clf.partial_fit(x[60:], y[60:]).predict_proba(x)
    )
    assert IncrementalClassifier.load(tmp_path / "clf", ridge=3.0).ridge_ == 3.0


@pytest.mark.parametrize("name", ["sums", "held"])
def test_files_of_version_0_2_0_open_and_go_on(name: str, tmp_path: Path) -> None:
    folder = Path(__file__).parent / "files"
    expected = np.load(folder / f"closed_form-0.2.0-{name}.npz")
    clf = IncrementalClassifier.load(folder / f"closed_form-0.2.0-{name}.safetensors")
    np.testing.assert_allclose(clf.decision_function(expected["x"]), expected["scores"], atol=1e-9)
    clf.partial_fit(expected["x"], expected["y"])
    assert clf.score(expected["x"], expected["y"]) > 0.9
    clf.save(tmp_path / "again")
    again = IncrementalClassifier.load(tmp_path / "again")
    np.testing.assert_array_equal(again.predict_proba(expected["x"]), clf.predict_proba(expected["x"]))


@pytest.mark.parametrize("shape", [(8, 8), (1, 8, 8), (2, 4, 8), (4, 2, 2, 4)])
def test_inputs_of_every_shape_are_learned_in_two_calls(shape: tuple[int, ...]) -> None:
    x, y = load_digits(return_X_y=True)
    x = x.reshape(-1, *shape)
    clf = IncrementalClassifier(size=100)
    for part in (slice(0, 300), slice(300, 600), slice(300, 600)):
        clf.partial_fit(x[part], y[part])
    assert clf.score(x[600:], y[600:]) > 0.5
