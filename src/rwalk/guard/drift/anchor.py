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
from torch.optim import ASGD, SGD, Optimizer

from rwalk import private_torch
from rwalk.errors import InputError
from rwalk.guard.drift.eval_mode import eval_mode
from rwalk.guard.drift.probes import Probes
from rwalk.guard.select import unwrapped
from rwalk.guard.state.guard_state import ParameterStates
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

    def pulls_at(self, step: int) -> bool:
        """Whether there is a pull in this step, counted from 0: not in the first, because drift is zero there."""
        return step % self.every == self.every - 1


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


class Pull(NamedTuple):
    """Drift and its gradient on one batch of probes, averaged over ranks.

    Args:
        drift: of the batch that is pulled on.
        reading: of a batch that is not pulled on, if some are held out; otherwise the same.
        slopes: the gradient of `drift`, for each parameter on this rank.
    """

    drift: Tensor
    reading: Tensor
    slopes: dict[nn.Parameter, Tensor]

    @classmethod
    def of(
        cls,
        anchor: Anchor,
        model: nn.Module,
        parameters: Sequence[nn.Parameter],
        sets: Sequence[Probes],
        step: int,
    ) -> Pull:
        """A forward and a backward pass. All arithmetic stays on the device: the host waits for nothing."""
        group, ranks = replicas(model)
        turn = step // anchor.every * ranks + (dist.get_rank(group) if ranks > 1 else 0)
        pulled = [(probes, number) for probes in sets for number in probes.pulled]
        drift, slopes = _slopes(model, parameters, *pulled[turn % len(pulled)])
        reading = drift
        if any(probes.held_out for probes in sets):
            watched = [(probes, number) for probes in sets for number in probes.watched]
            reading = _reading(model, *watched[turn % len(watched)])
        (drift, reading), slopes = _averaged(model, torch.stack([drift, reading]), slopes)
        return cls(drift, reading, slopes)


def added(anchor: Anchor, controller: Controller, pull: Pull, step: int) -> Pulls:
    """What to add to the gradients before a step that does not grow with them, [1, *shape] for each parameter."""
    slopes = pull.slopes
    if not slopes:
        return {}
    gradients = [local(parameter.grad) for parameter in slopes if parameter.grad is not None]
    squares = torch.stack([_square(slopes.values()), _square(gradients or slopes.values())])
    length, pushed = _over_shards(squares, slopes).sqrt()
    bound = bounded(pull.drift, length, pushed, anchor.every, controller.budget is not None)
    factor = controller.strength(anchor.weight, pull.reading) * anchor.every
    controller.read(step, pull.reading, anchor.weight, bound / anchor.every)
    weight = torch.minimum(factor, bound)
    return {parameter: slope.mul_(weight.to(slope.dtype))[None] for parameter, slope in slopes.items()}


def bounded(drift: Tensor, pull: Tensor, gradient: Tensor, every: int, strict: bool = False) -> Tensor:
    """The largest factor of a pull that is added to the gradient (weight × every) and does no harm.

    Args:
        drift: the drift of the batch that is pulled on.
        pull: the length of its gradient.
        gradient: the length of the task's gradient.
        every: steps that the pull stands for.
        strict: whether there is a budget to keep, for which a pull may be as long as all steps it stands for.

    >>> one = torch.tensor(1.0)
    >>> [float(bounded(drift * one, one, one, 8)) for drift in (0.04, 0.1, 1.0)]
    [4.0, 8.0, 32.0]
    """
    return LONGEST * gradient / pull.clamp(min=1e-30) * (every if strict else (drift / FAR).clamp(1.0, every))


class StepBack:
    """A pull after the step of an optimizer such as SGD, whose steps grow with the gradient.

    It is a step down the gradient of the drift, each parameter at its own learning rate, to where drift would be
    zero. Large drift falls linearly; small drift is a parabola, whose zero is twice as far. The step is no longer
    than `every` steps of the optimizer. Momentum shrinks to 1 / (1 + drift), because it points to where the drift
    came from.

    Args:
        optimizer: about to take the step.
        parameters: those that are guarded.
    """

    def __init__(self, optimizer: Optimizer, parameters: Iterable[nn.Parameter]) -> None:
        self.optimizer = optimizer
        guarded = set(parameters)
        self._rates = {
            parameter: step_size(optimizer, group) or 0.0
            for group in optimizer.param_groups
            for parameter in group["params"]
            if parameter in guarded and parameter.grad is not None
        }
        self._before = {each: local(each.detach()).clone() for each in self._rates}

    def take(self, anchor: Anchor, controller: Controller, pull: Pull, step: int, states: ParameterStates) -> None:
        """The optimizer has taken its step."""
        slopes = {each: slope for each, slope in pull.slopes.items() if each in self._rates}
        if not slopes:
            return
        moved = _square([self._before[each].sub_(local(each.detach())) for each in slopes])
        by_rate: dict[float, list[Tensor]] = {}
        for each, slope in slopes.items():
            by_rate.setdefault(self._rates[each], []).append(slope)
        squares = {rate: _square(each) for rate, each in by_rate.items()}
        fall = torch.stack([rate * square for rate, square in squares.items()]).sum()
        way = torch.stack([rate**2 * square for rate, square in squares.items()]).sum()
        moved, fall, way = _over_shards(torch.stack([moved, fall, way]), slopes)
        drift = pull.drift.clamp(min=0)
        kept = 1 / (1 + drift)
        bound = torch.minimum(
            (1 + kept) * drift / fall.clamp(min=1e-30), anchor.every * (moved / way.clamp(min=1e-30)).sqrt()
        )
        factor = controller.strength(anchor.weight, pull.reading) * anchor.every
        controller.read(step, pull.reading, anchor.weight, bound / anchor.every)
        factor = torch.minimum(factor, bound)
        for parameter, slope in slopes.items():
            state = states[parameter]
            assert state is not None
            here, rate = local(parameter.detach()), self._rates[parameter]
            new = torch.addcmul(state.wide(here), state.wide(slope), state.wide(factor), value=-rate)
            here.copy_(state.narrowed(new, here))
            momentum = self.optimizer.state[parameter].get("momentum_buffer")
            if momentum is not None:
                local(momentum).mul_(kept.to(momentum.dtype))


def grows(optimizer: Optimizer) -> bool:
    """Whether the optimizer's steps grow with the gradient, as those of SGD do and Adam's do not."""
    return isinstance(optimizer, SGD | ASGD) or any("dampening" in group for group in optimizer.param_groups)


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


def _over_shards(squares: Tensor, parameters: Iterable[nn.Parameter]) -> Tensor:
    """Sums over the ranks that share these parameters out among them."""
    for _, group in dict.fromkeys(each for parameter in parameters for each in groups(parameter)):
        dist.all_reduce(squares, group=group)
    return squares


def _square(tensors: Iterable[Tensor]) -> Tensor:
    kernel, found = private_torch.foreach("norm"), list(tensors)
    norms = [each.norm() for each in found] if kernel is None else kernel(found)
    return torch.stack([norm.float() for norm in norms]).square().sum()
