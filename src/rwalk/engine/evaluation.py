"""What a fleet has learned: accuracies by both heads, and the outputs of examples."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rwalk import metrics
from rwalk.classifiers import Logits
from rwalk.data.streams import Stream
from rwalk.engine.lessons import mask_of
from rwalk.errors import InputError
from rwalk.metrics import HEADS

if TYPE_CHECKING:
    from rwalk.engine.fleet import Fleet

AT_ONCE = 4096  # examples in a forward pass, over all runs


class Measures(NamedTuple):
    """What is measured in addition to the accuracies at every task's end.

    every        accuracies within a task, every so many steps
    calibration  expected calibration errors, with the accuracies at every task's end
    """

    every: int | None = None
    calibration: bool = False


def evaluate(fleet: Fleet, stream: Stream, k: int) -> dict[str, NDArray[np.float64]]:
    """Accuracies [R, k + 1] on tasks 0..k by both heads, from one forward pass over their test data.

    Hits are counted in integers, so that an accuracy is a fraction rounded once, to float64.
    """
    hits = {head: torch.zeros(fleet.runs, k + 1, dtype=torch.int64, device=fleet.theta.device) for head in HEADS}
    for scores, y, task in _scored(fleet, stream, k):
        for head, each in scores.items():
            hits[head].index_add_(1, task, (each.argmax(-1) == y).long())
    counts = np.array([len(task.test) for task in stream.tasks[: k + 1]])
    return {head: count.cpu().numpy() / counts for head, count in hits.items()}


def calibration(fleet: Fleet, stream: Stream, k: int) -> dict[str, NDArray[np.float64]]:
    """Expected calibration errors [R, k + 1] on tasks 0..k; NaN where no probabilities are predicted."""
    if not isinstance(fleet.learner.classifier, Logits):
        return {head: np.full((fleet.runs, k + 1), np.nan) for head in HEADS}
    said: dict[str, list[Tensor]] = {head: [] for head in HEADS}
    right: dict[str, list[Tensor]] = {head: [] for head in HEADS}
    owners = []
    for scores, y, task in _scored(fleet, stream, k):
        owners.append(task)
        for head, each in scores.items():
            confidence, guess = each.softmax(-1).max(-1)
            said[head].append(confidence)
            right[head].append(guess == y)
    owner = torch.cat(owners).cpu().numpy()
    found: dict[str, NDArray[np.float64]] = {}
    for head in HEADS:
        sure, hit = (torch.cat(each[head], dim=1).double().cpu().numpy() for each in (said, right))
        errors = [metrics.calibration_error(sure[:, owner == j], hit[:, owner == j]) for j in range(k + 1)]
        found[head] = np.stack(errors, axis=-1)
    return found


@torch.no_grad()
def _scored(fleet: Fleet, stream: Stream, k: int) -> Iterator[tuple[dict[str, Tensor], Tensor, Tensor]]:
    """The test data of tasks 0..k, in portions: scores [R, n, C] by head, labels [n] and tasks [n]."""
    theta = fleet.theta
    stream = stream.to(theta.device, theta.dtype)
    tests = [task.test for task in stream.tasks[: k + 1]]
    owner = torch.repeat_interleave(torch.tensor([len(test) for test in tests])).to(theta.device)
    own = torch.stack([mask_of(fleet, task.classes) for task in stream.tasks[: k + 1]])
    every = mask_of(fleet, stream.seen(k))
    fitted = _fitted(fleet)
    size = max(1, AT_ONCE // fleet.runs)
    for index, task in zip(torch.cat(tests).split(size), owner.split(size), strict=True):
        x, y = stream.test_batch(index)
        outputs = fleet.net.forward_with_features(x.expand(fleet.runs, *x.shape), train=False)
        scores = fleet.learner.classifier.scores(*outputs, fitted)
        yield {"single": scores + every, "multi": scores + own[task]}, y, task


def room(fleet: Fleet) -> dict[str, NDArray[np.float64]]:
    """For all measurements, NaN until made: "within.HEAD" [R, k, m, j], "calibration.HEAD" [R, k, j]."""
    tasks, wanted = fleet.stream.tasks, fleet.measures
    found: dict[str, NDArray[np.float64]] = {}
    if wanted.every is not None:
        if wanted.every < 1:
            raise InputError(f"accuracies are measured every 1 step or more, not every {wanted.every}")
        if fleet.learner.classifier.needs_exemplars:
            raise InputError(
                "within a task its classes have no exemplars yet, which the classifier needs: drop measure_every"
            )
        longest = max(fleet.learner.steps(fleet.training, fleet.stream, k) for k in range(len(tasks)))
        if wanted.every > longest:
            raise InputError(f"no task is longer than {longest} steps: measure every {longest} or more often")
        shape = (fleet.runs, len(tasks), longest // wanted.every, len(tasks))
        found |= {f"within.{head}": np.full(shape, np.nan) for head in HEADS}
    if wanted.calibration:
        square = (fleet.runs, len(tasks), len(tasks))
        found |= {f"calibration.{head}": np.full(square, np.nan) for head in HEADS}
    return found


def measure_within(fleet: Fleet) -> None:
    """Accuracies on all tasks so far, if they are due."""
    every, k = fleet.measures.every, fleet.task
    if every is not None and fleet.step % every == 0:
        alive = [reason is None for reason in fleet.stopped]
        for head, values in evaluate(fleet, fleet.stream, k).items():
            fleet.measured[f"within.{head}"][alive, k, fleet.step // every - 1, : k + 1] = values[alive]


def measure_calibration(fleet: Fleet) -> None:
    if fleet.measures.calibration:
        alive = [reason is None for reason in fleet.stopped]
        for head, values in calibration(fleet, fleet.stream, fleet.task).items():
            fleet.measured[f"calibration.{head}"][alive, fleet.task, : fleet.task + 1] = values[alive]


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


def _fitted(fleet: Fleet) -> Any:
    """What the classifier fits on the exemplars, class by class."""
    if not fleet.learner.classifier.needs_exemplars:
        return None
    assert fleet.memory is not None
    groups = sorted(fleet.memory.groups, key=lambda group: group.label)
    features, _ = outputs(fleet, torch.cat([group.examples for group in groups], dim=1))
    labels = [group.label for group in groups for _ in range(group.examples.shape[1])]
    return fleet.learner.classifier.fit(features, labels)
