"""Folders of results: their rows, and the files beside the rows. Only this module of the report reads them."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from rwalk.errors import InputError
from rwalk.escaping import all_shown, shown
from rwalk.part_names import spelled
from rwalk.report.seed_summaries import Summary, summarise
from rwalk.studies.loss_curves import Curves, commands
from rwalk.studies.provenance import mixture
from rwalk.studies.rows import Description, Row
from rwalk.studies.study_folder import Store, is_torn, read_rows

logger = logging.getLogger(__name__)


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
    curves        the losses of its studies
    """

    rows: list[Row]
    environments: list[dict[str, str]] = field(default_factory=list)
    planned: frozenset[str] = frozenset()
    name: str = ""
    commands: tuple[str, ...] = ()
    curves: tuple[Curves, ...] = ()

    @property
    def summaries(self) -> list[Summary]:
        return summarise(self.rows)

    @property
    def missing(self) -> int:
        """How many runs are not finished."""
        return len(self.planned - {row.hash for row in self.rows})

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

    def losses(self, run: str) -> list[tuple[int, float]]:
        """(step, loss) of the run with this hash."""
        return next((found for curves in self.curves if (found := curves.of(run))), [])


def mixed(studies: Sequence[Results]) -> str:
    """A sentence if the rows of these studies come from different code or machines, else nothing."""
    made = [row.made for study in studies for row in study.rows]
    return mixture(made) if made else ""


def read(folder: Path, name: str = "") -> Results:
    """All rows of the *.jsonl files in a folder or, if it has none, of the study folders in it."""
    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder: give one that `rwalk run --out` wrote")
    files = sorted(folder.glob("*.jsonl")) or sorted(folder.glob("*/runs.jsonl"))
    rows: dict[str, Row] = {}
    for path in files:
        read = _rows(path)
        if others := sum(row.accuracy != rows.get(row.hash, row).accuracy for row in read):
            logger.warning("of %d runs %s has other results than earlier files: its own are shown", others, path)
        rows |= {row.hash: row for row in read}
    if not rows:
        raise InputError(f"{folder} holds no finished run: there is no row in any *.jsonl file in it")
    stores = [Store(each) for each in sorted({path.parent for path in files})]
    studies = [store.study() for store in stores if store.study_file.exists()]
    return Results(
        [row.shown() for row in rows.values()],
        all_shown(_environments(studies)),
        frozenset(planned for study in studies for planned in study.hashes()),
        name,
        tuple(dict.fromkeys(shown(command) for store in stores for command in commands(store.folder))),
        tuple(Curves(store.folder) for store in stores),
    )


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
