"""A folder of results → its rows: of one study, of several, or of files gathered from many."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rwalk.errors import InputError
from rwalk.fleet import HEADS
from rwalk.specs import RunSpec
from rwalk.store import Row, Store, read_rows


@dataclass(frozen=True)
class Results:
    """Rows, each run once; the distinct environments of their studies, and how many runs these still lack."""

    rows: list[Row]
    environments: list[dict[str, str]]
    missing: int = 0


def read(folder: Path) -> Results:
    """All rows of the *.jsonl files in a folder or, where it has none, in the study folders in it."""
    if not folder.is_dir():
        raise InputError(f"{folder} is no folder: give one that `rwalk run --out` wrote")
    files = sorted(folder.glob("*.jsonl")) or sorted(folder.glob("*/*.jsonl"))
    rows = {row["hash"]: row for path in files for row in _checked(path)}
    if not rows:
        raise InputError(f"{folder} holds no finished run: there is no row in any *.jsonl file in it")
    studies = [
        store.study() for store in map(Store, sorted({path.parent for path in files})) if store.study_file.exists()
    ]
    return Results(list(rows.values()), _environments(studies), len(_planned(studies) - rows.keys()))


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


def _planned(studies: Iterable[Mapping[str, Any]]) -> set[str]:
    """The hashes of all runs of these studies; of one that this version cannot read, none."""
    found = set()
    for study in studies:
        with suppress(InputError, KeyError, TypeError, ValueError):
            found |= {RunSpec.from_json(run).hash() for run in study["runs"]}
    return found


def _environments(studies: Iterable[Mapping[str, Any]]) -> list[dict[str, str]]:
    """What the studies say of themselves; gathered files may come without a study."""
    distinct: list[dict[str, str]] = []
    for environment in (study.get("environment") for study in studies):
        if isinstance(environment, dict) and environment not in distinct:
            distinct.append(environment)
    return distinct
