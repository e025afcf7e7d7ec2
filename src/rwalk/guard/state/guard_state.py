"""The state of a guard: vectors per parameter, counted in tasks and steps."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from rwalk.errors import InputError, warn_caller
from rwalk.guard.select import some
from rwalk.guard.state.parameter import (
    Form,
    ParameterState,
    check_fits,
    full_vectors,
    restored,
    successor,
)
from rwalk.guard.state.quantized import new_state
from rwalk.guard.state.sharded import Group, groups, local
from rwalk.guard.step.step_executor import Batches
from rwalk.methods import Method
from rwalk.methods.method import Ranges

ParameterStates = Mapping[nn.Parameter, ParameterState | None]  # None: the optimizer's, but not guarded
Vectors = Mapping[str, Mapping[str, Tensor]]  # by parameter, by vector


class GuardState:
    """The state of a guard, for one optimizer after another.

    Args:
        method: whose equations are used.
        quantized: see `Form`.
        offload: see `Form`.
    """

    def __init__(self, method: Method, quantized: bool, offload: torch.device | None) -> None:
        self.method = method
        self.by_parameter: ParameterStates = {}
        self.batches = Batches()
        self.tasks = 0  # consolidated so far
        self.steps = 0  # observed in the current task
        self._form = Form(quantized, offload, lambda: self.tasks * 1_000_003 + self.steps)

    @property
    def guarded(self) -> list[ParameterState]:
        return [state for state in self.by_parameter.values() if state]

    @property
    def started(self) -> list[ParameterState]:
        """Those that ever had a gradient; the others hold no memory."""
        return [state for state in self.guarded if state.started]

    def holds(self) -> bool:
        """Whether there is a penalty on any parameter."""
        return any(self.method.springs(state.vectors) for state in self.started)

    def matched(self, chosen: Mapping[str, nn.Parameter], optimizer: Optimizer) -> ParameterStates:
        """The states of these parameters, which may have been replaced, have grown or be new."""
        held = {parameter for group in optimizer.param_groups for parameter in group["params"]}
        found: dict[nn.Parameter, ParameterState | None] = {}
        known = {state.name: state for state in self.guarded}
        for name, parameter in chosen.items():
            if parameter.is_complex():
                raise InputError(f"{name} is complex, and importance is of real numbers: exclude it by params=")
            state = known.pop(name, None) or new_state(name, parameter, self._form)
            found[parameter] = successor(state, parameter, self.method)
        if held.isdisjoint(found):
            raise InputError(
                f"the optimizer holds none of the {len(chosen)} parameters to guard ({some(chosen)}): "
                "make it from the parameters of this very model, then guard.attach(optimizer)"
            )
        self.batches.forget()
        lost = [name for name, state in known.items() if state.started]
        if lost:
            warn_caller(
                f"{some(lost)} left the model: its importance is gone; keep the module in the model to keep it"
            )
        return found | {parameter: None for parameter in held if parameter not in found}

    # ── a step, a task ────────────────────────────────────────────────────────────────────────────────────────

    def stepped(self) -> None:
        """Count a step whose parameters were all observed."""
        self.steps += 1
        if self.method.window and self.steps % self.method.window == 0:
            self._score()

    def _score(self) -> None:
        if self.method.window:
            for batch in self.batches.of(self.started):
                batch.score(self.method)

    def consolidate(self, fishers: Mapping[ParameterState, Tensor]) -> None:
        """End a task; `fishers` are those of a pass over its data, or none."""
        self._score()  # the rest of the last window, before ranges are taken
        self.batches.forget()
        ranges = self._ranges(fishers.values())
        # A parameter without a gradient in this task, such as an unused head, keeps the importance it has.
        for state in fishers or [state for state in self.started if state.used]:
            state.consolidate(self.method, fishers.get(state), ranges)
        self.tasks += 1
        self.steps = 0

    def begin(self, fishers: Mapping[ParameterState, Tensor]) -> None:
        """Take the Fisher of a model that was trained elsewhere as its first task."""
        for state, fisher in fishers.items():
            if not state.started:
                state.start(self.method)
            state.begin(self.method, fisher)
        for state in self.started:
            state.used = True
        self.consolidate(fishers)

    @contextmanager
    def moved(self) -> Iterator[None]:
        """Within this, weights are moved outside of the optimizer's steps: no method counts that as its path."""
        where = {state: state.theta().clone() for state in self.started if "origin" in state.vectors}
        yield
        for state, before in where.items():
            state.moved(self.method, before)

    # ── measures of the whole network ─────────────────────────────────────────────────────────────────────────

    def _ranges(self, fishers: Iterable[Tensor]) -> Ranges:
        """Extrema of the vectors to normalise, over the whole network; and a check of all that was measured.

        All are minima, the largest negated, so that ranks that share a network talk only once.
        """
        started, scales = self.started, self.method.scales
        penalty = sum(_cost(state, self.method) for state in started)
        finite = math.isfinite(penalty) and all(map(_is_finite, started))
        finite = finite and all(bool(fisher.isfinite().all()) for fisher in fishers)
        minima = [float(finite), -penalty if finite else 0.0]
        for name in scales:
            pairs = [_extrema(state, name) for state in started]
            minima += [min(low for low, _ in pairs), min(-high for _, high in pairs)]
        shared = dict.fromkeys(group for state in self.guarded for group in groups(state.parameter))
        finite_everywhere, negated_penalty, *bounds = _reduced(minima, shared, "MIN")
        if not finite_everywhere:
            raise not_finite("a gradient of this task was not finite, so its importance is not either")
        if negated_penalty == 0 and self.steps and self.holds():
            warn_caller(
                "the penalty stayed exactly 0 through the whole task, so nothing was protected: set lam above 0, "
                "and let params= select parameters that every task trains"
            )
        low, negated_high = (torch.tensor(each, dtype=torch.float64) for each in (bounds[::2], bounds[1::2]))
        return dict(zip(scales, zip(low, -negated_high, strict=True), strict=True))

    def penalty(self) -> float:
        """The penalty's value now; where parameters are sharded, all ranks must call this."""
        costs: dict[tuple[Group, ...], float] = {}
        for state in self.started:
            shared = groups(state.parameter)
            costs[shared] = costs.get(shared, 0.0) + _cost(state, self.method)
        return sum(_reduced([cost], shared, "SUM")[0] for shared, cost in costs.items())

    def is_finite(self) -> bool:
        """Whether all parameters are finite; the host waits for the device once."""
        sums = [local(state.parameter.detach()).sum(dtype=state.work_dtype) for state in self.started]
        return not sums or bool(torch.stack([each.to(sums[0].device) for each in sums]).isfinite().all())

    def warn_if_moved(self, otherwise: str) -> None:
        """Between two tasks a model should be where the last one left it."""
        moved = [state.name for state in self.started if not _is_at_anchor(state, self.method)]
        if self.steps == 0 and moved:
            warn_caller(f"the model is not where its last task left it ({some(moved)}): {otherwise}")

    # ── files ─────────────────────────────────────────────────────────────────────────────────────────────────

    def state_dict(self) -> dict[str, Any]:
        tensors = {
            f"{vector}/{state.name}": tensor.clone()
            for state in self.started
            for vector, tensor in full_vectors(state).items()
        }
        record = {"tasks": self.tasks, "steps": self.steps, "tensors": tensors}
        unused = [state.name for state in self.started if self.steps and not state.used]
        return {**record, "unused": unused} if unused else record

    def load(self, record: Mapping[str, Any], vectors: Vectors) -> None:
        """Continue from a record whose vectors were checked."""
        self.batches.forget()
        found = dict(self.by_parameter)
        for parameter, state in self.by_parameter.items():
            if state and state.name in vectors:
                check_fits(state.name, vectors[state.name], parameter)
                found[parameter] = loaded = restored(state, vectors[state.name], parameter, self.method)
                loaded.used = bool(record["steps"]) and state.name not in record.get("unused", ())
        self.by_parameter = found
        self.tasks, self.steps = record["tasks"], record["steps"]
        free = [each.name for each in self.guarded if each.parameter.requires_grad and each.name not in vectors]
        if vectors and free:
            warn_caller(f"nothing was saved for {some(free)}: they start free")
        self.warn_if_moved(
            "load its weights before the guard's, or it will be pulled towards weights it never had"
        )


