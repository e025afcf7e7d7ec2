"""The measures against slow, obvious loops; what is missing, what is wrong, the paper's example."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from rwalk import metrics
from rwalk.errors import InputError

Floats = NDArray[np.float64]


@pytest.fixture(autouse=True)
def warnings_are_errors() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


@st.composite
def accuracy_matrices(draw: st.DrawFn) -> Floats:
    """a[2, 3, K, K] with NaN above the diagonal and, in some runs, from some task on."""
    tasks = draw(st.integers(1, 6))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    a = rng.random((2, 3, tasks, tasks))
    a[..., ~np.tri(tasks, dtype=bool)] = np.nan
    for run in np.ndindex(2, 3):
        a[run][draw(st.integers(1, tasks)) :] = np.nan
    return a


def mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else math.nan


def slow_forgetting(a: Floats, k: int, baseline: str) -> list[float]:
    forgot = []
    for j in range(1, k):
        measured = [float(a[after - 1, j - 1]) for after in range(j, k)]
        history = [accuracy for accuracy in measured if not math.isnan(accuracy)]
        before = {
            "max": max(history, default=math.nan),
            "own": float(a[j - 1, j - 1]),
            "mean": mean(history),
        }
        forgot.append(before[baseline] - float(a[k - 1, j - 1]))
    return forgot


@given(accuracy_matrices(), st.data())
def test_measures_equal_slow_loops_run_by_run(a: Floats, data: st.DataObject) -> None:
    tasks = a.shape[-1]
    k = data.draw(st.integers(1, tasks))
    baseline = data.draw(st.sampled_from(metrics.BASELINES))
    reference = np.random.default_rng(0).random((3, tasks))

    curve = metrics.average_accuracies(a)
    at_k = metrics.average_accuracy(a, k)
    forgot = metrics.task_forgetting(a, k, baseline)
    mean_forgot = metrics.forgetting(a, k, baseline)
    refused = metrics.intransigence(a, reference, k)
    transfer = metrics.backward_transfer(a, k)
    learned = metrics.learning_accuracy(a)

    assert curve.shape == (2, 3, tasks)
    assert forgot.shape == (2, 3, k - 1)
    for i, j in np.ndindex(2, 3):
        run = a[i, j]
        np.testing.assert_allclose(at_k[i, j], mean([run[k - 1, t] for t in range(k)]))
        np.testing.assert_allclose(curve[i, j, k - 1], at_k[i, j])
        np.testing.assert_allclose(forgot[i, j], slow_forgetting(run, k, baseline))
        np.testing.assert_allclose(mean_forgot[i, j], mean(slow_forgetting(run, k, baseline)))
        np.testing.assert_allclose(refused[i, j], reference[j, k - 1] - run[k - 1, k - 1])
        np.testing.assert_allclose(
            transfer[i, j], mean([run[k - 1, t] - run[t, t] for t in range(k - 1)]), atol=1e-12
        )
        np.testing.assert_allclose(learned[i, j], mean([run[t, t] for t in range(tasks)]))


@pytest.mark.parametrize(("baseline", "expected"), [("max", 0.3), ("own", 0.2), ("mean", 0.2)])
def test_the_papers_worked_example(baseline: str, expected: float) -> None:
    a = np.full((4, 4), np.nan)
    a[:, 0] = [0.7, 0.8, 0.6, 0.5]
    assert metrics.task_forgetting(a, baseline=baseline)[0] == pytest.approx(expected)


def test_the_papers_example_sees_positive_backward_transfer_on_the_way() -> None:
    a = np.full((4, 4), np.nan)
    a[:, 0] = [0.7, 0.8, 0.6, 0.5]
    assert metrics.task_forgetting(a, k=2)[0] == pytest.approx(-0.1)
    assert metrics.backward_transfer(a, k=2) == pytest.approx(0.1)


def test_a_run_that_stopped_early_is_nan_alone() -> None:
    a = np.stack([np.tri(3), np.tri(3)])
    a[1, 2] = np.nan
    assert np.isnan(metrics.forgetting(a)).tolist() == [False, True]
    assert np.isnan(metrics.average_accuracies(a)).tolist() == [[False] * 3, [False, False, True]]
    assert np.isnan(metrics.learning_accuracy(a)).tolist() == [False, True]


def test_an_evaluation_left_out_on_the_way_does_not_hide_forgetting() -> None:
    a = np.array([[0.9, np.nan, np.nan], [np.nan, 0.8, np.nan], [0.6, 0.8, 0.7]])
    np.testing.assert_allclose(metrics.task_forgetting(a), [0.3, 0.0])
    np.testing.assert_allclose(metrics.task_forgetting(a, baseline="mean"), [0.3, 0.0])


def test_accuracy_before_a_task_was_learned_is_no_knowledge_to_forget() -> None:
    a = np.array([[0.5, 1.0, 1.0], [0.5, 0.6, 1.0], [0.5, 0.6, 0.7]])
    for baseline in metrics.BASELINES:
        np.testing.assert_allclose(metrics.task_forgetting(a, baseline=baseline), [0.0, 0.0], atol=1e-12)


@pytest.mark.parametrize("baseline", metrics.BASELINES)
def test_the_first_task_has_nothing_to_forget(baseline: str) -> None:
    a = np.ones((5, 1, 1))
    assert metrics.task_forgetting(a, baseline=baseline).shape == (5, 0)
    assert np.isnan(metrics.forgetting(a, baseline=baseline)).all()
    assert np.isnan(metrics.backward_transfer(a)).all()


def test_nothing_forgotten_is_zero_and_not_minus_zero() -> None:
    assert not np.signbit(metrics.backward_transfer(np.tri(3)))


def test_null_of_a_stored_result_is_nan() -> None:
    assert metrics.forgetting([[0.75, None], [0.5, 0.25]]) == 0.25


def test_references_fit_runs_or_are_shared() -> None:
    a = np.zeros((2, 3, 3))
    np.testing.assert_array_equal(metrics.intransigence(a, [0.1, 0.2, np.nan], k=2), [0.2, 0.2])
    np.testing.assert_array_equal(metrics.intransigence(a, [[0, 0, 0.3], [0, 0, np.nan]]), [0.3, np.nan])


@given(accuracy_matrices())
def test_what_is_given_is_never_changed(a: Floats) -> None:
    before, chance = a.copy(), np.full(a.shape[-1], 0.5)
    a.flags.writeable = chance.flags.writeable = False
    for baseline in metrics.BASELINES:
        metrics.forgetting(a, baseline=baseline)
    metrics.average_accuracies(a)
    metrics.intransigence(a, chance)
    metrics.learning_accuracy(a)
    np.testing.assert_array_equal(a, before)


@pytest.mark.parametrize("bad", [0.5, [0.5, 0.6], np.zeros((2, 3)), np.zeros((4, 0, 0)), [[0.1], [0.2, 0.3]], "a"])
def test_what_is_no_accuracy_matrix_is_refused(bad: object) -> None:
    for measure in (metrics.average_accuracy, metrics.average_accuracies, metrics.task_forgetting):
        with pytest.raises(InputError, match="accuracies must be") as refusal:
            measure(bad)  # type: ignore[operator]
        assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("k", [0, -1, 4, 1.5, "2"])
def test_a_task_outside_the_matrix_is_refused(k: object) -> None:
    with pytest.raises(InputError, match="k must be a task from 1 to 3"):
        metrics.forgetting(np.tri(3), k)  # type: ignore[arg-type]


def test_an_unknown_baseline_is_refused_even_for_the_first_task() -> None:
    with pytest.raises(InputError, match="unknown baseline 'maxx': did you mean 'max'"):
        metrics.forgetting(np.tri(3), k=1, baseline="maxx")


@pytest.mark.parametrize("shape", [(2,), (5, 3), (2, 4)])
def test_values_that_do_not_fit_the_tasks_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match="one value for each of 3 tasks"):
        metrics.intransigence(np.zeros((2, 3, 3)), np.zeros(shape))


# ── within tasks, and of predictions ──────────────────────────────────────────────────────────────────────────


@st.composite
def measured_within(draw: st.DrawFn) -> tuple[Floats, Floats]:
    """a[2, K, K] and within[2, K, M, K] of one run each; every task measured at least once, some more often."""
    tasks, most = draw(st.integers(2, 5)), draw(st.integers(1, 4))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    a, within = rng.random((2, tasks, tasks)), rng.random((2, tasks, most, tasks))
    a[..., ~np.tri(tasks, dtype=bool)] = np.nan
    for k in range(tasks):
        within[:, k, draw(st.integers(1, most)) :] = np.nan
        within[:, k, :, k + 1 :] = np.nan
    return a, within


@given(measured_within())
def test_measures_within_tasks_equal_slow_loops(both: tuple[Floats, Floats]) -> None:
    a, within = both
    tasks = a.shape[-1]
    for run in range(2):
        gaps = []
        for k in range(1, tasks):
            for j in range(k):
                seen = [float(v) for v in within[run, k, :, j] if not math.isnan(v)]
                gaps.append(max(0.0, min(a[run, k - 1, j], a[run, k, j]) - min(seen)))
        assert metrics.stability_gap(a, within)[run] == pytest.approx(mean(gaps))


def test_what_is_lost_for_good_is_no_gap() -> None:
    a = [[0.9, math.nan], [0.2, 0.7]]
    assert float(metrics.stability_gap(a, [[[0.5, math.nan]], [[0.2, 0.7]]])) == 0.0
    assert math.isnan(float(metrics.stability_gap(a, [[[0.5, math.nan]], [[math.nan, 0.7]]]))), "not measured"


@given(st.integers(0, 2**32 - 1), st.integers(1, 20), st.integers(1, 40))
def test_calibration_errors_equal_a_slow_loop_over_bins(seed: int, bins: int, n: int) -> None:
    rng = np.random.default_rng(seed)
    said, right = rng.random((3, n)), rng.random((3, n)) < 0.5
    said[0, 0] = 1.0  # belongs to the last bin
    for run in range(3):
        error = 0.0
        for each in range(bins):
            inside = [i for i in range(n) if min(int(said[run, i] * bins), bins - 1) == each]
            if inside:
                gap = mean([float(said[run, i]) for i in inside]) - mean([float(right[run, i]) for i in inside])
                error += len(inside) / n * abs(gap)
        assert metrics.calibration_error(said, right, bins)[run] == pytest.approx(error)


def test_certain_and_always_right_is_perfectly_calibrated() -> None:
    assert float(metrics.calibration_error(np.ones(5), np.ones(5))) == 0.0
    assert float(metrics.calibration_error(np.ones(5), np.zeros(5))) == 1.0
    assert math.isnan(float(metrics.calibration_error(np.ones(0), np.ones(0))))


@pytest.mark.parametrize(
    ("call", "why"),
    [
        (lambda: metrics.calibration_error([1.5], [1]), "from 0 to 1"),
        (lambda: metrics.calibration_error([0.5], [1], bins=0), "at least 1 bin"),
        (lambda: metrics.stability_gap(np.eye(2), np.eye(2)), r"within must be \[..., k, m, j\]"),
    ],
)
def test_measures_of_more_refuse_what_they_cannot_read(call: Any, why: str) -> None:
    with pytest.raises(InputError, match=why):
        call()
