"""Optimizer hooks: every step of one optimizer is guarded and observed as a whole, or leaves no trace.

torch calls hooks before and after `optimizer.step`, but none if it raises. The next step recognises this, because
torch's own call of the first is no longer on the stack, and gives the gradients back.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from types import FrameType
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from rwalk.errors import InputError, warn_caller
from rwalk.guard.state.guard_state import GuardState, ParameterStates
from rwalk.guard.state.parameter import ParameterState
from rwalk.guard.state.sharded import is_sharded, local
from rwalk.guard.step.penalty import step_size
from rwalk.guard.step.step_executor import Batch, Pulls

if TYPE_CHECKING:
    from rwalk.guard.guard import Guard


class Step:
    """A step in progress, and the batches of parameters that take part in it.

    `call` is torch's frame of `optimizer.step`.
    """

    def __init__(self, call: FrameType) -> None:
        self.call = call
        self.batches: list[Batch] = []

    def is_running(self) -> bool:
        """Whether its call has neither returned nor raised yet."""
        frame: FrameType | None = sys._getframe()
        while frame is not None and frame is not self.call:
            frame = frame.f_back
        return frame is not None


class OptimizerHooks:
    """The hooks of one optimizer, which call a guard before and after each of its steps."""

    def __init__(self, guard: Guard, optimizer: Optimizer, state: GuardState) -> None:
        self.guard, self.optimizer, self.state = guard, optimizer, state
        self.step: Step | None = None  # in progress, or failed unnoticed
        self._closure_is_checked = self._copies_are_checked = False
        self._changes_gradients = not _is_torchs(optimizer)
        self._release: list[Callable[[], None]] = []

    def begin(self) -> None:
        self._release = [
            self.optimizer.register_step_pre_hook(self._before_hook).remove,
            self.optimizer.register_step_post_hook(self._after_hook).remove,
        ]
        _watch_all_optimizers()
        _ACTIVE.add(self)

    def end(self) -> None:
        self.abandon(at_once=False)
        for release in self._release:
            release()
        self._release = []
        _ACTIVE.discard(self)

    # ── a step ────────────────────────────────────────────────────────────────────────────────────────────────

    def abandon(self, at_once: bool) -> None:
        """Forget a failed step: nothing of it is observed, and gradients are given back; see `Batch.abandon`."""
        step, self.step = self.step, None
        for batch in step.batches if step else ():
            batch.abandon(at_once)

    def _before_hook(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The gradients are complete now; with a closure, only once that has run."""
        if self.step is not None and self.step.is_running():  # of a class that calls super().step()
            return None
        self.abandon(at_once=False)
        step = Step(sys._getframe(1))
        closure = args[1] if len(args) > 1 else kwargs.get("closure")
        if closure is None:
            self._before_step(step)
            return None
        self.step = step
        guarded = self._guarded_closure(step, closure)
        if len(args) > 1:
            return (args[0], guarded, *args[2:]), kwargs
        return args, {**kwargs, "closure": guarded}

    def _guarded_closure(self, step: Step, closure: Callable[[], Any]) -> Callable[[], Any]:
        """The closure, evaluated once, and where the parameters were before it.

        An optimizer such as SAM moves them first: then a step is no path.
        """
        moves = "move" in self.state.method.wants and not self._closure_is_checked
        trained = [each.parameter for each in self.state.guarded] if moves else []
        before = [local(each.detach()).clone() for each in trained]
        self._closure_is_checked = True
        kind, evaluated = type(self.optimizer).__name__, False

        def guarded() -> Any:
            nonlocal evaluated
            if evaluated:
                raise InputError(
                    f"{kind} evaluates its closure more than once per step: Guard needs one gradient per step; "
                    "use an optimizer that evaluates it once"
                )
            evaluated = True
            with torch.no_grad():
                here = [local(each.detach()) for each in trained]
                if not all(map(torch.equal, here, before)):
                    for each, place in zip(here, before, strict=True):
                        each.copy_(place)
                    raise InputError(
                        f"{kind} moves the parameters before it evaluates its closure, so "
                        f"{self.state.method.name} cannot measure the path of a step: use EWC, MAS or an anchor"
                    )
            before.clear()
            loss = closure()
            self._before_step(step)
            return loss

        return guarded

    def _after_hook(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self.step is not None and self.step.call is sys._getframe(1):  # not of a step within it
            self._after_step(self.step)

    @torch.no_grad()
    def _before_step(self, step: Step) -> None:
        self.step = None
        if not _will_step(self.optimizer):
            return
        self.step = step
        try:
            try:
                moving = self._moving()
            except KeyError:  # a new parameter
                self.state.by_parameter = self.guard._matched(self.guard.model, self.optimizer)
                moving = self._moving()
            pulls = self.guard._pulls()
            for group, states in moving:
                self._join(step, group, states, pulls)
        except BaseException:
            self.abandon(at_once=True)
            raise

    def _moving(self) -> list[tuple[dict[str, Any], list[ParameterState]]]:
        """By parameter group, the guarded parameters in this step: those that have a gradient."""
        found = []
        for group in self.optimizer.param_groups:
            states = []
            for parameter in group["params"]:
                if parameter.grad is not None and (state := self.state.by_parameter[parameter]) is not None:
                    states.append(state)
            found.append((group, states))
        return found

    def _join(self, step: Step, group: dict[str, Any], states: Sequence[ParameterState], pulls: Pulls) -> None:
        """Add the parameters of one parameter group to the step."""
        method, lr = self.state.method, group.get("lr")
        if lr is None and method.penalty == "proximal":
            raise InputError(
                f"{type(self.optimizer).__name__} has no learning rate (lr=None), by which a proximal penalty is "
                "scaled: give it one, or use penalty='gradient'"
            )
        for state in states:
            gradient: Any = state.parameter.grad
            if gradient.is_sparse:
                raise InputError(
                    f"{state.name} has a sparse gradient, which no guard can hold: "
                    "make its layer with sparse=False, or exclude it by params="
                )
            if not state.started:
                self.guard._start(state)
        size = step_size(self.optimizer, group)
        for batch in self.state.batches.of(states) if states else ():
            step.batches.append(batch)
            batch.before_step(method, float(lr or 0.0), size, pulls, self._changes_gradients)

    @torch.no_grad()
    def _after_step(self, step: Step) -> None:
        try:
            for batch in step.batches:
                if batch.steps_late and not self._copies_are_checked:
                    self._copies_are_checked = True
                    _warn_of_copies(self.optimizer)
                batch.after_step()
            self.guard._observed()
        except BaseException:
            self.abandon(at_once=True)
            raise
        self.step = None


# ── optimizers of all kinds ───────────────────────────────────────────────────────────────────────────────────


def _will_step(optimizer: Any) -> bool:
    """Whether GradScaler lets this step happen; if so, the gradients are unscaled from here on.

    GradScaler does not call the step of most optimizers if gradients are not finite. Fused optimizers get the
    scale and the flag instead, and use them inside their kernel, where the unscaled gradient is out of reach.
    """
    found_inf = getattr(optimizer, "found_inf", None)
    if found_inf is not None and found_inf.item():
        return False
    scale = getattr(optimizer, "grad_scale", None)
    if scale is not None:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.grad.div_(scale.to(parameter.grad.device))
        optimizer.grad_scale = None
    return True


def _is_torchs(optimizer: Optimizer) -> bool:
    """Whether it is one of torch's own, which leave gradients as they are and keep no master weights."""
    return type(optimizer).__module__.startswith("torch.optim.")


def _warn_of_copies(optimizer: Optimizer) -> None:
    """Warn if an optimizer has just written weights of its own (master weights) over the parameters.

    Such copies are tensors in its state or attributes that are equal to a parameter right after a step.
    """
    if _is_torchs(optimizer):
        return None
    kept = [value for name, value in vars(optimizer).items() if name not in ("param_groups", "defaults")]
    copies = [each.detach() for each in _tensors_in(kept, depth=4)]
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            here = local(parameter.detach())
            for copy in copies:
                other = (copy.shape, copy.device) == (
                    here.shape,
                    here.device,
                ) and copy.data_ptr() != here.data_ptr()
                if other and torch.equal(copy.to(here.dtype), here) and bool((here != here.flatten()[0]).any()):
                    return warn_caller(
                        f"{type(optimizer).__name__} keeps weights of its own and writes them over the parameters "
                        "in a step, so a penalty that acts after a step is lost: use penalty='gradient' and a "
                        "smaller lam"
                    )
    return None


def _tensors_in(value: Any, depth: int) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        if value.is_floating_point() and value.numel() > 1 and not is_sharded(value):
            yield value
    elif depth and isinstance(value, dict | list | tuple):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _tensors_in(each, depth - 1)


# ── all guards ────────────────────────────────────────────────────────────────────────────────────────────────

_ACTIVE: WeakSet[OptimizerHooks] = WeakSet()


def check_is_alone(guard: Guard, parameters: ParameterStates) -> None:
    """Refuse two guards of one parameter, which would both pull."""
    guarded = [parameter for parameter, state in parameters.items() if state]
    other = _found(lambda hooks: hooks.guard is not guard and _guards_any(hooks, guarded))
    if other is not None:
        raise InputError(
            f"{other.guard} guards these parameters already, and both would pull: continue with that one, or "
            "detach() it before"
        )


def _check_is_followed(optimizer: Optimizer, args: object, kwargs: object) -> None:
    """Before a step of any optimizer: refuse it if it moves parameters of a guard that has another optimizer."""

    def bypassed(hooks: OptimizerHooks) -> bool:
        if hooks.optimizer is optimizer or (hooks.step is not None and hooks.step.is_running()):
            return False  # or of one that wraps this optimizer
        return any(_guards_any(hooks, group["params"]) for group in optimizer.param_groups)

    if _found(bypassed) is not None:
        raise InputError(
            f"an optimizer ({type(optimizer).__name__}) that the guard does not follow moves guarded "
            "parameters: guard.attach(optimizer) follows a new one, guard.detach() stops guarding"
        )


def _guards_any(hooks: OptimizerHooks, parameters: Sequence[nn.Parameter]) -> bool:
    return any(hooks.state.by_parameter.get(each) is not None for each in parameters)


def _found(condition: Callable[[OptimizerHooks], bool]) -> OptimizerHooks | None:
    """The first active hooks for which this holds, garbage excepted: guard and optimizer refer to each other."""
    if not any(map(condition, list(_ACTIVE))):
        return None
    gc.collect()
    return next(filter(condition, list(_ACTIVE)), None)


@cache
def _watch_all_optimizers() -> None:
    register_optimizer_step_pre_hook(_check_is_followed)
