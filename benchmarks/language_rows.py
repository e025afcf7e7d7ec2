"""The ways to learn a second text that `language_model` compares, and the rows that are made of them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

RATES = (1e-4, 3e-4, 3e-5)
GENTLE = 1e-5  # a rate so low that little is forgotten by itself
BUDGETS = (0.05, 0.02, 0.1, 0.2)
HOLDING = ("rwalk", "ewc", "anchor")  # what must keep its budgets
STRENGTHS: dict[str, tuple[float, ...]] = {
    "l2": (0.1, 1.0),
    "ewc": (1e2, 1e3),
    "rwalk": (1e1, 1e2),
    "anchor": (0.3, 1.0),
}
LORA_RATE = 1e-3  # adapters start at nothing, and learn at ten times the rate


@dataclass(frozen=True)
class Way:
    """A way to learn the second text."""

    method: str
    rate: float
    strength: float | None = None
    budget: float | None = None

    def __str__(self) -> str:
        how = "" if self.strength is None else f" λ={self.strength:g}"
        return f"{self.method}{how}{'' if self.budget is None else f' budget={self.budget:g}'} at {self.rate:g}"


def held() -> list[Way]:
    """All that must be shown of budgets; one seed will do."""
    plain = [Way("plain", rate) for rate in RATES]
    return plain + [Way(name, rate, budget=b) for b in BUDGETS for rate in RATES for name in HOLDING]


def core() -> list[Way]:
    """Of the frontier, what says the most: for seeds that time may not be enough for all of."""
    plain = [Way("plain", rate) for rate in (*RATES, GENTLE)]
    budgets = [Way(name, rate, budget=BUDGETS[0]) for rate in RATES[:2] for name in STRENGTHS]
    strengths = [Way(name, RATES[0], each[-1]) for name, each in STRENGTHS.items()]
    adapters = [Way("lora", LORA_RATE), Way("lora+anchor", LORA_RATE, budget=BUDGETS[0])]
    return [*plain, *budgets, *strengths, Way("replay", RATES[0]), *(adapters if find_spec("peft") else [])]


def frontier() -> list[Way]:
    """The core first."""
    budgets = [Way(name, rate, budget=0.1) for rate in RATES[:2] for name in STRENGTHS]
    strengths = [Way(name, RATES[0], s) for name, each in STRENGTHS.items() for s in each]
    adapters = [Way("lora", RATES[1])]
    adapters += [Way(f"lora+{name}", LORA_RATE, budget=b) for b in (0.05, 0.1) for name in ("ewc", "anchor")]
    rest = [*budgets, *strengths, Way("replay", RATES[-1]), *(adapters if find_spec("peft") else [])]
    return list(dict.fromkeys([*core(), *rest]))


def plan(seeds: int, only: str | None) -> list[tuple[int, Way]]:
    """The telling ones first, for a run that time ends."""
    planned = [(0, way) for way in held()] if only != "frontier" else []
    if only != "held":
        planned += [(0, way) for way in frontier()]
        planned += [(seed, way) for ways in (core(), frontier()) for seed in range(1, seeds) for way in ways]
    return list(dict.fromkeys(planned))


class Rows:
    """A file of rows, one JSON object per line, to which several processes may add."""

    def __init__(self, file: Path, folder: Path) -> None:
        self._file, self._folder = file, folder

    def all(self) -> list[dict[str, Any]]:
        with self._alone():
            lines = self._file.read_text().splitlines() if self._file.exists() else []
        return [json.loads(line) for line in lines]

    def has(self, seed: int, way: Way) -> bool:
        return any((row["seed"], way_of(row)) == (seed, way) for row in self.all())

    def add(self, row: dict[str, Any]) -> None:
        with self._alone(), self._file.open("a") as file:
            file.write(json.dumps(row) + "\n")

    def _alone(self) -> FileLock:
        return FileLock(self._folder / "rows.lock")

    def missing(self, planned: Sequence[tuple[int, Way]]) -> Iterator[tuple[int, Way]]:
        """Those that have no row, each for as long as no other process is at it; a killed one lets go."""
        for seed, way in planned:
            lock = FileLock(self._folder / f"{seed} {way}.lock")
            try:
                lock.acquire(timeout=0)
            except Timeout:
                continue
            try:
                if not self.has(seed, way):
                    yield seed, way
            finally:
                lock.release()


def way_of(row: Mapping[str, Any]) -> Way:
    return Way(*(row[name] for name in Way.__dataclass_fields__))
