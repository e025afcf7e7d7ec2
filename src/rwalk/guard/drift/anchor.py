"""Anchor: hold a model in function space, by its outputs on probes instead of by its parameters.

Less drift than a budget allows is no waste: an anchor of the default weight does not slow the new task down. So
the weight never falls below the one that was given. While readings exceed the budget, it rises: at once in
proportion to the reading, and slowly for as long as they do. The guard's `finish` makes sure of the rest.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from rwalk import private_torch
from rwalk.errors import InputError
from rwalk.guard.drift.eval_mode import eval_mode
from rwalk.guard.drift.probes import Probes
from rwalk.guard.select import unwrapped
from rwalk.guard.state.sharded import groups, is_sharded, local
from rwalk.guard.step.penalty import step_size
from rwalk.methods.method import require
from rwalk.model_file import expect

LONGEST = 4.0  # a pull is at most this many times as long as the task's gradient
FAR = 0.05  # drift beyond which pulls may be longer, up to `every` times: short ones did not hold the model
GAIN = 0.25  # change of log weight per reading and per unit of log drift
AT_ONCE = 8.0  # the most that one reading alone raises the weight
MOST = 100.0  # times the given weight
HISTORY = 2048  # readings that are remembered; then every other one of the older half is dropped


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

    def stands_for(self, step: int, bounded_steps: bool) -> int:
        """For how many steps a pull before this step stands; 0 if there is none, because drift begins at zero.

        Args:
            step: counted from 0.
            bounded_steps: whether the optimizer's steps do not grow with the gradient. If they do, the first
                gradients of a new task can move a model far, so there is a pull in each of the first steps.

        >>> [Anchor(every=4).stands_for(step, False) for step in range(9)]
        [0, 1, 1, 1, 0, 0, 0, 4, 0]
        """
        if 0 < step < self.every and not bounded_steps:
            return 1
        return self.every if step % self.every == self.every - 1 else 0


# ── the weight under a budget ────────────────────────────────────────────────────────────────────────────────


class Reading(NamedTuple):
    """Drift and weight at one pull."""

    task: int
    step: int
    drift: float
    weight: float


def check_budget(budget: float | None) -> None:
    if budget is not None and (
        isinstance(budget, bool) or not isinstance(budget, int | float) or not 0 < budget < math.inf
    ):
        raise InputError(f"budget must be a number above 0, such as 0.05, not {budget!r}")


def followed(raised: Tensor, drift: Tensor, budget: float, most: Tensor) -> Tensor:
    """The log of the factor by which the weight is raised, after a reading.

    Args:
        raised: log of the factor so far; 0 is the given weight, below which it never falls.
        drift: the reading, of probes that are not pulled on; ignored if it is not finite.
        budget: the drift that is allowed.
        most: log of the factor beyond which a larger weight changes nothing, so that the rule cannot wind up.

    >>> most = torch.tensor(2.0)
    >>> readings = (0.09, 0.9, 0.01, float("nan"))
    >>> [round(float(followed(torch.tensor(1.9), torch.tensor(each), 0.1, most)), 2) for each in readings]
    [1.87, 2.0, 1.65, 1.9]
    """
    error = _log_excess(drift, budget).clamp(-1.0, 1.0)
    return torch.minimum(raised + GAIN * error, most).clamp(min=0.0)


def _log_excess(drift: Tensor, budget: float) -> Tensor:
    """The log of drift ÷ budget; 0 for a reading that is not finite."""
    excess = (drift.clamp(min=0) / budget).clamp(min=1e-6).log()
    return torch.where(drift.isfinite(), excess, torch.zeros_like(excess))


class Controller:
    """The state of the rule, kept on the device, so that no step waits for a reading."""

    def __init__(self, budget: float | None = None) -> None:
        check_budget(budget)
        self.budget = budget
        self.task = 0
        self._raised = torch.tensor(0.0)
        self._steps: list[tuple[int, int]] = []
        self._readings: list[Tensor] = []  # drift and weight, [2] each

    def begin(self, task: int) -> None:
        """Drift is counted anew from here on, at the given weight."""
        self.task = task
        self._raised = torch.zeros_like(self._raised)

    def weight(self, given: float, device: torch.device) -> Tensor:
        self._raised = self._raised.to(device)
        return given * self._raised.exp()

    def strength(self, given: float, reading: Tensor) -> Tensor:
        """The weight of a pull with this reading: readings average out slowly, and drift must not wait."""
        weight = self.weight(given, reading.device)
        if self.budget is None:
            return weight
        return weight * _log_excess(reading, self.budget).exp().clamp(1.0, AT_ONCE)

    def read(self, step: int, drift: Tensor, given: float, bound: Tensor) -> None:
        """Note a reading; with a budget, the next weight follows from it."""
        self._steps.append((self.task, step))
        self._readings.append(torch.stack([drift, self.strength(given, drift)]))
        if self.budget is not None:
            most = (bound / given).clamp(1.0, MOST).log()
            self._raised = followed(self._raised, drift, self.budget, most)
        if len(self._steps) > HISTORY:
            older = slice(0, HISTORY // 2, 2)
            self._steps = self._steps[older] + self._steps[HISTORY // 2 :]
            self._readings = self._readings[older] + self._readings[HISTORY // 2 :]

    @property
    def history(self) -> tuple[Reading, ...]:
        """All readings; the device is waited for."""
        if not self._readings:
            return ()
        device = self._raised.device
        numbers = torch.stack([reading.to(device) for reading in self._readings]).tolist()
        return tuple(Reading(*at, *each) for at, each in zip(self._steps, numbers, strict=True))

    def to_dict(self) -> dict[str, Any]:
        return {
            "task": self.task,
            "raised": float(self._raised),
            "history": [list(reading) for reading in self.history],
        }

    def restore(self, state: Any) -> None:
        """From `to_dict`; values that cannot be right are refused."""
        expect(isinstance(state, dict) and state.keys() == self.to_dict().keys(), "its controller")
        history = state["history"]
        numbers = [state["raised"], *(number for reading in history for number in reading)]
        plain = all(type(number) in (int, float) and math.isfinite(number) for number in numbers)
        expect(plain and type(state["task"]) is int, "its controller")
        expect(all(len(reading) == len(Reading._fields) for reading in history), "its readings")
        expect(0 <= state["raised"] <= math.log(MOST) + 1e-3, "its controller")
        self.task = state["task"]
        self._raised = torch.tensor(float(state["raised"]))
        self._steps = [(int(task), int(step)) for task, step, *_ in history]
        self._readings = [torch.tensor([float(drift), float(weight)]) for *_, drift, weight in history]


# ── a pull ───────────────────────────────────────────────────────────────────────────────────────────────────

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
    size = _step_size(optimizer)
    steps = anchor.stands_for(step, size is None)
    if not steps:
        return {}
    group, ranks = replicas(model)
    turn = (step if steps == 1 else step // steps) * ranks + (dist.get_rank(group) if ranks > 1 else 0)
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
    factor = controller.strength(anchor.weight, reading) * steps
    bound = bounded(drift, length, pushed, steps, size, controller.budget is not None)
    controller.read(step, reading, anchor.weight, bound / steps)
    weight = torch.minimum(factor, bound)
    return {parameter: slope.mul_(weight.to(slope.dtype))[None] for parameter, slope in slopes.items()}


def _reading(model: nn.Module, probes: Probes, number: int) -> Tensor:
    """The drift of a held-out batch: on batches that the anchor pulls on, drift is smaller than elsewhere."""
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
        every: steps that the pull stands for.
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
