"""How many runs share a fleet: as many as fit into a device's memory, with work for every device."""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from rwalk.files import parse_json, write_atomically
from rwalk.studies.specs import RunSpec

Job = tuple[RunSpec, ...]  # the runs of one fleet
NOTE = "fleet.json"  # beside a fleet's checkpoints: the runs it consists of


class TooWide(NamedTuple):
    """The answer of a device that a fleet exhausted the memory of."""

    reason: str


def fleets(specs: Sequence[RunSpec]) -> list[Job]:
    """Runs that can share a fleet, together; in it, those that walk together."""
    groups: dict[str, dict[Hashable, list[RunSpec]]] = {}
    for spec in specs:
        groups.setdefault(spec.fleet_key(), {}).setdefault(spec.walker_key(), []).append(spec)
    return [tuple(spec for alike in group.values() for spec in alike) for group in groups.values()]


def spread(jobs: Iterable[Job], devices: int) -> list[Job]:
    """The widest fleets in halves, until there is one for every device."""
    found = list(jobs)
    while 0 < len(found) < devices and len(widest := max(found, key=len)) > 1:
        place, half = found.index(widest), (len(widest) + 1) // 2
        found[place : place + 1] = [widest[:half], widest[half:]]
    return found


def narrower(job: Job) -> list[Job]:
    """The runs of a fleet, in fleets of about half its width, a power of two."""
    width = 1 << ((len(job) - 1).bit_length() - 1)
    return [job[start : start + width] for start in range(0, len(job), width)]


def note(folder: Path, job: Job) -> None:
    """Checkpoints hold all runs of a fleet together: whoever resumes them must know which."""
    path = folder / NOTE
    if len(job) > 1 and not path.exists():
        write_atomically(path, json.dumps([run.hash() for run in job]))


def begun(checkpoints: Path | None, specs: Sequence[RunSpec]) -> list[Job]:
    """Fleets that an earlier process has begun, of runs among these."""
    by_hash, found = {spec.hash(): spec for spec in specs}, list[Job]()
    for path in sorted(checkpoints.glob(f"*/{NOTE}")) if checkpoints else ():
        try:
            runs = parse_json(path.read_bytes())
            job = tuple(by_hash[key] for key in runs)
        except (OSError, ValueError, LookupError, TypeError):
            continue  # damaged, or not of these runs: they begin again
        if job and len(set(runs)) == len(runs) and len({run.fleet_key() for run in job}) == 1:
            found.append(job)
            by_hash = {key: spec for key, spec in by_hash.items() if key not in runs}
    return found


def is_out_of_memory(error: BaseException | None) -> bool:
    """Whether a device ran out of memory: libraries, and graph capture, say so in different words."""
    while error is not None:
        if isinstance(error, torch.OutOfMemoryError) or "out of memory" in str(error).lower():
            return True
        if "_STATUS_ALLOC_FAILED" in str(error):
            return True
        error = error.__cause__ or error.__context__
    return False
