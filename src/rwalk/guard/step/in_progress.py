"""One step of somebody else's optimizer: it is guarded and observed as a whole, or it leaves no trace.

torch calls the hooks before and after `optimizer.step`, but none when it raises. So the step is also called from
within a `try` (`contained`), and a step that nobody ended is recognised later: torch's own call of it is no longer
on the stack.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found] # `signal` without its enums: they are too slow for every step
import sys
import threading
from collections.abc import Callable
from functools import wraps
from types import FrameType, MethodType
from typing import Any, Protocol

from torch.optim import Optimizer

from rwalk.methods import Method


class Passage(Protocol):
    """Of parameters through a step."""

    def leave(self, method: Method, lr: float) -> None: ...

    def abandon(self, at_once: bool) -> None: ...


class Step:
    """A step under way: what takes part in it, with its learning rate.

    `call` is torch's frame of `optimizer.step`; None in a loop that calls the guard itself.
    """

    def __init__(self, call: FrameType | None = None) -> None:
        self.call = call
        self.passages: list[tuple[Passage, float]] = []

    def is_under_way(self) -> bool:
        """Whether its call has neither returned nor raised yet; asked from within a step, so rarely."""
        if self.call is None:
            return True
        frame: FrameType | None = sys._getframe()
        while frame is not None and frame is not self.call:
            frame = frame.f_back
        return frame is not None

    def abandon(self, at_once: bool) -> None:
        """It failed: gradients are given back, nothing is observed."""
        for passage, _ in self.passages:
            passage.abandon(at_once)
        self.passages = []


def contain(optimizer: Optimizer, on_failure: Callable[[], None]) -> Callable[[], None]:
    """Call `on_failure` as soon as this optimizer's step raises; what is returned undoes this.

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
            return  # somebody has wrapped it since; it does no harm there
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
