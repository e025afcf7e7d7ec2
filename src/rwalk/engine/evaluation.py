"""Measurements of a fleet: accuracies by both heads, calibration, and outputs of examples."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rwalk import metrics
from rwalk.data.streams import Stream
from rwalk.decision_rules import Logits
from rwalk.errors import InputError
from rwalk.metrics import HEADS

if TYPE_CHECKING:
    from rwalk.engine.fleet import Fleet

AT_ONCE = 4096  # examples in a forward pass, over all runs


class MeasureOptions(NamedTuple):
    """Measurements in addition to the accuracies at every task's end.

    every        steps between two measurements of accuracies within a task; None for no such measurement
    calibration  whether expected calibration errors are measured at every task's end
    """

    every: int | None = None
    calibration: bool = False


def evaluate(fleet: Fleet, stream: Stream, k: int) -> dict[str, NDArray[np.float64]]:
    """Accuracies [R, k + 1] on tasks 0..k by both heads, from one forward pass over their test data.

    Hits are counted in integers, so that an accuracy is a fraction rounded once, to float64. A network that gives
    non-finite scores has no accuracy: NaN.
    """
    broken = torch.zeros(fleet.runs, dtype=torch.bool, device=fleet.theta.device)
    hits = {head: torch.zeros(fleet.runs, k + 1, dtype=torch.int64, device=fleet.theta.device) for head in HEADS}
    for scores, y, task in _scored(fleet, stream, k):
        for head, each in scores.items():
            best, guess = each.max(-1)
            hits[head].index_add_(1, task, (guess == y).long())
            broken |= ~best.isfinite().all(-1)
    counts = np.array([len(task.test) for task in stream.tasks[: k + 1]])
    unknown = broken.cpu().numpy()[:, None]
    return {head: np.where(unknown, np.nan, count.cpu().numpy() / counts) for head, count in hits.items()}


def calibration(fleet: Fleet, stream: Stream, k: int) -> dict[str, NDArray[np.float64]]:
    """Expected calibration errors [R, k + 1] on tasks 0..k; NaN of stopped runs, and without probabilities."""
    found = {head: np.full((fleet.runs, k + 1), np.nan) for head in HEADS}
    if not isinstance(fleet.learner.classifier, Logits):
        return found
    alive = [reason is None for reason in fleet.stopped]
    confidences: dict[str, list[Tensor]] = {head: [] for head in HEADS}
    correct: dict[str, list[Tensor]] = {head: [] for head in HEADS}
    owners = []
    for scores, y, task in _scored(fleet, stream, k):
        owners.append(task)
        for head, each in scores.items():
            confidence, guess = each.softmax(-1).max(-1)
            confidences[head].append(confidence)
            correct[head].append(guess == y)
    owner = torch.cat(owners).cpu().numpy()
    for head in HEADS:
        sure, hit = (torch.cat(each[head], dim=1).double().cpu().numpy()[alive] for each in (confidences, correct))
        errors = [metrics.calibration_error(sure[:, owner == j], hit[:, owner == j]) for j in range(k + 1)]
        found[head][alive] = np.stack(errors, axis=-1)
    return found


@torch.no_grad()
def _scored(fleet: Fleet, stream: Stream, k: int) -> Iterator[tuple[dict[str, Tensor], Tensor, Tensor]]:
    """The test data of tasks 0..k in portions: scores [R, n, C] by head, labels [n] and tasks [n]."""
    theta = fleet.theta
    stream = stream.to(theta.device, theta.dtype)
    tests = [task.test for task in stream.tasks[: k + 1]]
    owner = torch.repeat_interleave(torch.tensor([len(test) for test in tests])).to(theta.device)
    own = torch.stack([fleet.mask(task.classes) for task in stream.tasks[: k + 1]])
    every = fleet.mask(stream.seen(k))
    fitted = _fitted(fleet)
    size = max(1, AT_ONCE // fleet.runs)
    for index, task in zip(torch.cat(tests).split(size), owner.split(size), strict=True):
        x, y = stream.test_batch(index)
        both = fleet.net.forward_with_features(x.expand(fleet.runs, *x.shape), train=False)
        scores = fleet.learner.classifier.scores(*both, fitted)
        yield {"single": scores + every, "multi": scores + own[task]}, y, task


def _fitted(fleet: Fleet) -> Any:
    """The classifier's fit to the exemplars, class by class; None if it needs none."""
    if not fleet.learner.classifier.needs_exemplars:
        return None
    assert fleet.memory is not None
    groups = sorted(fleet.memory.groups, key=lambda group: group.label)
    features, _ = outputs(fleet, torch.cat([group.examples for group in groups], dim=1))
    labels = [group.label for group in groups for _ in range(group.examples.shape[1])]
    return fleet.learner.classifier.fit(features, labels)


@torch.no_grad()
def outputs(fleet: Fleet, examples: Tensor) -> tuple[Tensor, Tensor]:
    """Features and logits of training examples [R, N], in evaluation mode."""
    size = max(1, AT_ONCE // fleet.runs)
    parts = [
        fleet.net.forward_with_features(fleet.stream.batch(index)[0], train=False)
        for index in examples.to(fleet.theta.device).split(size, dim=1)
    ]
    features, logits = zip(*parts, strict=True)
    return torch.cat(features, dim=1), torch.cat(logits, dim=1)


def empty_measurements(fleet: Fleet) -> dict[str, NDArray[np.float64]]:
    """Arrays of NaN for all measurements: "within.HEAD" [R, k, m, j] and "calibration.HEAD" [R, k, j]."""
    every, runs, tasks = fleet.measures.every, fleet.runs, len(fleet.stream)
    shapes: dict[str, tuple[int, ...]] = {}
    if every is not None:
        if every < 1:
            raise InputError(f"accuracies are measured every 1 step or more, not every {every}")
        if fleet.learner.classifier.needs_exemplars:
            raise InputError(
                "within a task its classes have no exemplars yet, which the classifier needs: drop measure_every"
            )
        longest = max(fleet.learner.steps(fleet.training, fleet.stream, k) for k in range(tasks))
        if every > longest:
            raise InputError(f"no task is longer than {longest} steps: measure every {longest} or more often")
        shapes["within"] = (runs, tasks, longest // every, tasks)
    if fleet.measures.calibration:
        shapes["calibration"] = (runs, tasks, tasks)
    return {f"{name}.{head}": np.full(shape, np.nan) for name, shape in shapes.items() for head in HEADS}


def measure_within(fleet: Fleet) -> None:
    """Measure the accuracies on all tasks so far, if they are due at this step."""
    every, k = fleet.measures.every, fleet.task
    if every is not None and fleet.step % every == 0:
        alive = [reason is None for reason in fleet.stopped]
        for head, values in evaluate(fleet, fleet.stream, k).items():
            fleet.measured[f"within.{head}"][alive, k, fleet.step // every - 1, : k + 1] = values[alive]


def measure_task(fleet: Fleet) -> None:
    """Measure accuracies at a task's end, and calibration if required; stop runs that have none."""
    k, accuracies = fleet.task, evaluate(fleet, fleet.stream, fleet.task)
    for run in np.flatnonzero(np.isnan(accuracies["single"]).any(axis=1)).tolist():
        fleet.stop(run, f"its outputs are not finite after task {k + 1}")
    alive = [reason is None for reason in fleet.stopped]
    for head, values in accuracies.items():
        fleet.accuracy[head][alive, k, : k + 1] = values[alive]
    if fleet.measures.calibration:
        for head, values in calibration(fleet, fleet.stream, k).items():
            fleet.measured[f"calibration.{head}"][:, k, : k + 1] = values
