"""Optimizer hooks: every step of one optimizer is guarded and observed as a whole, or leaves no trace.

torch calls the hooks before and after `optimizer.step`, but none when it raises. So the step is also called from
within a `try` (`contain`), and a step that nothing ended is recognised later: torch's own call of it is no longer
on the stack.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found] # `signal` without its enums: they are too slow for every step
import gc
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import cache, wraps
from operator import is_
from types import FrameType, MethodType
from typing import Any, NamedTuple
from weakref import WeakSet, ref

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from rwalk.errors import InputError
from rwalk.guard import watch
from rwalk.guard.state.guard_state import GuardState, ParameterStates
from rwalk.guard.state.parameter import ParameterState
from rwalk.guard.state.sharded import is_sharded, local
from rwalk.guard.step.dispatch import AnyBatch
from rwalk.guard.step.executor import Pulls
from rwalk.guard.step.penalty import step_size

Moving = tuple[ParameterState, Tensor]  # a parameter that takes part in a step, and its gradient


class Around(NamedTuple):
    """A guard's part in a step: its state, the gradients to add before, and a function to call after."""

    learned: GuardState
    pulls: Callable[[nn.Module, Optimizer], Pulls]
    observed: Callable[[nn.Module, Optimizer], None]


class OptimizerHooks:
    """The hooks of one optimizer, which run before and after each of its steps.

    owner   the guard, as errors name it
    around  the guard's work before and after a step
    match   finds the parameter states again when the optimizer has new parameters
    """

    def __init__(
        self,
        owner: object,
        optimizer: Optimizer,
        model: nn.Module,
        around: Around,
        match: Callable[[], ParameterStates],
    ) -> None:
        self.owner = owner
        self.optimizer = optimizer
        self.learned = around.learned
        self._model = model
        self._around = around
        self._match = match
        self._closure_is_checked = self._late_is_checked = False
        self._aside = not _leaves_gradients(optimizer)
        self._rosters: dict[int, Roster] = {}  # by group of the optimizer's
        self._step: Step | None = None  # in progress, or failed unnoticed
        self._release: list[Callable[[], None]] = []

    def begin(self, hooks: bool) -> None:
        if hooks:
            me = ref(self)  # a scheduler may keep what `contain` makes for as long as the optimizer lives

            def failed() -> None:
                if (following := me()) is not None:
                    following.forget_failed_step(at_once=True)

            self._release = [
                self.optimizer.register_step_pre_hook(self._before_hook).remove,
                self.optimizer.register_step_post_hook(self._after_hook).remove,
                contain(self.optimizer, failed),
            ]
        _watch_all_optimizers()
        _AT_WORK.add(self)

    def end(self) -> None:
        self.forget_failed_step(at_once=False)
        for release in self._release:
            release()
        self._release = []
        _AT_WORK.discard(self)

    # ── a step ────────────────────────────────────────────────────────────────────────────────────────────────

    def before_step(self) -> None:
        """For a loop that calls this itself; twice without `after_step`, and the step in between was skipped."""
        self.forget_failed_step(at_once=False)
        self._before_step(Step())

    def after_step(self) -> None:
        if self._step is None:
            raise InputError("after_step() without before_step(): call both, around every optimizer.step()")
        self._after_step(self._step)

    def forget_failed_step(self, at_once: bool) -> None:
        """Nothing of it is observed, and gradients are given back: see `Batch.abandon`."""
        step, self._step = self._step, None
        if step is not None:
            step.abandon(at_once)

    def _before_hook(
        self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """The gradients are complete now; with a closure, only once that has run."""
        if self._step is not None:
            if self._step.is_under_way():  # of a class that calls super().step()
                return None
            self.forget_failed_step(at_once=False)
        step = Step(sys._getframe(1))
        closure = args[1] if len(args) > 1 else kwargs.get("closure")
        if closure is None:
            self._before_step(step)
            return None
        self._step = step
        guarded = self._guarded_closure(step, closure, self._before_first_closure())
        if len(args) > 1:
            return (args[0], guarded, *args[2:]), kwargs
        return args, {**kwargs, "closure": guarded}

    def _before_first_closure(self) -> list[tuple[nn.Parameter, Tensor]]:
        """Copies of the parameters, for methods that measure the path: see `_check_is_at`."""
        if self._closure_is_checked or "move" not in self.learned.method.wants:
            return []
        trained = [each for piece in self.learned.guarded for each in piece.storage.trained]
        return [(each, local(each.detach()).clone()) for each in trained]

    @torch.no_grad()
    def _check_is_at(self, places: list[tuple[nn.Parameter, Tensor]]) -> None:
        """An optimizer such as SAM moves parameters before it evaluates its closure: its step is no path."""
        self._closure_is_checked = True
        if not all(torch.equal(local(each.detach()), before) for each, before in places):
            for each, before in places:
                local(each.detach()).copy_(before)
            raise InputError(
                f"{type(self.optimizer).__name__} moves the parameters before it evaluates its closure, so "
                f"{self.learned.method.name} cannot measure the path of a step: use EWC, MAS or an anchor"
            )

    def _guarded_closure(
        self, step: Step, closure: Callable[[], Any], places: list[tuple[nn.Parameter, Tensor]]
    ) -> Callable[[], Any]:
        evaluated = False

        def guarded() -> Any:
            nonlocal evaluated
            if evaluated:
                raise InputError(
                    f"{type(self.optimizer).__name__} evaluates its closure more than once per step: Guard needs "
                    "one gradient per step; use an optimizer that evaluates it once"
                )
            evaluated = True
            if places:
                self._check_is_at(places)
                places.clear()
            loss = closure()
            self._before_step(step)
            return loss

        return guarded

    def _after_hook(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self._step is not None and self._step.call is sys._getframe(1):  # not of a step within it
            self._after_step(self._step)

    @torch.no_grad()
    def _before_step(self, step: Step) -> None:
        self._step = None
        if not _will_step(self.optimizer):
            return
        self._step = step
        try:
            try:
                moving = self._moving()
            except KeyError:  # a new parameter
                self.learned.pieces = self._match()
                moving = self._moving()
            pulls = self._around.pulls(self._model, self.optimizer)
            for group, pieces in moving:
                self._join(step, group, pieces, pulls)
        except BaseException:
            self.forget_failed_step(at_once=True)
            raise

    def _moving(self) -> list[tuple[dict[str, Any], list[Moving]]]:
        """By parameter group, the guarded parameters that take part in the step.

        Without a gradient the optimizer leaves a parameter alone, and so does the guard.
        """
        found = []
        adapted: set[ParameterState] = set()
        for number, group in enumerate(self.optimizer.param_groups):
            roster = self._rosters.get(number)
            if roster is None or not roster.is_of(group["params"], self.learned.pieces):
                roster = self._rosters[number] = Roster(group["params"], self.learned.pieces)
            moving = []
            for parameter, piece in roster.guarded:
                if (gradient := parameter.grad) is not None:
                    moving.append((piece, gradient))
            if roster.has_adapters:
                moving = [each for each in moving if _comes_first(each[0], adapted)]
            found.append((group, moving))
        return found

    def _join(
        self,
        step: Step,
        group: dict[str, Any],
        moving: list[Moving],
        pulls: Pulls,
    ) -> None:
        """Add the parameters of one parameter group to the step."""
        method = self.learned.method
        size = step_size(self.optimizer, group)
        lr = group.get("lr")
        if lr is None and method.penalty == "proximal":
            raise InputError(
                f"{type(self.optimizer).__name__} has no learning rate (lr=None), by which a proximal penalty is "
                "scaled: give it one, or use penalty='gradient'"
            )
        pieces = []
        for piece, gradient in moving:
            if gradient.is_sparse:
                raise InputError(
                    f"{piece.name} has a sparse gradient, which no guard can hold: "
                    "make its layer with sparse=False, or exclude it by params="
                )
            if not piece.started:
                piece.start(method)
            pieces.append(piece)
        for batch in self.learned.batches.of(pieces) if pieces else ():
            step.batches.append(batch)
            batch.before_step(method, float(lr or 0.0), size, pulls, self._aside)

    @torch.no_grad()
    def _after_step(self, step: Step) -> None:
        self._step = None
        try:
            with Uninterrupted():
                for batch in step.batches:
                    if batch.steps_late and not self._late_is_checked:
                        self._late_is_checked = True
                        _warn_of_copies(self.optimizer)
                    batch.after_step()
                self._around.observed(self._model, self.optimizer)
        except BaseException:
            step.abandon(at_once=True)
            raise


class Step:
    """A step in progress, and the batches of parameters that take part in it.

    `call` is torch's frame of `optimizer.step`; None in a loop that calls the guard itself.
    """

    def __init__(self, call: FrameType | None = None) -> None:
        self.call = call
        self.batches: list[AnyBatch] = []

    def is_under_way(self) -> bool:
        """Whether its call has neither returned nor raised yet."""
        if self.call is None:
            return True
        frame: FrameType | None = sys._getframe()
        while frame is not None and frame is not self.call:
            frame = frame.f_back
        return frame is not None

    def abandon(self, at_once: bool) -> None:
        """It failed: gradients are given back, nothing is observed."""
        for batch in self.batches:
            batch.abandon(at_once)
        self.batches = []


def contain(optimizer: Optimizer, on_failure: Callable[[], None]) -> Callable[[], None]:
    """Call `on_failure` as soon as this optimizer's step raises; the returned function undoes this.

    torch's schedulers replace an optimizer's step in the same way, and either may come first.
    """
    step = optimizer.step
    own = vars(optimizer).get("step")  # a scheduler's, put there before

    @wraps(step)
    def contained(self: Optimizer, *args: Any, **kwargs: Any) -> Any:
        try:
            return step(*args, **kwargs)
        except BaseException:
            on_failure()
            raise

    bound = MethodType(contained, optimizer)
    optimizer.step = bound  # type: ignore[method-assign]

    def release() -> None:
        if vars(optimizer).get("step") is not bound:
            return  # it was wrapped since, and does no harm there
        if own is None:
            del optimizer.step
        else:
            optimizer.step = own  # type: ignore[method-assign]

    return release


class Uninterrupted:
    """Ctrl-C waits until this is done: half an observation can be neither kept nor undone.

    Only Python's own handler is held up, in the only thread it interrupts.
    """

    _holds = _came = False

    def __enter__(self) -> None:
        main = threading.current_thread() is threading.main_thread()
        if main and _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
            self._holds = True
            _signal.signal(_signal.SIGINT, self._note)

    def __exit__(self, *error: object) -> None:
        if self._holds:
            _signal.signal(_signal.SIGINT, _signal.default_int_handler)
        if self._came:
            raise KeyboardInterrupt

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._came = True


class Roster:
    """The guarded parameters of one parameter group, which are nearly always the same as in the last step."""

    def __init__(self, parameters: Sequence[nn.Parameter], pieces: ParameterStates) -> None:
        self._parameters, self._pieces = list(parameters), pieces
        self.guarded = [(each, piece) for each in parameters if (piece := pieces[each]) is not None]
        self.has_adapters = any(piece.storage.product is not None for _, piece in self.guarded)

    def is_of(self, parameters: Sequence[nn.Parameter], pieces: ParameterStates) -> bool:
        same = self._pieces is pieces and len(self._parameters) == len(parameters)
        return same and all(map(is_, self._parameters, parameters))


def _comes_first(piece: ParameterState, adapted: set[ParameterState]) -> bool:
    """An adapter has two parameters, perhaps in two groups, and takes part once."""
    if piece.storage.product is None:
        return True
    first = piece not in adapted
    adapted.add(piece)
    return first


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


def _leaves_gradients(optimizer: Optimizer) -> bool:
    """Whether a step leaves gradients as they are: torch's own optimizers do; others may not."""
    return type(optimizer).__module__.startswith("torch.optim.")


def keeps_copies(optimizer: Optimizer) -> bool:
    """Whether an optimizer has just written weights of its own (master weights) over the parameters.

    Such copies are found in its state and attributes: tensors that are equal to a parameter right after a step.
    """
    if _leaves_gradients(optimizer):  # torch's own keep none
        return False
    places = [value for name, value in vars(optimizer).items() if name not in ("param_groups", "defaults")]
    copies: dict[torch.Size, list[Tensor]] = {}
    for tensor in _tensors_in(places, depth=4):
        copies.setdefault(tensor.shape, []).append(tensor.detach())
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            here = local(parameter.detach())
            for copy in copies.get(here.shape, ()):
                other = copy.data_ptr() != here.data_ptr() and copy.device == here.device
                if other and torch.equal(copy.to(here.dtype), here) and bool((here != here.flatten()[0]).any()):
                    return True
    return False


def _tensors_in(value: Any, depth: int) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        if value.is_floating_point() and value.numel() > 1 and not is_sharded(value):
            yield value
    elif depth and isinstance(value, dict | list | tuple):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _tensors_in(each, depth - 1)


def _warn_of_copies(optimizer: Optimizer) -> None:
    if keeps_copies(optimizer):
        watch.warn(
            f"{type(optimizer).__name__} keeps weights of its own and writes them over the parameters in a step, "
            "so a penalty that acts after a step is lost: use penalty='gradient' and a smaller lam"
        )


# ── all guards at work ───────────────────────────────────────────────────────────────────────────────────────

_AT_WORK: WeakSet[OptimizerHooks] = WeakSet()


def check_is_alone(owner: object, pieces: ParameterStates) -> None:
    """Two guards of one parameter would both pull, or each miss what the other's optimizer does."""
    if _rivals(owner, pieces):
        gc.collect()  # a guard and its optimizer refer to each other, and may be garbage
    for other in _rivals(owner, pieces):
        raise InputError(
            f"{other.owner} guards these parameters already, and both would pull: continue with that one, or "
            "detach() it before"
        )


def _rivals(owner: object, pieces: ParameterStates) -> list[OptimizerHooks]:
    parameters = [parameter for parameter, piece in pieces.items() if piece]
    others = [other for other in _AT_WORK if other.owner is not owner]
    return [other for other in others if any(map(other.learned.pieces.get, parameters))]


def _check_is_followed(optimizer: Optimizer, args: object, kwargs: object) -> None:
    """Before a step of any optimizer: does it move parameters of a guard that does not follow it?"""
    if _bypasses_a_guard(optimizer):
        gc.collect()  # as in `check_is_alone`
        if _bypasses_a_guard(optimizer):
            raise InputError(
                f"an optimizer ({type(optimizer).__name__}) that the guard does not follow moves guarded "
                "parameters: guard.attach(optimizer) follows a new one, guard.detach() stops guarding"
            )


def _bypasses_a_guard(optimizer: Optimizer) -> bool:
    for following in list(_AT_WORK):
        if following.optimizer is optimizer:
            continue
        step = following._step
        if step is not None and step.is_under_way():  # of one that wraps this optimizer
            continue
        pieces = following.learned.pieces
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if pieces.get(parameter) is not None:
                    return True
    return False


@cache
def _watch_all_optimizers() -> None:
    register_optimizer_step_pre_hook(_check_is_followed)