def not_finite(what: str) -> InputError:
    return InputError(
        f"{what}: go back to weights and guard as they were saved before (Guard.load), and train the task again, "
        "at a smaller learning rate"
    )


def _cost(state: ParameterState, method: Method) -> float:
    """This parameter's part of the penalty."""
    return sum(float(method.cost(part.state, part.theta)) for part in state.parts())


def _is_finite(state: ParameterState) -> bool:
    tensors = (each for part in state.parts() for each in (part.theta, *part.state.values()))
    return all(bool(each.isfinite().all()) for each in tensors)


def _extrema(state: ParameterState, name: str) -> tuple[float, float]:
    """The smallest and largest value of a vector; of an empty one, those that change no other's."""
    pairs = [part.state[name].aminmax() for part in state.parts() if part.theta.numel()]
    low = min((float(low) for low, _ in pairs), default=math.inf)
    return low, max((float(high) for _, high in pairs), default=-math.inf)


def _is_at_anchor(state: ParameterState, method: Method) -> bool:
    """Whether parameters are where the last task left them, up to the rounding of the state."""
    return all(
        bool((_is_near(part.theta, anchor, state.rounding) | (importance == 0)).all())
        for part in state.parts()
        for _, importance, anchor in method.springs(part.state)[-1:]
    )


def _is_near(theta: Tensor, anchor: Tensor, rounding: float) -> Tensor:
    """Number by number; bfloat16 rounds each by its own size, others by a share of the largest around it."""
    least = max(1e-6, rounding * float(anchor.abs().amax())) if anchor.numel() else 0.0
    return torch.isclose(theta, anchor, rtol=1e-2, atol=least)


def _reduced(numbers: list[float], shared: Iterable[Group], op: Literal["MIN", "SUM"]) -> list[float]:
    """Numbers reduced over all ranks of these process groups."""
    for device, group in shared:
        tensor = torch.tensor(numbers, dtype=torch.float64, device=device)
        dist.all_reduce(tensor, getattr(dist.ReduceOp, op), group)
        numbers = tensor.tolist()
    return numbers
