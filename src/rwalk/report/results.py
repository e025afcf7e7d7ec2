"""A folder of results → its rows: of one study, of several, or of files gathered from many."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rwalk.errors import InputError
from rwalk.store import Row, Store, read_rows

HEADS = ("single", "multi")


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
    try:
        rows = {row["hash"]: row for path in files for row in _checked(path)}
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{folder} cannot be read: {error}") from None
    if not rows:
        raise InputError(f"{folder} holds no finished run: there is no row in any *.jsonl file in it")
    return Results(list(rows.values()), _environments({path.parent for path in files}))


def _checked(path: Path) -> list[Row]:
    rows = read_rows(path)
    for number, row in enumerate(rows, 1):
        if not _is_result(row):
            raise InputError(f"{path}, row {number}, is no result of a run: remove it or move the file away")
    return rows


def _is_result(row: Any) -> bool:
    """Whether everything the reports look at is there and of the right form."""
    try:
        spec, stream, memory = row["spec"], row["spec"]["stream"], row["spec"]["memory"]
        texts = [row["hash"], row["method"], spec["network"], stream["dataset"]]
        float(row["lam"]), int(row["seed"]), dict(spec["numbers"]), dict(spec["training"]), row["stopped"]
        shapes = {np.array(row["accuracy"][head], dtype=float).shape for head in HEADS}
        measures = [np.array(row[head]["I"], dtype=float).shape for head in HEADS]
    except (KeyError, TypeError, ValueError):
        return False
    (tasks, *_), *others = shapes
    return (
        all(isinstance(text, str) for text in texts)
        and not others
        and shapes == {(tasks, tasks)}
        and measures == [(), ()]
        and (memory is None or {"per_class", "total", "sampler"} <= set(memory))
    )


def _environments(folders: Iterable[Path]) -> list[dict[str, str]]:
    """What the studies in these folders say of themselves; gathered files may come without a study."""
    studies = [Store(folder) for folder in sorted(folders)]
    described = [store.study().get("environment") for store in studies if store.study_file.exists()]
    distinct: list[dict[str, str]] = []
    for environment in described:
        if isinstance(environment, dict) and environment not in distinct:
            distinct.append(environment)
    return distinct
