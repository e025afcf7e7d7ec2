"""Wall time of training, experiment by experiment and in all."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager


class Clock:
    """Adds up laps by name."""

    def __init__(self) -> None:
        self._began = time.perf_counter()
        self._laps: dict[str, tuple[int, float]] = {}  # runs trained, seconds

    @contextmanager
    def lap(self, name: str, runs: int) -> Iterator[None]:
        """Time the training of so many runs of `name`."""
        began = time.perf_counter()
        yield
        before, seconds = self._laps.get(name, (0, 0.0))
        self._laps[name] = before + runs, seconds + time.perf_counter() - began

    def lines(self, machine: str) -> Iterator[str]:
        """The number of runs and their time, by name; nothing if no run was trained."""
        trained = {name: lap for name, lap in self._laps.items() if lap[0]}
        for name, (runs, seconds) in trained.items():
            yield f"{name}: {runs} run{'s' * (runs != 1)} trained in {spoken(seconds)}"
        if trained:
            yield f"in all: {spoken(time.perf_counter() - self._began)} on {machine}"


def spoken(seconds: float) -> str:
    """A duration, to the second.

    >>> spoken(7.3), spoken(167.2)
    ('7 s', '2 min 47 s')
    """
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"
