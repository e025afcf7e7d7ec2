"""A folder of results → its rows: one study, several, or files collected from many."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rwalk.errors import InputError
from rwalk.studies.specs import RunSpec
from rwalk.studies.store import Row, Store, is_torn, read_rows

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Results:
    """Rows without repeats, the distinct environments of their studies, and how many runs are still missing."""

    rows: list[Row]
    environments: list[dict[str, str]]
    missing: int = 0


def read(folder: Path) -> Results:
    """All rows of the *.jsonl files in a folder or, if it has none, in the study folders in it."""
    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder: give one that `rwalk run --out` wrote")
    files = sorted(folder.glob("*.jsonl")) or sorted(folder.glob("*/*.jsonl"))
    rows = {row["hash"]: row for path in files for row in _rows(path)}
    if not rows:
        raise InputError(f"{folder} holds no finished run: there is no row in any *.jsonl file in it")
    studies = [
        store.study() for store in map(Store, sorted({path.parent for path in files})) if store.study_file.exists()
    ]
    return Results(list(rows.values()), _environments(studies), len(_planned(studies) - rows.keys()))


def _rows(path: Path) -> list[Row]:
    """The rows of a study, which knows where it was begun, or of a file collected from somewhere."""
    store = Store(path.parent)
    own = path == store.rows_file
    rows = store.rows() if own else read_rows(path)
    if is_torn(path):
        cure = f": `rwalk resume {path.parent}` trains that run again" if own else ""
        logger.warning("%s ends in the middle of a row, which is left out%s", path, cure)
    return rows


def _planned(studies: Iterable[Mapping[str, Any]]) -> set[str]:
    """The hashes of all runs of these studies; none for a study that this version cannot read."""
    found = set()
    for study in studies:
        with suppress(InputError, KeyError, TypeError, ValueError):
            found |= {RunSpec.from_json(run).hash() for run in study["runs"]}
    return found


def _environments(studies: Iterable[Mapping[str, Any]]) -> list[dict[str, str]]:
    """The studies' own records; collected files may come without one."""
    distinct: list[dict[str, str]] = []
    for environment in (study.get("environment") for study in studies):
        if isinstance(environment, dict) and environment not in distinct:
            distinct.append(environment)
    return distinct
