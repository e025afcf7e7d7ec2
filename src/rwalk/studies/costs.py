"""What runs cost, kept in the study's folder: no row may depend on how busy a machine was."""

from __future__ import annotations

import csv
import math
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from rwalk.studies.events import Event, Spent

NAME = "costs.csv"


class Recorded(NamedTuple):
    """A run's seconds, the bytes it keeps beside its network, and when it ended (UTC)."""

    seconds: float
    kept: int
    ended: datetime


class Costs:
    """Costs by the runs' hashes; of a run that was trained twice, the later ones."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / NAME

    def watch(self, event: Event) -> None:
        if isinstance(event, Spent):
            now = datetime.now(UTC).isoformat(timespec="seconds")
            seconds = f"{event.cost.seconds:.4f}"
            lines = [
                [run.hash(), seconds, kept, now] for run, kept in zip(event.runs, event.cost.kept, strict=True)
            ]
            with suppress(OSError), open(self.file, "a", newline="") as file:  # a cost must not stop a study
                csv.writer(file, lineterminator="\n").writerows(lines)

    def read(self) -> dict[str, Recorded]:
        found = {}
        with suppress(OSError, UnicodeDecodeError):
            for line in csv.reader(self.file.read_text().splitlines()):
                with suppress(ValueError):  # a line truncated by a crash
                    key, seconds, kept, ended = line
                    cost = Recorded(float(seconds), int(kept), datetime.fromisoformat(ended))
                    if math.isfinite(cost.seconds) and cost.ended.tzinfo:
                        found[key] = cost
        return found
