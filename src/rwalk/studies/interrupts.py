"""SIGINT and SIGTERM as a question: training asks after every step whether to save and stop."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any


class Interrupts:
    """Within the context, a first signal is only noted, and a call asks whether it came; a second ends at once.

    A caller that gets True saves its work and raises KeyboardInterrupt, whichever signal it was.
    """

    def __init__(self, *signals: signal.Signals) -> None:
        self.caught: int | None = None
        self._signals = signals or (signal.SIGINT, signal.SIGTERM)
        self._before: dict[int, Any] = {}

    def __call__(self) -> bool:
        return self.caught is not None

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():  # no other thread may handle signals
            self._before = {number: signal.signal(number, self._note) for number in self._signals}
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.caught is not None:
            raise KeyboardInterrupt
        self.caught = number
