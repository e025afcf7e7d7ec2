"""Measures of an accuracy matrix: average accuracy, forgetting, intransigence, transfer, and within-task measures.

Every measure is a pure function of a[..., k, j], the accuracy on task j after training up to task k. Leading
dimensions are runs. Tasks are counted from 1, as the paper counts them, and `k=None` means the last one.

A missing measurement is NaN, and exactly the measures that need it become NaN. A run that stopped early therefore
does not affect the others. Above the diagonal are tasks not yet learned, which no measure uses.

Two measures need more than that: `stability_gap` accuracies within tasks, `calibration_error` predictions.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rwalk.errors import InputError, unknown

__all__ = [
    "BASELINES",
    "HEADS",
    "average_accuracies",
    "average_accuracy",
    "average_incremental_accuracy",
    "backward_transfer",
    "calibration_error",
    "forgetting",
    "intransigence",
    "learning_accuracy",
    "stability_gap",
    "task_forgetting",
]

Floats = NDArray[np.float64]

HEADS = ("single", "multi")
"""A class is sought among all that were seen (single), or among those of its task (multi)."""

BASELINES = ("max", "own", "mean")
"""What was known of a task before task k: its best accuracy (the paper), its first (Lopez-Paz), its mean."""


def average_accuracy(a: ArrayLike, k: int | None = None) -> Floats:
    """A_k, the mean accuracy on tasks 1..k after task k.

    >>> float(average_accuracy([[0.9, np.nan], [0.5, 0.7]]))
    0.6
    """
    a = _accuracy_matrix(a)
    k = _task_number(k, a)
    return _mean(a[..., k - 1, :k])


def average_accuracies(a: ArrayLike) -> Floats:
    """A_1 .. A_K, the curve the paper plots.

    >>> average_accuracies([[0.9, np.nan], [0.5, 0.7]]).tolist()
    [0.9, 0.6]
    """
    a = _accuracy_matrix(a)
    return np.stack([average_accuracy(a, k) for k in range(1, a.shape[-1] + 1)], axis=-1)


def task_forgetting(a: ArrayLike, k: int | None = None, baseline: str = "max") -> Floats:
    """f_j^k = max_{l<k} a_lj − a_kj for each earlier task j < k (eq. fm_msr): known once, and no longer.

    `baseline` replaces the maximum by a_jj ("own", Lopez-Paz and Ranzato's rule) or by the mean over l < k
    ("mean", the paper's expectation). Maximum and mean are over the l ≥ j that were measured.

    The paper's example, a task whose accuracy goes 0.7, 0.8, 0.6, 0.5:

    >>> a = np.full((4, 4), np.nan)
    >>> a[:, 0] = [0.7, 0.8, 0.6, 0.5]
    >>> [round(float(task_forgetting(a, baseline=b)[0]), 3) for b in BASELINES]
    [0.3, 0.2, 0.2]
    """
    a = _accuracy_matrix(a)
    k = _task_number(k, a)
    since_learned = np.where(np.tri(k - 1, dtype=bool), a[..., : k - 1, : k - 1], np.nan)
    return _known_before(since_learned, baseline) - a[..., k - 1, : k - 1]


def forgetting(a: ArrayLike, k: int | None = None, baseline: str = "max") -> Floats:
    """F_k, the mean of f_j^k over the earlier tasks; NaN for k = 1, which has none.

    >>> round(float(forgetting([[0.9, np.nan], [0.5, 0.7]])), 3)
    0.4
    >>> float(forgetting([[0.9, np.nan], [0.5, 0.7]], k=1))
    nan
    """
    return _mean(task_forgetting(a, k, baseline))


def intransigence(a: ArrayLike, reference: ArrayLike, k: int | None = None) -> Floats:
    """I_k = a*_k − a_kk (eq. nlm_msr): how far below joint training on tasks 1..k it learned k.

    `reference[..., k]` holds a*_k for every task, NaN where no reference was trained.

    >>> round(float(intransigence([[0.9, np.nan], [0.5, 0.7]], reference=[0.95, 0.9])), 3)
    0.2
    """
    a = _accuracy_matrix(a)
    k = _task_number(k, a)
    gap: Floats = _per_task(reference, a, "reference")[..., k - 1] - a[..., k - 1, k - 1]
    return gap


def backward_transfer(a: ArrayLike, k: int | None = None) -> Floats:
    """Lopez-Paz and Ranzato's BWT, the mean of a_kj − a_jj over j < k: > 0 if later tasks helped earlier.

    >>> round(float(backward_transfer([[0.9, np.nan], [0.5, 0.7]])), 3)
    -0.4
    """
    return 0.0 - forgetting(a, k, baseline="own")  # 0 − 0 is 0, but −(0) prints as −0


def learning_accuracy(a: ArrayLike) -> Floats:
    """The mean of a_kk: how well each task was learned while it was the newest.

    >>> round(float(learning_accuracy([[0.9, np.nan], [0.5, 0.7]])), 3)
    0.8
    """
    return _mean(np.diagonal(_accuracy_matrix(a), axis1=-2, axis2=-1))


def average_incremental_accuracy(a: ArrayLike) -> Floats:
    """The mean of A_1 .. A_K: how good it was on the whole way (Rebuffi et al. 2017).

    >>> float(average_incremental_accuracy([[0.9, np.nan], [0.5, 0.7]]))
    0.75
    """
    return _mean(average_accuracies(a))


def stability_gap(a: ArrayLike, within: ArrayLike) -> Floats:
    """How far accuracies on earlier tasks fall while a task is learned, and are regained by its end.

    `within[..., k, m, j]` is the m-th accuracy on task j that was measured while task k was learned, NaN where
    there was none. In task k an earlier task j has the gap max(0, min(a_{k−1,j}, a_kj) − min_m within_kmj): a loss
    that stays is forgetting, not a gap. The mean is over all j < k and all k ≥ 2. (De Lange et al. 2023 saw it
    first.)

    >>> a = [[0.9, np.nan], [0.8, 0.7]]
    >>> within = [[[0.5, np.nan], [0.9, np.nan]], [[0.3, 0.6], [0.8, 0.7]]]
    >>> round(float(stability_gap(a, within)), 3)
    0.5
    """
    a = _accuracy_matrix(a)
    lowest = _lowest_within(within, a)
    both_ends = np.minimum(a[..., :-1, :], a[..., 1:, :])
    gaps = np.maximum(both_ends - lowest[..., 1:, :], 0)
    earlier = np.tri(a.shape[-1], k=-1, dtype=bool)[1:]
    return _mean(gaps[..., earlier])


def calibration_error(confidence: ArrayLike, correct: ArrayLike, bins: int = 15) -> Floats:
    """The expected calibration error of predictions [..., n] (Guo et al. 2017), by so many bins of equal width.

    In every bin of confidences the share that was correct should be the mean confidence; the error is how far off
    it is, on the average over predictions. NaN of none.

    >>> round(float(calibration_error([0.9, 0.9, 0.6, 0.6], [1, 1, 0, 1], bins=10)), 3)
    0.1
    """
    said, right = np.broadcast_arrays(_floats(confidence, "confidence"), _floats(correct, "correct"))
    if bins < 1:
        raise InputError(f"calibration needs at least 1 bin, not {bins}")
    if not said.shape or not ((said >= 0) & (said <= 1)).all():
        raise InputError("confidence must be an array of numbers from 0 to 1")
    place = np.minimum((said * bins).astype(int), bins - 1)
    excess = [np.where(place == each, said - right, 0.0).sum(axis=-1) for each in range(bins)]
    count = said.shape[-1]
    off: Floats = np.abs(np.stack(excess, axis=-1)).sum(axis=-1)
    return off / count if count else np.full(off.shape, np.nan)


def _lowest_within(within: ArrayLike, a: Floats) -> Floats:
    """The lowest accuracy on each task within each task [..., k, j]; NaN where none was measured."""
    values = _floats(within, "within")
    if values.ndim < 3 or (values.shape[-3], values.shape[-1]) != a.shape[-2:]:
        raise InputError(f"within must be [..., k, m, j] for accuracies of shape {a.shape}, not {values.shape}")
    lowest: Floats = np.fmin.reduce(values, axis=-2, initial=np.nan)
    return lowest


def _known_before(since_learned: Floats, baseline: str) -> Floats:
    """The baseline of each task j, from its history [..., l, j]; NaN if it was never measured."""
    known: Floats
    if baseline == "max":
        known = np.fmax.reduce(since_learned, axis=-2, initial=np.nan)
    elif baseline == "own":
        known = np.diagonal(since_learned, axis1=-2, axis2=-1)
    elif baseline == "mean":
        measured = ~np.isnan(since_learned)
        times = measured.sum(axis=-2)
        total = since_learned.sum(axis=-2, where=measured)
        known = np.divide(total, times, where=times > 0, out=np.full(times.shape, np.nan))
    else:
        raise unknown("baseline", baseline, BASELINES)
    return known


def _mean(values: Floats) -> Floats:
    """The mean over the last dimension; NaN, without numpy's warning, if that is empty."""
    mean: Floats = values.mean(axis=-1) if values.shape[-1] else np.full(values.shape[:-1], np.nan)
    return mean


def _accuracy_matrix(a: ArrayLike) -> Floats:
    matrix = _floats(a, "accuracies")
    if matrix.ndim < 2 or matrix.shape[-1] != matrix.shape[-2] or not matrix.shape[-1]:
        raise InputError(f"accuracies must be a[..., k, j] with as many k as j, not of shape {matrix.shape}")
    return matrix


def _task_number(k: int | None, a: Floats) -> int:
    tasks: int = a.shape[-1]
    if k is None:
        return tasks
    if k not in range(1, tasks + 1):
        raise InputError(f"k must be a task from 1 to {tasks}, not {k!r}")
    return int(k)


def _per_task(values: ArrayLike, a: Floats, name: str) -> Floats:
    """One value for each run and task of `a`, from values[..., k] or from a single number for all."""
    given, tasks = _floats(values, name), a.shape[-1]
    try:
        return np.broadcast_to(given, (*np.broadcast_shapes(given.shape[:-1], a.shape[:-2]), tasks))
    except ValueError:
        fault = f"{name} of shape {given.shape} does not fit accuracies of shape {a.shape}"
        raise InputError(f"{fault}: give one value for each of {tasks} tasks") from None


def _floats(values: ArrayLike, name: str) -> Floats:
    try:
        return np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"{name} must be an array of numbers: {error}") from None
