"""Squared gradients other than the step's own: of single examples, and of all data of a task."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from rwalk import seeds
from rwalk.engine.vectors import example_squares, is_linear_layers, squares_of_linear_layers
from rwalk.losses import heads

if TYPE_CHECKING:
    from rwalk.engine.fleet import Fleet

AT_ONCE = 4096  # examples in a pass on a GPU, over all runs


def of_examples(fleet: Fleet, x: Tensor, y: Tensor) -> Tensor:
    """The mean of squared per-example gradients of a batch [R, P]."""

    def loss(logits: Tensor, label: Tensor) -> Tensor:
        return F.cross_entropy(logits + fleet.lesson.head_of(label), label)

    with torch.enable_grad():
        return example_squares(fleet.net, x, loss, y)


def expected(fleet: Fleet, x: Tensor) -> Tensor:
    """The mean over a batch of Σ_c p(c) (∇ log p(c))², p being the network's prediction for an example [R, P].

    A squared gradient is weighted by p(c) where the loss is weighted by its root.
    """
    # Examples of one task: the classes that compete with one of them compete with all.
    head = fleet.lesson.head_of(torch.tensor(fleet.stream.tasks[fleet.task].classes[0]))
    labels = (head == 0).nonzero().flatten().tolist()

    def loss(logits: Tensor, label: Tensor) -> Tensor:
        said = (logits + head).log_softmax(-1).gather(-1, label[..., None])[..., 0]
        return -(said.detach().exp().sqrt() * said).sum(-1)

    def losses(logits: Tensor) -> Iterator[Tensor]:
        for label in labels:
            yield loss(logits, torch.full(x.shape[:2], label, device=x.device))

    with torch.enable_grad():
        fast = squares_of_linear_layers(fleet.net, x, losses)
        if fast is not None:
            return fast / x.shape[1]
        each = (torch.full(x.shape[:2], label, device=x.device) for label in labels)
        return sum((example_squares(fleet.net, x, loss, y) for y in each), start=torch.zeros_like(fleet.theta))


def _at_once(fleet: Fleet) -> int:
    """Examples in a pass: a training batch; on a GPU more where gradients are squared before they are added, and
    take no more memory."""
    squared_first = fleet.learner.method.fisher == "exact" and is_linear_layers(fleet.net.module)
    batch = fleet.training.batch
    return max(batch, AT_ONCE // fleet.runs) if fleet.theta.is_cuda and squared_first else batch


def of_task(fleet: Fleet) -> Tensor:
    """The Fisher of the task's data at θ, eq. (1): mean squared gradient, in evaluation mode.

    Or whatever the method takes of them, and of whatever gradients. In shuffled batches, as a user's own loader
    would provide: gradients of one class add up, those of several classes partly cancel.
    """

    def differentiated(logits: Tensor, labels: Tensor) -> Tensor:
        """Of logits [R, B, C] a number per run [R]; of one example's [1, C] a number."""
        head = fleet.lesson.head_of(labels)
        if fleet.learner.method.of_outputs:
            return logits.where(head == 0, 0).square().sum(-1).mean(-1)
        return (
            F.cross_entropy(logits + head, labels)
            if logits.dim() == 2
            else heads.cross_entropy(logits + head, labels)
        )

    fisher = torch.zeros_like(fleet.theta)
    examples = fleet.lesson.examples
    draws = [seeds.generator(seed, "fisher", fleet.past + fleet.task) for seed in fleet.seeds]
    orders = torch.stack([examples[torch.randperm(len(examples), generator=draw)] for draw in draws])
    for index in orders.to(fleet.theta.device).split(_at_once(fleet), dim=1):
        x, y = fleet.stream.batch(index)
        if fleet.learner.method.fisher == "exact":
            square = expected(fleet, x)
        elif fleet.learner.method.fisher == "example":
            with torch.enable_grad():
                square = example_squares(fleet.net, x, differentiated, y, fleet.learner.method.in_pass)
        else:
            losses = differentiated(fleet.net.forward(x, train=False), y)
            square = fleet.learner.method.in_pass(fleet.net.gradient(losses).square())
        fisher.add_(square, alpha=index.shape[1] / len(examples))
    return fisher
