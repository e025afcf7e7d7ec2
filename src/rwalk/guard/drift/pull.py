"""An Anchor at work: its pull, which is added to the gradients before a step."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from rwalk.guard.drift.anchor import Anchor
from rwalk.guard.drift.eval_mode import undisturbed
from rwalk.guard.drift.forces import ratio
from rwalk.guard.drift.probes import Probes
from rwalk.guard.drift.reference import Old
from rwalk.guard.drift.rule import FREE
from rwalk.guard.state.guard_state import Learned
from rwalk.guard.state.sharded import local
from rwalk.guard.step.penalty import step_size

BEGIN = 0.05  # of its weight, where a budget is reached: too weak does no harm there, too strong does
LONGEST = 4.0  # a pull is at most so many times as long as the gradient


class Anchoring:
    """An Anchor at work: the force that a guard adds to the gradients."""

    holds_parameters = False

    def __init__(self, anchor: Anchor, learned: Learned) -> None:
        self.anchor = anchor
        self.lam = float(anchor.weight)
        self.start = BEGIN * self.lam
        self._learned = learned
        self._length: Tensor | None = None  # squared, of the last pull
        self._most: Tensor | None = None  # the λ at which the last pull was as strong as it may be

    def pulls(
        self, model: nn.Module, sets: Sequence[Probes], optimizer: Optimizer
    ) -> Mapping[nn.Parameter, Tensor]:
        """What to add to the gradients before this step; nothing until predictions are kept."""
        batches = [(probes, number) for probes in sets if probes.kept for number in probes.pulled]
        turn, rest = divmod(self._learned.steps, self.anchor.every)
        if not batches or rest or self.lam <= FREE:
            return {}
        probes, number = batches[turn % len(batches)]
        with undisturbed(model), torch.enable_grad():
            drift = probes.pull(model, number)
            drift.backward()
            slopes = {piece.parameter: piece.parameter.grad for piece in self._learned.guarded}
        found = {p: local(slope).detach()[None] for p, slope in slopes.items() if slope is not None}
        if not found:
            return {}
        self._length = _square_length(found.values())
        weight = self._bounded(drift.detach().double(), optimizer)
        return {parameter: slope * weight.to(slope.dtype) for parameter, slope in found.items()}

    def _bounded(self, drift: Tensor, optimizer: Optimizer) -> Tensor:
        """The weight, unless that is more than any step can use.

        The pull's minimum is known, a drift of 0: no step need go beyond it. And to hold a model against its
        gradients, a pull need not be many times as long as they are: more would only upset the optimizer.
        """
        assert self._length is not None
        most = torch.full_like(drift, math.inf)
        steps = [size for group in optimizer.param_groups if (size := step_size(optimizer, group))]
        if steps:
            most = most.minimum(2 * drift / (max(steps) * self._length).clamp(min=1e-300))
        gradients = [piece.parameter.grad for piece in self._learned.guarded]
        pushed = _square_length(local(gradient) for gradient in gradients if gradient is not None)
        most = most.minimum(LONGEST * (pushed / self._length.clamp(min=1e-300)).sqrt())
        self._most = most / self.anchor.every
        return most.clamp(max=self.lam * self.anchor.every)

    def most(self) -> float:
        return math.inf if self._most is None else float(self._most)

    def compared(self, optimizer: Optimizer) -> float:
        gradients = [piece.parameter.grad for piece in self._learned.started]
        found = [local(gradient) for gradient in gradients if gradient is not None]
        if self._length is None or not found:
            return 0.0
        pull, gradient = math.sqrt(float(self._length)), math.sqrt(float(_square_length(found)))
        return self.lam * ratio(pull, gradient)

    def response(self) -> float:
        return 1.0

    def back(self, model: nn.Module, old: Old, pull: float) -> None:
        """On the straight way: in function space there is no other that costs nothing."""
        old.approach(model, -math.expm1(-pull))


def _square_length(vectors: Iterable[Tensor]) -> Tensor:
    return torch.stack([vector.to_dense().double().square().sum() for vector in vectors]).sum()
