"""Drift while training goes on: measured within a share of the time, held to a budget, and remembered."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from time import perf_counter
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from rwalk.errors import InputError
from rwalk.guard.drift import rule
from rwalk.guard.drift.buffers import Buffers
from rwalk.guard.drift.current import CurrentInputs
from rwalk.guard.drift.forces import Force
from rwalk.guard.drift.probes import Predict, Probes, device_of, weighted_mean
from rwalk.guard.drift.reference import Old

PULLS = 8  # at most, in one way back to the budget
HISTORY = 2000  # readings that are remembered; then every other one of the older is forgotten


@dataclass(frozen=True)
class Watching:
    """What is measured, and when.

    budget   nats of drift that a task may cost; None: λ is the user's
    predict  from a model and a batch to logits, or to what the model returns
    share    of the time that measuring may take
    every    steps from one reading to the next, instead: what makes a run repeatable
    step_back  beyond the budget, the model is taken back to it at once; else λ alone brings it back
    apart    probes are watched or pulled on, not both
    """

    budget: float | None = None
    predict: Predict | None = None
    share: float = 0.05
    every: int | None = None
    step_back: bool = True
    apart: bool = False

    def __post_init__(self) -> None:
        rule.check(self.budget)
        if not 0 < self.share <= 1:
            raise InputError(f"share must be above 0 and at most 1, not {self.share!r}")
        if self.every is not None and not (type(self.every) is int and self.every > 0):
            raise InputError(f"every must be a whole number of steps, at least 1, not {self.every!r}")


class Reading(NamedTuple):
    task: int
    step: int
    drift: float
    lam: float
    pull: float  # of the penalty, in units of the gradient


class Keeper:
    """The probes of a guard, the model as it was, and the rule that λ follows."""

    def __init__(self, watching: Watching) -> None:
        self.watching = watching
        self.sets: list[Probes] = []
        self.old: Old | None = None  # None until something is to be kept
        self.control = rule.Control()
        self.history: list[Reading] = []
        self._current = CurrentInputs(watching.predict)
        self._buffers = Buffers()
        self._clock = _Clock(watching)

    @property
    def watches(self) -> bool:
        return bool(self.sets) or self.watching.budget is not None

    def begin(self, model: nn.Module, anchors: Mapping[str, Tensor]) -> None:
        """From here on drift is counted; `anchors` are those that the method keeps anyway."""
        if not self.watches:
            return
        self.old = Old.of(model, anchors)
        for probes in self.sets:
            probes.keep(model)
        self.control = rule.Control()
        self.look_at(model)

    def go_on(self, model: nn.Module, anchors: Mapping[str, Tensor], held: Iterable[str], force: Force) -> None:
        """From a file, which leaves out what the method's own anchors say."""
        assert self.old is not None
        self.old = Old({**self.old.tensors, **{name: anchors[name] for name in held}})
        self.look_at(model)
        self._buffers.look(model, self.old)
        self.control_of(force)

    def control_of(self, force: Force) -> None:
        """Where there is a budget, λ is what the rule says, from the start."""
        if self.watching.budget is not None and self.old is not None:
            force.lam = self.control.strength

    def look_at(self, model: nn.Module) -> None:
        """Where there are no probes, the inputs of training are all there is."""
        if self.watches and not self.sets:
            self._current.look_at(model)

    def drift(self, model: nn.Module) -> float:
        """Of all probes."""
        if not self.sets or not self.sets[0].kept:
            raise InputError("there is nothing to measure drift on: give probes=, or guard.begin(probes)")
        return self._mean([probes.drift(model) for probes in self.sets])

    def stepped(self, model: nn.Module, optimizer: Optimizer, force: Force, task: int, step: int) -> None:
        """A step is over: look, where it is time to, and hold as hard as the budget asks for."""
        if self.old is None:
            return
        if force.holds_parameters:
            self._buffers.hold(model, self.old, self.control.back)
        if not self._clock.is_due(step):
            return
        self._clock.start(model)
        drift = self._reading(model)
        if self.watching.budget is not None:
            self.control = rule.at(self.control, step, _rate(optimizer))
            self._follow(model, force, rule.distance(drift, self.watching.budget))
        known = self.watching.budget is not None and force.holds_parameters
        pull = self.control.pull if known else force.compared(optimizer)
        self.history = _thinned([*self.history, Reading(task, step, drift, force.lam, pull)])
        self._clock.stop()

    def _follow(self, model: nn.Module, force: Force, distance: float) -> None:
        """λ after a reading; and beyond the budget the way back to it."""
        assert self.old is not None
        self._buffers.look(model, self.old)
        left = distance
        if distance >= 1 and not self.control.response:
            caution = rule.CAUTION if self.watching.step_back else 1.0
            self.control = rule.guessed(self.control, caution * force.response())
        if distance > rule.NEAR and self.watching.step_back:
            left = self._step_back(model, force, distance)
        self.control = rule.limited(rule.followed(self.control, distance, left, force.start), force.most())
        force.lam = self.control.strength

    def _step_back(self, model: nn.Module, force: Force, distance: float) -> float:
        """Pull until the budget is kept, measuring what each pull is worth; the distance that is left."""
        assert self.old is not None and self.watching.budget is not None
        for _ in range(PULLS):
            pull = rule.needed(self.control, distance)
            force.back(model, self.old, pull)
            if force.holds_parameters:
                self._buffers.hold(model, self.old, -math.expm1(-pull * self.control.response))
            before, distance = distance, rule.distance(self._reading(model, again=True), self.watching.budget)
            self.control = rule.learned(self.control, pull, before, distance)
            if distance <= rule.NEAR:
                break
        return distance

    def rewind(self, model: nn.Module, budget: float | None) -> float:
        """Back to where the drift is within the budget; the share of the way that is left."""
        budget = self.watching.budget if budget is None else budget
        rule.check(budget)
        if budget is None or self.old is None or not self.sets:
            raise InputError(
                "rewind needs a budget, and probes that predictions were kept of: guard.begin(probes)"
            )
        return self.old.rewind(model, lambda: self.drift(model) <= budget)

    def _reading(self, model: nn.Module, again: bool = False) -> float:
        """An estimate of the drift; `again`, of the last one, after a change to the model."""
        assert self.old is not None
        if self.sets:
            drift = self._mean([probes.again(model) if again else probes.reading(model) for probes in self.sets])
        else:
            drift = self._current.reading(model, self.old)
        if _ranks() > 1:
            everywhere = torch.tensor(drift, dtype=torch.float64, device=device_of(model))
            dist.all_reduce(everywhere)
            drift = float(everywhere) / _ranks()
        return drift

    def _mean(self, drifts: list[float]) -> float:
        return weighted_mean(drifts, [sum(map(len, probes.kept)) for probes in self.sets])

    def nbytes(self, anchors: Mapping[str, Tensor]) -> int:
        """Of the model as it was, but for the method's anchors, and of what was predicted on the probes."""
        own = [] if self.old is None else list(self.old.own(anchors).values())
        predictions = [tensor for probes in self.sets for kept in probes.kept for tensor in kept]
        return sum(tensor.nbytes for tensor in (*own, *predictions) if tensor is not None)

    def numbers(self) -> dict[str, Any]:
        """What a file says of this, beside tensors."""
        return {
            "control": asdict(self.control),
            "history": [list(reading) for reading in self.history],
            "sets": [probes.numbers() for probes in self.sets],
        }


class _Clock:
    """Says when another reading is due: after so many steps, or when the time spent on training has earned one."""

    def __init__(self, watching: Watching) -> None:
        self._share, self._every = watching.share, watching.every
        self._cost = 0.0
        self._since = self._started = perf_counter()

    def is_due(self, step: int) -> bool:
        if self._every is not None:
            return step % self._every == 0
        if _ranks() > 1:
            raise InputError("clocks differ between processes: give every=, the steps between two readings")
        return (perf_counter() - self._since) * self._share >= self._cost * (1 - self._share)

    def start(self, model: nn.Module) -> None:
        if device_of(model).type == "cuda":
            torch.cuda.synchronize()  # what is still to be computed is training's
        self._started = perf_counter()

    def stop(self) -> None:
        self._since = perf_counter()
        self._cost = self._since - self._started


def _thinned(history: list[Reading]) -> list[Reading]:
    older, newer = history[: HISTORY // 2], history[HISTORY // 2 :]
    return older[::2] + newer if len(history) > HISTORY else history


def _rate(optimizer: Optimizer) -> float:
    """The largest learning rate; of an optimizer without one, 1."""
    return max(float(group.get("lr", 1.0)) for group in optimizer.param_groups)


def _ranks() -> int:
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1
