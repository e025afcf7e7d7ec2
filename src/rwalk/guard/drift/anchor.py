"""Anchor: hold a model in function space, by its outputs on probes instead of by its parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from rwalk import private_torch
from rwalk.errors import InputError
from rwalk.guard.drift.batch_norm import BatchNorm
from rwalk.guard.drift.probes import Probes
from rwalk.guard.select import unwrapped
from rwalk.guard.state.sharded import groups, is_sharded, local
from rwalk.methods.method import require
from rwalk.model_file import expect

FADED = 0.8  # what is left of a pull in each later step, because the model has moved since
LARGE = 0.1  # drift from which on pulls come more often
HISTORY = 2048  # readings that are remembered; then every other one of the older half is dropped


@dataclass(frozen=True)
class Anchor:
    """Penalty: weight · drift on a batch of probes, whose gradient is measured every few steps.

    Args:
        weight: its strength.
        every: steps from one pull to the next; fewer at a task's start, and where drift is large.
        batch: probes per pull; by default as many as a training batch has, from 8 to 64, or 512 to 2,048 tokens.

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


# ── when to pull ─────────────────────────────────────────────────────────────────────────────────────────────


class Reading(NamedTuple):
    """Drift at one pull."""

    task: int
    step: int
    drift: float


class Schedule:
    """The steps of a task that have a pull, and the drift at each of them, in this task and earlier ones.

    The interval from one pull to the next begins at 1. It doubles after each, up to `every`, while drift is small,
    and is halved while drift is large. The drift of a pull is read in the next step, so that no step waits for its
    own work on the device.

    Args:
        every: the largest interval.
        readings: the drift at earlier pulls.
        interval: the last one.
        following: the step of the next pull, counted from 0. Step 0 has none: drift is zero there.
        pulls: those in this task so far; they take turns with the batches of probes.
    """

    def __init__(
        self,
        every: int,
        readings: Iterable[Reading] = (),
        interval: int = 1,
        following: int = 1,
        pulls: int = 0,
    ) -> None:
        self._every, self.interval, self._following, self.pulls = every, interval, following, pulls
        self._readings = list(readings)
        self._unread: tuple[int, Callable[[], float]] | None = None  # the last pull's task, and its drift

    def is_due(self, step: int) -> bool:
        """Whether this step has a pull."""
        self._read()
        return step >= self._following

    def pulled(self, task: int, step: int, drift: Tensor) -> None:
        """This step has had its pull."""
        self.pulls, self._following, self._unread = self.pulls + 1, step, (task, _later(drift))

    def _read(self) -> None:
        if self._unread is not None:
            task, drift = self._unread[0], self._unread[1]()
            self._unread = None
            self._readings.append(Reading(task, self._following, drift))
            if len(self._readings) > HISTORY:
                self._readings[: HISTORY // 2] = self._readings[: HISTORY // 2 : 2]
            self.interval = min(self._every, 2 * self.interval) if drift < LARGE else max(1, self.interval // 2)
            self._following += self.interval

    @property
    def readings(self) -> tuple[Reading, ...]:
        """The device is waited for."""
        self._read()
        return tuple(self._readings)

    @property
    def state(self) -> list[int]:
        """For a file: the last three arguments."""
        self._read()
        return [self.interval, self._following, self.pulls]

    @classmethod
    def restored(cls, anchor: Anchor, state: Any, readings: Any, steps: int) -> Schedule:
        """From `state` and `readings`; `every` may be another one now."""
        right = isinstance(state, list) and [type(each) for each in state] == [int] * 3
        expect(right and min(state[:2]) >= 1 and 0 <= state[2] <= steps, "its next pull")
        expect(isinstance(readings, list), "its readings")
        for reading in readings:
            kinds = [type(each) for each in reading] if isinstance(reading, list | tuple) else None
            expect(kinds == [int, int, float], "its readings")
        interval, following, pulls = state
        places = min(interval, anchor.every), min(following, steps + anchor.every), pulls
        return cls(anchor.every, (Reading(*each) for each in readings), *places)


def _later(number: Tensor) -> Callable[[], float]:
    """A number on its way from the device; reading it waits for the work before it, not for what came after."""
    if number.device.type != "cuda":
        return partial(float, number)
    arrived = torch.cuda.Event()
    here = torch.empty((), dtype=number.dtype, pin_memory=True).copy_(number, non_blocking=True)
    arrived.record(torch.cuda.current_stream(number.device))

    def read() -> float:
        arrived.synchronize()
        return float(here)

    return read


# ── a pull ───────────────────────────────────────────────────────────────────────────────────────────────────

Pulls = Mapping[nn.Parameter, Tensor]


class Pull(NamedTuple):
    """Drift on one batch of probes, and its gradient for each parameter on this rank; averaged over ranks."""

    drift: Tensor
    slopes: dict[nn.Parameter, Tensor]

    @classmethod
    def of(
        cls,
        model: nn.Module,
        parameters: Sequence[nn.Parameter],
        sets: Sequence[Probes],
        schedule: Schedule,
        batch_norm: BatchNorm,
        forward: AbstractContextManager[Any],
    ) -> Pull:
        """A forward pass in this context, and a backward pass.

        All arithmetic stays on the device: the host waits for nothing. The number of pulls so far says which batch
        of probes it takes.
        """
        group, ranks = replicas(model)
        turn = schedule.pulls * ranks + (dist.get_rank(group) if ranks > 1 else 0)
        pulled = [(probes, batch) for probes in sets for batch in probes.pulled]
        with batch_norm.pull_mode(model, schedule.interval):
            return cls(*_averaged(model, *_slopes(model, parameters, *pulled[turn % len(pulled)], forward)))


def added(anchor: Anchor, pull: Pull) -> dict[nn.Parameter, Tensor]:
    """What to add to the gradients. It is no longer than the task's, by which the learning rate was chosen."""
    slopes = pull.slopes
    if slopes:
        gradients = [local(parameter.grad) for parameter in slopes if parameter.grad is not None]
        squares = torch.stack([_square(slopes.values()), _square(gradients or slopes.values())])
        length, pushed = _over_shards(squares, slopes).sqrt()
        weight = (pushed / length.clamp(min=1e-30)).clamp(max=anchor.weight)
        for slope in slopes.values():
            slope.mul_(weight.to(slope.dtype))
    return slopes


def faded(pulls: dict[nn.Parameter, Tensor]) -> dict[nn.Parameter, Tensor]:
    """The last pull again, and weaker: an optimizer such as Adam would take a rare, strong one for noise.

    It divides its steps by the size of recent gradients, so the task would be learned in smaller ones.
    """
    private_torch.foreach("mul_", list(pulls.values()), FADED)
    return pulls


def _slopes(
    model: nn.Module,
    parameters: Sequence[nn.Parameter],
    probes: Probes,
    number: int,
    forward: AbstractContextManager[Any],
) -> tuple[Tensor, dict[nn.Parameter, Tensor]]:
    """The drift of a batch and its gradient with respect to the parameters.

    `torch.autograd.grad` leaves `.grad` alone, and with it the buckets of DistributedDataParallel. Only sharded
    parameters need an ordinary backward pass. The backward pass comes after autocast, which keeps a copy of all
    weights until it ends.
    """
    inner = unwrapped(model)
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    with torch.enable_grad():
        with forward:
            drift = probes.of_batch(inner, number)
        if not drift.requires_grad:
            return drift, {}
        if any(map(is_sharded, trained)):
            drift.backward()
            found: Iterable[Tensor | None] = [parameter.grad for parameter in trained]
        else:
            found = torch.autograd.grad(drift, trained, allow_unused=True)
    slopes = {p: local(slope).detach() for p, slope in zip(trained, found, strict=True) if slope is not None}
    seen: set[int] = set()
    for parameter, slope in slopes.items():  # they are changed in place, and a sum's terms may have one in common
        if slope.data_ptr() in seen:
            slopes[parameter] = slope.clone()
        seen.add(slope.data_ptr())
    return drift.detach().float(), slopes


def replicas(model: nn.Module) -> tuple[Any, int]:
    """The process group of DistributedDataParallel around a model, and its size; without it, None and 1."""
    if not isinstance(model, nn.parallel.DistributedDataParallel):
        return None, 1
    return model.process_group, dist.get_world_size(model.process_group)


def _averaged(
    model: nn.Module, drift: Tensor, slopes: dict[nn.Parameter, Tensor]
) -> tuple[Tensor, dict[nn.Parameter, Tensor]]:
    """The mean over replicas, which must all take the same step; of a sharded model only the drift's mean.

    Each rank had another batch, and a sharded model has averaged gradients itself.
    """
    group, ranks = replicas(model)
    if ranks > 1:
        flat = torch.cat([drift[None], *(slope.float().flatten() for slope in slopes.values())])
        dist.all_reduce(flat, group=group)
        flat /= ranks
        parts = flat[1:].split([slope.numel() for slope in slopes.values()])
        slopes = {p: part.view_as(s).to(s.dtype) for (p, s), part in zip(slopes.items(), parts, strict=True)}
        return flat[0], slopes
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
    norms = private_torch.foreach("norm", list(tensors))
    return torch.stack([norm.float() for norm in norms]).square().sum()
