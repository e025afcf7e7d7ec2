"""A first pass over a table: what its columns contain, before anything is learned from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rwalk.data.datasets.columns import CELLS, Column, TableForm, no_value
from rwalk.data.datasets.reading import Reading
from rwalk.data.datasets.tables import Chunk, absent_in, as_numbers, as_texts, open_table
from rwalk.errors import InputError, unknown

USUAL_LABELS = ("label", "target", "class")
MOST_VALUES = 100  # of a column of text: more is an identifier, or prose
MOST_CLASSES = 10_000


def label_of(columns: Sequence[str], reading: Reading) -> str:
    """The column of classes: the one named, else one with a usual name, else the last that has no other use."""
    for name in (reading.label, reading.task_column, *reading.drop):
        if name is not None and name not in columns:
            raise unknown("column", name, columns)
    left = [name for name in columns if name not in (reading.task_column, *reading.drop)]
    if not left or (reading.label is not None and reading.label not in left):
        raise InputError(f"column {(reading.label or columns[-1])!r} cannot be the label and left out: keep it")
    if reading.label is not None:
        return reading.label
    return next((name for name in left if name.lower() in USUAL_LABELS), left[-1])


def survey(paths: Sequence[Path], reading: Reading) -> TableForm:
    """A first pass over all rows: which columns are numbers, which values the others have, the classes."""
    tables = [open_table(path) for path in paths]
    label = label_of(tables[0].columns, reading)
    left_out = {*reading.drop, reading.task_column, label}
    inputs = {name: _Look(name) for name in tables[0].columns if name not in left_out}
    if not inputs:
        raise InputError(f"{str(paths[0])!r} has no column beside {label!r} to learn from: add some")
    classes = _Look(label, most=MOST_CLASSES)
    rows = max(64, CELLS // len(tables[0].columns))
    for table in tables:
        for name in (*inputs, label):
            if name not in table.columns:
                raise InputError(f"{str(table.path)!r} has no column {name!r}, as {str(paths[0])!r} has: add it")
        for chunk in table.chunks(rows, [*inputs, label]):
            for look in inputs.values():
                look.at(chunk, table.path)
            classes.at(chunk, table.path)
    if not classes.rows:
        raise InputError(f"{str(paths[0])!r} has no rows: add some")
    columns = tuple(look.column(reading.missing) for look in inputs.values())
    return TableForm(label, classes.names_classes(), columns, reading.missing)


@dataclass
class _Look:
    """What is known about a column so far."""

    name: str
    most: int = MOST_VALUES
    numeric: bool = True
    fractions: bool = False
    rows: int = 0
    total: float = 0.0
    numbers: int = 0
    values: set[str] = field(default_factory=set)
    absent: tuple[int, Path] | None = None  # where the first value is missing

    def at(self, chunk: Chunk, path: Path) -> None:
        cells = chunk.columns[self.name]
        self.rows += len(cells)
        numbers = as_numbers(cells)
        if numbers is None:
            self.numeric = False
        elif self.numeric:
            there = numbers[~np.isnan(numbers)]
            self.total, self.numbers = self.total + float(there.sum()), self.numbers + len(there)
            self.fractions |= bool((there != np.round(there)).any())
            self._note_absent(np.isnan(numbers), chunk, path)
        if len(self.values) <= self.most:
            texts = as_texts(cells)
            self.values |= {text for text in texts if text is not None}
        if not self.numeric:
            if len(self.values) > self.most:
                raise self._too_many()
            self._note_absent(absent_in(as_texts(cells)), chunk, path)

    def _note_absent(self, absent: NDArray[np.bool_], chunk: Chunk, path: Path) -> None:
        if self.absent is None and absent.any():
            self.absent = chunk.start + int(absent.argmax()), path

    def _too_many(self) -> InputError:
        some = min(self.values)[:40]
        if self.most == MOST_CLASSES:
            return InputError(
                f"column {self.name!r} has more than {MOST_CLASSES} values, such as {some!r}: name the column of "
                "classes with --label"
            )
        return InputError(
            f"column {self.name!r} holds text of more than {MOST_VALUES} values, such as {some!r}: leave it out, "
            f"--drop {self.name!r}"
        )

    def column(self, missing: str) -> Column:
        if not self.values:
            raise InputError(f"column {self.name!r} is empty: leave it out, --drop {self.name!r}")
        if self.absent is not None and missing == "refuse":
            raise no_value(*self.absent, self.name)
        if self.numeric:
            return Column(self.name, None, self.total / self.numbers if missing == "fill" else 0.0)
        return Column(self.name, tuple(sorted(self.values)))

    def names_classes(self) -> bool:
        """Whether classes are whole numbers; they may be text too, but no other numbers."""
        if len(self.values) > self.most:
            raise self._too_many()
        if self.numeric and self.fractions:
            raise InputError(
                f"column {self.name!r} holds numbers with fractions, which name no classes: name the column of "
                "classes with --label"
            )
        return self.numeric
