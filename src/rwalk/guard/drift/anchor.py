"""Anchor: hold a model in function space, by its outputs on probes instead of by its parameters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from rwalk import private_torch
from rwalk.errors import InputError
from rwalk.guard.drift.controller import Controller
from rwalk.guard.drift.eval_mode import eval_mode
from rwalk.guard.drift.probes import Probes
from rwalk.guard.select import unwrapped
from rwalk.guard.state.sharded import groups, is_sharded, local
from rwalk.guard.step.penalty import step_size
from rwalk.methods.base import require

LONGEST = 4.0  # a pull is at most this many times as long as the task's gradient
FAR = 0.05  # drift beyond which pulls may be longer, up to `every` times: short ones did not hold the model


@dataclass(frozen=True)
class Anchor:
    """Penalty: weight · drift on a batch of probes, added to the gradient every few steps.

    Args:
        weight: its strength; a guard's `budget` raises it where that is needed.
        every: steps from one pull to the next. Each pull stands for that many steps and is as much stronger.
        batch: probes per pull; by default 64, or as many as have about two thousand tokens.

    A pull costs a forward and a backward pass of one batch.
    """

    name: ClassVar[str] = "anchor"

    weight: float = 1.0
    every: int = 8
    batch: int | None = None

    def __post_init__(self) -> None:
        require(self.weight, "weight", minimum=0.0, open_=True)
        for name, number in (("every", self.every), ("batch", 1 if self.batch is None else self.batch)):
            if type(number) is not int or number < 1:
                raise InputError(f"{name} must be a whole number, at least 1, not {number!r}")

    def is_due(self, step: int) -> bool:
        """Whether a step, counted from 0, gets a pull: the last of every few, because drift begins at zero."""
        return step % self.every == self.every - 1


Pulls = Mapping[nn.Parameter, Tensor]


def pulls(
    anchor: Anchor,
    controller: Controller,
    model: nn.Module,
    parameters: Sequence[nn.Parameter],
    sets: Sequence[Probes],
    optimizer: Optimizer,
    step: int,
) -> Pulls:
    """What to add to the gradients before this step, [1, *shape] for each parameter on this rank.

    All arithmetic stays on the device: the host waits for nothing.
    """
    if not anchor.is_due(step):
        return {}
    group, ranks = replicas(model)
    turn = step // anchor.every * ranks + (dist.get_rank(group) if ranks > 1 else 0)
    pulled = [(probes, number) for probes in sets for number in probes.pulled]
    drift, slopes = _slopes(model, parameters, *pulled[turn % len(pulled)])
    reading = drift
    if any(probes.held_out for probes in sets):
        watched = [(probes, number) for probes in sets for number in probes.watched]
        reading = _reading(model, *watched[turn % len(watched)])
    (drift, reading), slopes = _averaged(model, torch.stack([drift, reading]), slopes)
    if not slopes:
        return {}
    length, pushed = _lengths(slopes)
    factor = controller.weight(anchor.weight, drift.device) * anchor.every
    bound = bounded(drift, length, pushed, anchor.every, _step_size(optimizer), controller.budget is not None)
    controller.read(step, reading, anchor.weight, bound / anchor.every)
    weight = torch.minimum(factor, bound)
    return {parameter: slope.mul_(weight.to(slope.dtype))[None] for parameter, slope in slopes.items()}


def _reading(model: nn.Module, probes: Probes, number: int) -> Tensor:
    """The drift of a batch that no pull sees: on those that are pulled on, drift is smaller than elsewhere."""
    with eval_mode(model), torch.no_grad():
        return probes.of_batch(unwrapped(model), number).float()


def _slopes(
    model: nn.Module, parameters: Sequence[nn.Parameter], probes: Probes, number: int
) -> tuple[Tensor, dict[nn.Parameter, Tensor]]:
    """The drift of a batch and its gradient with respect to the parameters.

    `torch.autograd.grad` leaves `.grad` alone, and with it the buckets of DistributedDataParallel. Only sharded
    parameters, and checkpointing that is re-entrant, need an ordinary backward pass.
    """
    inner = unwrapped(model)
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    with eval_mode(model), torch.enable_grad():
        drift = probes.of_batch(inner, number)
        if not drift.requires_grad:
            return drift, {}
        if any(map(is_sharded, trained)):
            drift.backward()
            found: Iterable[Tensor | None] = [parameter.grad for parameter in trained]
        else:
            found = torch.autograd.grad(drift, trained, allow_unused=True)
    slopes = {p: local(slope).detach() for p, slope in zip(trained, found, strict=True) if slope is not None}
    return drift.detach().float(), slopes


def replicas(model: nn.Module) -> tuple[Any, int]:
    """The process group of DistributedDataParallel around a model, and its size; without it, None and 1."""
    if not isinstance(model, nn.parallel.DistributedDataParallel):
        return None, 1
    return model.process_group, dist.get_world_size(model.process_group)


def _averaged(
    model: nn.Module, drift: Tensor, slopes: dict[nn.Parameter, Tensor]
) -> tuple[Tensor, dict[nn.Parameter, Tensor]]:
    """The mean over replicas, which must all take the same step; of a sharded model only the drifts' mean.

    Each rank had another batch, and a sharded model has averaged gradients itself.
    """
    group, ranks = replicas(model)
    if ranks > 1:
        flat = torch.cat([drift, *(slope.float().flatten() for slope in slopes.values())])
        dist.all_reduce(flat, group=group)
        flat /= ranks
        parts = flat[2:].split([slope.numel() for slope in slopes.values()])
        slopes = {p: part.view_as(s).to(s.dtype) for (p, s), part in zip(slopes.items(), parts, strict=True)}
        return flat[:2], slopes
    for _, shards in dict.fromkeys(each for parameter in slopes for each in groups(parameter)):
        drift = drift.clone()
        dist.all_reduce(drift, group=shards)
        drift /= dist.get_world_size(shards)
    return drift, slopes


def bounded(
    drift: Tensor, pull: Tensor, gradient: Tensor, every: int, step_size: float | None, strict: bool = False
) -> Tensor:
    """The largest factor of a pull (weight × every) that does no harm.

    Args:
        drift: the drift of the batch that is pulled on.
        pull: the length of its gradient.
        gradient: the length of the task's gradient.
        every: steps from one pull to the next.
        step_size: how far a steady unit gradient moves a parameter per step; None for optimizers whose steps do
            not grow with the gradient.
        strict: whether there is a budget to keep, for which a pull may be as long as all steps it stands for.

    >>> one = torch.tensor(1.0)
    >>> [float(bounded(one, one, one, 8, size)) for size in (None, 0.1, 1.0)]
    [32.0, 4.0, 2.0]
    >>> [float(bounded(0.04 * one, one, one, 8, None, strict)) for strict in (False, True)]
    [4.0, 32.0]
    """
    longest = LONGEST * gradient / pull.clamp(min=1e-30)
    if step_size is None:
        return longest * (every if strict else (drift / FAR).clamp(1.0, every))
    # A step that is proportional to the gradient grows with the pull. It need not go beyond drift 0.
    return longest.minimum(2 * drift.clamp(min=0) / (step_size * pull.square()).clamp(min=1e-30))


def _step_size(optimizer: Optimizer) -> float | None:
    """None for Adam and its kind."""
    if any("betas" in group for group in optimizer.param_groups):
        return None
    return max((size for group in optimizer.param_groups if (size := step_size(optimizer, group))), default=None)


def _lengths(slopes: Mapping[nn.Parameter, Tensor]) -> tuple[Tensor, Tensor]:
    """The lengths of the pull at weight 1 and of the task's gradient, over all ranks of a sharded model."""
    gradients = [local(parameter.grad) for parameter in slopes if parameter.grad is not None]
    squares = torch.stack([_square(slopes.values()), _square(gradients or slopes.values())])
    for _, group in dict.fromkeys(each for parameter in slopes for each in groups(parameter)):
        dist.all_reduce(squares, group=group)
    length, pushed = squares.sqrt()
    return length, pushed


def _square(tensors: Iterable[Tensor]) -> Tensor:
    kernel, found = private_torch.foreach("norm"), list(tensors)
    norms = [each.norm() for each in found] if kernel is None else kernel(found)
    return torch.stack([norm.float() for norm in norms]).square().sum()
