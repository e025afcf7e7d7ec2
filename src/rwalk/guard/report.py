"""A guard's report: a table when printed or shown in a notebook, or a dictionary."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from rwalk.guard.drift.anchor import Reading

HEADER = ("probes", "examples", "drift")


@dataclass(frozen=True)
class ProbeReport:
    """One set of probes.

    Args:
        examples: how many there are.
        drift: how far outputs have moved, in the unit of their divergence (nats for "kl").
    """

    examples: int
    drift: float


@dataclass(frozen=True, repr=False)
class Report:
    """How far a model has drifted since its last task ended, and how strongly it was held.

    Args:
        left: after `finish` or `rewind`, the share of the way from the old weights to the trained ones that is
            left; 1 if nothing had to be taken back.

    >>> print(Report("anchor", 1.0, 1, 40, 0.05, 0.0, (ProbeReport(64, 0.048),), ()))
    anchor, weight 1, 40 steps after task 1; drift 0.0480 of a budget of 0.05
    probes   examples    drift
    set 1          64   0.0480
    """

    method: str
    weight: float
    tasks: int
    steps: int
    budget: float | None
    penalty: float
    probes: tuple[ProbeReport, ...]
    readings: tuple[Reading, ...]
    left: float = 1.0

    @property
    def drift(self) -> float | None:
        """Over all probes; None without probes."""
        examples = sum(each.examples for each in self.probes)
        return sum(each.examples * each.drift for each in self.probes) / examples if examples else None

    def __str__(self) -> str:
        rows = [HEADER, *self._cells()] if self.probes else []
        return "\n".join([self._summary(), *("{:<8} {:>8}  {:>7}".format(*row) for row in rows)])

    __repr__ = __str__

    def _summary(self) -> str:
        held = f"{self.method}, weight {self.weight:.3g}, {self.steps} steps after task {self.tasks}; "
        drift = f"penalty {self.penalty:.3g}" if self.drift is None else f"drift {self.drift:.4f}"
        budget = "" if self.budget is None else f" of a budget of {self.budget:g}"
        back = f"; weights interpolated back to {self.left:.0%} of the way" if self.left < 1 else ""
        return held + drift + budget + back

    def _cells(self) -> list[tuple[str, ...]]:
        """One row for each set of probes, under HEADER."""
        sets = enumerate(self.probes, 1)
        return [(f"set {number}", str(each.examples), f"{each.drift:.4f}") for number, each in sets]

    def to_dict(self) -> dict[str, Any]:
        """Plain values, fit for JSON."""
        return {**asdict(self), "readings": [reading._asdict() for reading in self.readings]}


@dataclass(frozen=True)
class Point:
    """One point of a frontier: the share of the way from the old weights (0) to the new ones (1)."""

    share: float
    drift: float
    loss: float | None
