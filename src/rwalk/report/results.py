"""A folder of results → its rows: of one study, of several, or of files gathered from many."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from rwalk.errors import InputError
from rwalk.fleet import HEADS
from rwalk.specs import RunSpec
from rwalk.store import Row, Store, read_rows


@dataclass(frozen=True)
class Results:
    """Rows, each run once, and the distinct environments their studies were made in."""

    rows: list[Row]
    environments: list[dict[str, str]]


def read(folder: Path) -> Results:
    """All rows of the *.jsonl files in a folder or, where it has none, in the study folders in it."""
    if not folder.is_dir():
        raise InputError(f"{folder} is no folder: give one that `rwalk run --out` wrote")
    files = sorted(folder.glob("*.jsonl")) or sorted(folder.glob("*/*.jsonl"))
    rows = {row["hash"]: row for path in files for row in _checked(path)}
    if not rows:
        raise InputError(f"{folder} holds no finished run: there is no row in any *.jsonl file in it")
    return Results(list(rows.values()), _environments({path.parent for path in files}))


def _checked(path: Path) -> list[Row]:
    """Rows with complete settings: what an older version did not write yet has its default."""
    rows = []
    for row in read_rows(path):
        try:
            spec = RunSpec.from_json(row["spec"])
            if len({len(row["accuracy"][head]) for head in HEADS} - {0}) != 1:
                raise InputError("its heads must have the same tasks")
        except (InputError, KeyError, TypeError, ValueError) as error:
            raise InputError(f"{path}, run {row.get('hash')}, is no result of a run: {error}") from None
        rows.append({**row, "spec": spec.to_json()})
    return rows


def _environments(folders: Iterable[Path]) -> list[dict[str, str]]:
    """What the studies in these folders say of themselves; gathered files may come without a study."""
    studies = [Store(folder) for folder in sorted(folders)]
    described = [store.study().get("environment") for store in studies if store.study_file.exists()]
    distinct: list[dict[str, str]] = []
    for environment in described:
        if isinstance(environment, dict) and environment not in distinct:
            distinct.append(environment)
    return distinct
