"""The progress of a study, from its folder alone: no user code is imported, and no data are loaded."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from rwalk.atomic_files import checked_json
from rwalk.model_file import is_whole
from rwalk.studies.executors.shared_folder import OUTCOMES
from rwalk.studies.study_folder import Store
from rwalk.studies.work_claims import CLAIMS, Claims, read_claim


class Running(NamedTuple):
    """A run, or a fleet of them, that some process is training."""

    owner: str
    names: tuple[str, ...]
    progress: float | None  # the fraction that is done, if it has begun


class Status(NamedTuple):
    """Counts of runs by their state; `left` is an estimate in seconds, None without finished runs."""

    total: int
    done: int
    running: tuple[Running, ...]
    left: float | None

    @property
    def waiting(self) -> int:
        at_work = sum(len(each.names) for each in self.running if not each.names[0].startswith("reference"))
        return max(0, self.total - self.done - at_work)


def status_of(folder: Path) -> Status:
    store = Store(folder)
    names = {run.hash(): f"{run.method} seed {run.seed}" for run in store.study().runs}
    finished, times = _outcomes(folder, names)
    done = {row.hash for row in store.rows()} & names.keys() | finished
    claims = [read_claim(path) for path in sorted(Claims(folder / CLAIMS).held().values())]
    running = tuple(each for claim in claims if (each := _running(claim, names)) is not None)
    span = max(times, default=0.0) - min(times, default=0.0)
    left = (len(names) - len(done)) * span / (len(times) - 1) if len(times) > 1 else None
    return Status(len(names), len(done), running, left)


def _outcomes(folder: Path, names: dict[str, str]) -> tuple[set[str], list[float]]:
    """The runs whose outcomes are there, and when those were written, by the file system's own clock."""
    finished, times = set[str](), []
    for path in _listed(folder / OUTCOMES):
        with suppress(OSError, ValueError, KeyError, TypeError):
            record, _ = checked_json(path.read_bytes())
            runs = [key for key in record["runs"] if key in names]
            finished |= set(runs)
            times += [path.stat().st_mtime] * bool(runs)
    return finished, times


def _running(claim: dict[str, Any], names: dict[str, str]) -> Running | None:
    """The content of a claim; None if it cannot be shown."""
    runs, reference = claim.get("runs"), claim.get("reference")
    if not isinstance(runs, list) or not runs or not all(isinstance(key, str) for key in runs):
        return None
    if is_whole(reference, 0):
        words = [f"reference a*{reference + 1}"] * len(runs)
    else:
        words = [names.get(key, key[:8]) for key in runs]
    counts = [claim.get(name) for name in ("task", "tasks", "step", "steps")]
    progress = None
    if all(is_whole(each, 0) for each in counts):
        task, tasks, step, steps = counts
        progress = (task + step / steps) / tasks if tasks and steps else None
    return Running(str(claim.get("owner")), tuple(words), progress)


def _listed(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.is_dir() else []
