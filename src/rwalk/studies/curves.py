"""Loss curves of a study, which rows do not hold: kept in its folder, for reports and trackers."""

from __future__ import annotations

import csv
from contextlib import suppress
from pathlib import Path

from rwalk.studies.specs import RunSpec

NAME = "losses.csv"


class Curves:
    """Losses by run and step. If an interrupted run repeats steps, the later value counts."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / NAME
        self._losses: dict[str, dict[int, float]] = {}
        with suppress(OSError, UnicodeDecodeError):
            for line in csv.reader(self.file.read_text().splitlines()):
                with suppress(ValueError):  # a line truncated by a crash
                    key, step, loss = line
                    self._losses.setdefault(key, {})[int(step)] = float(loss)

    def add(self, run: RunSpec, step: int, loss: float) -> None:
        self._losses.setdefault(run.hash(), {})[step] = loss
        with suppress(OSError), open(self.file, "a", newline="") as file:  # a curve must not stop a study
            csv.writer(file, lineterminator="\n").writerow([run.hash(), step, repr(loss)])

    def runs(self) -> list[str]:
        """The hashes of all runs that have losses, in the order in which they began."""
        return list(self._losses)

    def of(self, run: RunSpec | str) -> list[tuple[int, float]]:
        """(step, loss) of a run, or of the run with this hash."""
        return sorted(self._losses.get(run if isinstance(run, str) else run.hash(), {}).items())
