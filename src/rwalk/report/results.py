"""A folder of results → its rows, and what else it knows: one study, several, or files collected from many."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rwalk.errors import InputError
from rwalk.showing import all_shown, shown
from rwalk.studies.logs import COSTS, LOSSES, Costs, Curves, Recorded, commands
from rwalk.studies.specs import RunSpec
from rwalk.studies.store import Store, is_torn, read_rows

Row = dict[str, Any]
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Results:
    """What is in one folder.

    rows          without repeats
    environments  the distinct environments of its studies
    planned       the hashes of all their runs
    name          what to call it among others
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
    def missing(self) -> int:
        """How many runs are not finished."""
        return len(self.planned - {row["hash"] for row in self.rows})

    def in_training(self) -> dict[str, tuple[int, float]]:
        """The last (step, loss) of runs that are planned, have begun, and have no row yet."""
        done = {row["hash"] for row in self.rows}
        begun = (key for curves in self.curves for key in curves.runs() if key in self.planned and key not in done)
        return {key: self.losses(key)[-1] for key in begun}

    def losses(self, run: str) -> list[tuple[int, float]]:
        """(step, loss) of the run with this hash."""
        return next((found for curves in self.curves if (found := curves.of(run))), [])


def read(folder: Path, name: str = "", unfinished: bool = False) -> Results:
    """All rows of the *.jsonl files in a folder or, if it has none, of the study folders in it.

    A folder without any finished run is refused, unless `unfinished` says that it may yet have some.
    """
    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder: give one that `rwalk run --out` wrote")
    files = sorted(folder.glob("*.jsonl")) or sorted(folder.glob("*/runs.jsonl"))
    rows = {row["hash"]: row for path in files for row in _rows(path)}
    if not rows and not unfinished:
        raise InputError(f"{folder} holds no finished run: there is no row in any *.jsonl file in it")
    stores = [Store(each) for each in sorted({path.parent for path in files} or {folder})]
    studies = [store.study().to_json() for store in stores if store.study_file.exists()]
    costs: dict[str, Recorded] = {}
    for store in stores:
        costs |= Costs(store.folder).read()
    return Results(
        list(rows.values()),
        all_shown(_environments(studies)),
        frozenset(_planned(studies)),
        name,
        tuple(dict.fromkeys(shown(command) for store in stores for command in commands(store.folder))),
        costs,
        tuple(Curves(store.folder) for store in stores),
    )


def read_all(folders: Sequence[Path], unfinished: bool = False) -> list[Results]:
    """Several folders, each with a name that tells it from the others."""
    return [read(folder, name, unfinished) for folder, name in zip(folders, names_of(folders), strict=True)]


def names_of(folders: Sequence[Path]) -> list[str]:
    """The last parts of paths, as many as it takes to tell them apart.

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
            with suppress(OSError):  # it may be replaced this very moment
                about = path.stat()
                found.append((str(path), about.st_mtime_ns, about.st_size))
    return tuple(found)


def _rows(path: Path) -> list[Row]:
    """The rows of a study, which knows where it was begun, or of a file collected from somewhere."""
    store = Store(path.parent)
    own = path == store.rows_file
    rows = [row.shown().to_json() for row in (store.rows() if own else read_rows(path))]
    if is_torn(path):
        cure = f": `rwalk resume {path.parent}` trains that run again" if own else ""
        logger.warning("%s ends in the middle of a row, which is left out%s", path, cure)
    return rows


def _planned(studies: Iterable[Mapping[str, Any]]) -> set[str]:
    """The hashes of all runs of these studies; none for a study that this version cannot read."""
    found = set()
    for study in studies:
        with suppress(InputError):
            found |= {RunSpec.from_json(run).hash() for run in study["runs"]}
    return found


def _environments(studies: Iterable[Mapping[str, Any]]) -> list[dict[str, str]]:
    """The studies' own records; collected files may come without one."""
    distinct: list[dict[str, str]] = []
    for environment in (study.get("environment") for study in studies):
        if isinstance(environment, dict) and environment not in distinct:
            distinct.append(environment)
    return distinct
