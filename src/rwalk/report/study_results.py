"""Folders of results → their rows, summaries over seeds, and the files beside the rows.

Only this module of the report reads rows.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rwalk import metrics, parts
from rwalk.errors import InputError
from rwalk.escaping import all_shown, shown
from rwalk.methods import Method
from rwalk.metrics import HEADS
from rwalk.part_names import spelled
from rwalk.studies.logs import COSTS, LOSSES, Costs, Curves, Recorded, commands
from rwalk.studies.provenance import mixture
from rwalk.studies.rows import Description, Row
from rwalk.studies.specs import RunSpec
from rwalk.studies.store import Store, is_torn, read_rows

logger = logging.getLogger(__name__)

# Measures beside the paper's: the title of the column, and which value is better.
MORE = {
    "learning": ("learning accuracy", max),
    "incremental": ("average incremental accuracy", max),
    "transfer": ("backward transfer", max),
    "gap": ("stability gap", min),
    "calibration": ("calibration error", min),
}

# ── rows of one configuration, over its seeds ────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Summary:
    """All seeds of one configuration; arrays have one entry per seed, NaN where a run stopped."""

    label: str  # as the paper writes it: -S where exemplars are added to a method that needs none
    method: str
    lam: float
    chosen: str  # the λs that its runs chose for themselves; "" if they were given one
    spec: RunSpec  # the settings of all its runs, with seed 0
    seeds: tuple[int, ...]
    accuracy: dict[str, NDArray[np.float64]]  # head → a[seed, k, j]
    A: dict[str, NDArray[np.float64]]
    F: dict[str, NDArray[np.float64]]
    I: dict[str, NDArray[np.float64]]  # noqa: E741 - the paper's name
    more: dict[str, dict[str, NDArray[np.float64]]] = field(default_factory=dict)  # other measures, by MORE
    hashes: tuple[str, ...] = ()  # of the runs
    study: str = ""  # which study it is of, where several are compared

    @property
    def name(self) -> str:
        """The method as people write it, and whether exemplars were added to it."""
        return spelled(self.method) + " with exemplars" * self.label.endswith("-S")

    @property
    def tasks(self) -> int:
        return int(self.accuracy["single"].shape[-1])


def summarise(rows: Sequence[Row]) -> list[Summary]:
    """One summary per configuration, in the order of first appearance."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(replace(row.spec, seed=0).hash(), []).append(row)
    return [_summary(group) for group in groups.values()]


def heads_agree(summaries: Sequence[Summary]) -> bool:
    """Whether both heads measure the same, as they do where every task has all classes."""
    return all(
        np.array_equal(each.accuracy["single"], each.accuracy["multi"], equal_nan=True) for each in summaries
    )


def _summary(rows: list[Row]) -> Summary:
    first, lams = rows[0], sorted({row.lam for row in rows})
    spec = replace(first.spec, seed=0)
    takes_memory = spec.memory and issubclass(parts.like(spec.method) or object, Method)
    accuracy = {head: np.array([row.accuracy[head] for row in rows], dtype=float) for head in HEADS}
    return Summary(
        label=first.method + ("-S" if takes_memory else ""),
        method=first.method,
        lam=float(np.median([row.lam for row in rows])),
        chosen="" if first.tried is None else ", ".join(f"{lam:g}" for lam in lams),
        spec=spec,
        seeds=tuple(row.seed for row in rows),
        accuracy=accuracy,
        A={head: metrics.average_accuracy(accuracy[head]) for head in HEADS},
        F={head: metrics.forgetting(accuracy[head]) for head in HEADS},
        I={head: np.array([row.measures(head).I for row in rows], dtype=float) for head in HEADS},
        more=_more(rows, accuracy),
        hashes=tuple(row.hash for row in rows),
    )


def _more(rows: list[Row], accuracy: dict[str, NDArray[np.float64]]) -> dict[str, dict[str, NDArray[np.float64]]]:
    """The other measures: those that follow from the accuracies, and those that all rows have."""
    found: dict[str, dict[str, NDArray[np.float64]]] = {}
    for head, a in accuracy.items():
        found.setdefault("learning", {})[head] = metrics.learning_accuracy(a)
        found.setdefault("incremental", {})[head] = metrics.average_incremental_accuracy(a)
        found.setdefault("transfer", {})[head] = metrics.backward_transfer(a)
        within = [row.within[head] for row in rows if row.within is not None]
        if len(within) == len(rows):
            found.setdefault("gap", {})[head] = metrics.stability_gap(a, np.array(within, dtype=float))
        errors = [row.calibration[head] for row in rows if row.calibration is not None]
        if len(errors) == len(rows):  # errors after the last task
            found.setdefault("calibration", {})[head] = metrics.average_accuracy(np.array(errors, dtype=float))
    return found


# ── a folder ─────────────────────────────────────────────────────────────────────────────────────────────────────


class StoppedRun(NamedTuple):
    """A run that did not finish, and why."""

    dataset: str
    method: str
    lam: float
    seed: int
    reason: str


