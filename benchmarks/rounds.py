"""Contenders take turns: other load of the machine slows all alike, and ratios hold."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from statistics import median
from time import perf_counter


class Missing(Exception):
    """The object to measure is not installed or not found."""


Contender = Callable[[], float]  # works once, and returns the seconds of one of its steps


def timed(work: Callable[[], object], steps: int) -> Contender:
    def contender() -> float:
        start = perf_counter()
        work()
        return (perf_counter() - start) / steps

    return contender


def interleaved(contenders: Mapping[str, Contender], rounds: int) -> dict[str, list[float]]:
    """Seconds a step of everyone in every round, after one round that only warms."""
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for turn in range(-1, rounds):
        for name, contender in contenders.items():
            seconds = contender()
            if turn >= 0:
                times[name].append(seconds)
    return times


def beside(base: Contender, contenders: Mapping[str, Contender], rounds: int) -> tuple[float, dict[str, float]]:
    """The base's seconds a step, and everyone's ratio to it: medians, each turn by the base's turn before it.

    A virtual machine is slow for a second at a time: a base that worked at the round's beginning would not do.
    """
    times: list[float] = []
    shares: dict[str, list[float]] = {name: [] for name in contenders}
    for turn in range(-1, rounds):  # the first round only warms
        for name, contender in contenders.items():
            before, seconds = base(), contender()
            if turn >= 0:
                times.append(before)
                shares[name].append(seconds / before)
    return median(times), {name: median(own) for name, own in shares.items()}


def ratios(times: Mapping[str, list[float]], base: str) -> dict[str, float]:
    """Median over the rounds of everyone's time by the base's in the same round."""
    return {name: median(t / b for t, b in zip(own, times[base], strict=True)) for name, own in times.items()}
