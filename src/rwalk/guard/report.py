"""What was kept, said plainly: a table, a dictionary, a picture."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from math import nan
from pathlib import Path
from typing import Any

from torch import nn

from rwalk.errors import InputError
from rwalk.guard.drift.controller import Keeper, Reading
from rwalk.guard.drift.rule import FREE


@dataclass(frozen=True)
class Kept:
    """One set of probes.

    loss_before, loss_after  where the probes have labels, which the model makes a loss of
    """

    examples: int
    drift: float
    loss_before: float | None
    loss_after: float | None


@dataclass(frozen=True)
class Report:
    """How far a model has drifted from where its last task ended, and how hard it was held.

    >>> print(Report("rwalk", 2.0, 1, 40, 0.05, 0.1, (Kept(64, 0.048, None, None),), ()))
    rwalk, λ = 2, 40 steps after task 1; penalty 0.1, budget 0.05
    probes   examples    drift  loss before  loss after
    set 1          64   0.0480            –           –
    """

    method: str
    lam: float
    tasks: int
    steps: int
    budget: float | None
    penalty: float
    probes: tuple[Kept, ...]
    readings: tuple[Reading, ...]

    def __str__(self) -> str:
        budget = "" if self.budget is None else f", budget {self.budget:g}"
        lines = [
            f"{self.method}, λ = {self.lam:.3g}, {self.steps} steps after task {self.tasks}; "
            f"penalty {self.penalty:.3g}{budget}"
        ]
        if self.probes:
            lines.append("probes   examples    drift  loss before  loss after")
        for number, kept in enumerate(self.probes, 1):
            losses = "  ".join(
                "–".rjust(width) if loss is None else f"{loss:{width}.4f}"
                for loss, width in ((kept.loss_before, 11), (kept.loss_after, 10))
            )
            lines.append(f"set {number:<4} {kept.examples:>8}  {kept.drift:>7.4f}  {losses}")
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, fit for JSON."""
        return {**asdict(self), "readings": [reading._asdict() for reading in self.readings]}

    def picture(self, path: str | Path | None = None) -> Any:
        """Drift, λ and the pull over the steps, as matplotlib's figure; written to a file, where one is named."""
        try:
            from matplotlib.figure import Figure
        except ImportError as error:
            raise InputError("a picture needs matplotlib: pip install 'rwalk[plots]'") from error
        figure = Figure(figsize=(7, 6), layout="constrained")
        axes = figure.subplots(3, sharex=True)
        steps: list[int] = []
        start = 0
        for before, reading in zip((None, *self.readings), self.readings, strict=False):
            if before is not None and reading.task != before.task:
                start = steps[-1]  # tasks follow each other
            steps.append(start + reading.step)
        shown = {"drift": "drift (nats)", "lam": "λ", "pull": "pull / push"}
        for axis, (name, label) in zip(axes, shown.items(), strict=True):
            values = [getattr(reading, name) for reading in self.readings]
            if name == "lam":
                values = [lam if lam > FREE else nan for lam in values]  # nothing is held
            axis.plot(steps, values, marker="." if len(values) < 50 else None)
            axis.set_ylabel(label)
            if name == "lam" and any(value > 0 for value in values):
                axis.set_yscale("log")
        if self.budget is not None:
            axes[0].axhline(self.budget, color="gray", linestyle=":", label="budget")
            axes[0].legend()
        axes[-1].set_xlabel("step")
        if path is not None:
            figure.savefig(path)
        return figure


def sets_of(keeper: Keeper, model: nn.Module) -> tuple[Kept, ...]:
    """All sets of probes whose predictions are kept, measured now."""
    found = []
    for probes in keeper.sets:
        if probes.kept:
            examples = probes.examples
            found.append(Kept(examples, probes.drift(model), probes.loss_before, probes.loss(model)))
    return tuple(found)