@dataclass(frozen=True)
class Results:
    """The content of one folder.

    rows          without repeats
    environments  the distinct environments of its studies
    planned       the hashes of all their runs
    name          its name among others
    commands      that worked on its studies, as they were typed
    costs         of runs, by their hashes
    curves        the losses of its studies
    """

    rows: list[Row]
    environments: list[dict[str, str]] = field(default_factory=list)
    planned: frozenset[str] = frozenset()
    name: str = ""
    commands: tuple[str, ...] = ()
    costs: Mapping[str, Recorded] = field(default_factory=dict)
    curves: tuple[Curves, ...] = ()

    @property
    def summaries(self) -> list[Summary]:
        return summarise(self.rows)

    @property
    def missing(self) -> int:
        """How many runs are not finished."""
        return len(self.planned - self._hashes)

    @property
    def seeds(self) -> set[int]:
        return {row.seed for row in self.rows}

    @property
    def stopped(self) -> list[StoppedRun]:
        return [
            StoppedRun(row.spec.stream.dataset, spelled(row.method), row.lam, row.seed, row.stopped)
            for row in self.rows
            if row.stopped
        ]

    @property
    def versions(self) -> list[str]:
        """The versions of rwalk that made the rows."""
        return sorted({row.made.rwalk for row in self.rows if row.made.rwalk not in (None, "unknown")})

    @property
    def spent(self) -> list[Recorded]:
        """The costs of the runs that have a row."""
        return [self.costs[row.hash] for row in self.rows if row.hash in self.costs]

    def in_training(self) -> dict[str, tuple[int, float]]:
        """The last (step, loss) of runs that are planned, have begun, and have no row yet."""
        unfinished = self.planned - self._hashes
        begun = (key for curves in self.curves for key in curves.runs() if key in unfinished)
        return {key: self.losses(key)[-1] for key in begun}

    def losses(self, run: str) -> list[tuple[int, float]]:
        """(step, loss) of the run with this hash."""
        return next((found for curves in self.curves if (found := curves.of(run))), [])

    @property
    def _hashes(self) -> set[str]:
        return {row.hash for row in self.rows}


def mixed(studies: Sequence[Results]) -> str:
    """A sentence if the rows of these studies come from different code or machines, else nothing."""
    made = [row.made for study in studies for row in study.rows]
    return mixture(made) if made else ""


def read(folder: Path, name: str = "", unfinished: bool = False) -> Results:
    """All rows of the *.jsonl files in a folder or, if it has none, of the study folders in it.

    A folder without any finished run is refused, except with `unfinished`, where rows may still come.
    """
    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder: give one that `rwalk run --out` wrote")
    files = sorted(folder.glob("*.jsonl")) or sorted(folder.glob("*/runs.jsonl"))
    rows = {row.hash: row for path in files for row in _rows(path)}
    if not rows and not unfinished:
        raise InputError(f"{folder} holds no finished run: there is no row in any *.jsonl file in it")
    stores = [Store(each) for each in sorted({path.parent for path in files} or {folder})]
    studies = [store.study() for store in stores if store.study_file.exists()]
    costs: dict[str, Recorded] = {}
    for store in stores:
        costs |= Costs(store.folder).read()
    return Results(
        [row.shown() for row in rows.values()],
        all_shown(_environments(studies)),
        frozenset(planned for study in studies for planned in study.hashes()),
        name,
        tuple(dict.fromkeys(shown(command) for store in stores for command in commands(store.folder))),
        costs,
        tuple(Curves(store.folder) for store in stores),
    )


def read_all(folders: Sequence[Path], unfinished: bool = False) -> list[Results]:
    """Several folders, each with a name that no other of them has."""
    return [read(folder, name, unfinished) for folder, name in zip(folders, names_of(folders), strict=True)]


def names_of(folders: Sequence[Path]) -> list[str]:
    """The last parts of paths, as many as are needed to make them distinct.

    >>> names_of([Path("/a/mnist"), Path("/b/mnist")]), names_of([Path("/a/mnist"), Path("/a/cifar")])
    (['a/mnist', 'b/mnist'], ['mnist', 'cifar'])
    """
    paths = [folder.resolve().parts for folder in folders]
    if len(set(paths)) < len(paths):
        raise InputError("a folder is given twice: drop one")
    for count in range(1, max(map(len, paths)) + 1):
        names = [shown("/".join(parts[-count:])) for parts in paths]
        if len(set(names)) == len(names):
            break
    return names


def stamp(folder: Path) -> tuple[tuple[str, int, int], ...]:
    """Changes whenever results in a folder do."""
    found = []
    for pattern in ("*.jsonl", "study.json", COSTS, LOSSES):
        for path in sorted([*folder.glob(pattern), *folder.glob(f"*/{pattern}")]):
            with suppress(OSError):  # it may be replaced at this moment
                about = path.stat()
                found.append((str(path), about.st_mtime_ns, about.st_size))
    return tuple(found)


def _rows(path: Path) -> list[Row]:
    """The rows of a study's own file, or of a file collected from elsewhere."""
    store = Store(path.parent)
    own = path == store.rows_file
    rows = store.rows() if own else read_rows(path)
    if is_torn(path):
        cure = f": `rwalk resume {path.parent}` trains that run again" if own else ""
        logger.warning("%s ends in the middle of a row, which is left out%s", path, cure)
    return rows


def _environments(studies: Iterable[Description]) -> list[dict[str, str]]:
    """The studies' own records; collected files may come without one."""
    distinct: list[dict[str, str]] = []
    for study in studies:
        if study.environment is not None and dict(study.environment) not in distinct:
            distinct.append(dict(study.environment))
    return distinct
