"""What a fleet has learned: accuracies by both heads, and the outputs of examples."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rwalk.data.streams import Stream
from rwalk.engine.lessons import mask_of
from rwalk.metrics import HEADS

if TYPE_CHECKING:
    from rwalk.engine.fleet import Fleet

AT_ONCE = 4096  # examples in a forward pass, over all runs


@torch.no_grad()
def evaluate(fleet: Fleet, stream: Stream, k: int) -> dict[str, NDArray[np.float64]]:
    """Accuracies [R, k + 1] on tasks 0..k by both heads, from one forward pass over their test data."""
    theta = fleet.theta
    stream = stream.to(theta.device, theta.dtype)
    tests = [task.test for task in stream.tasks[: k + 1]]
    owner = torch.repeat_interleave(torch.tensor([len(test) for test in tests])).to(theta.device)
    own = torch.stack([mask_of(fleet, task.classes) for task in stream.tasks[: k + 1]])
    every = mask_of(fleet, stream.seen(k))
    fitted = _fitted(fleet)
    hits = {head: theta.new_zeros(fleet.runs, k + 1) for head in HEADS}
    size = max(1, AT_ONCE // fleet.runs)
    for index, task in zip(torch.cat(tests).split(size), owner.split(size), strict=True):
        x, y = stream.test_batch(index)
        outputs = fleet.net.forward_with_features(x.expand(fleet.runs, *x.shape), train=False)
        scores = fleet.learner.classifier.scores(*outputs, fitted)
        for head, mask in (("single", every), ("multi", own[task])):
            hits[head].index_add_(1, task, ((scores + mask).argmax(-1) == y).to(theta.dtype))
    counts = torch.bincount(owner, minlength=k + 1)
    return {head: (count / counts).double().cpu().numpy() for head, count in hits.items()}


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
