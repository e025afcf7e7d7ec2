"""From the columns of a table to inputs and classes: a first pass decides how all rows are read.

Columns of numbers are inputs as they are. A column of text becomes one input per value, 1 where a row has that
value: its values are those of the first look, and a new one later counts as none of them.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rwalk.data.datasets.cells import UNITS, Notation, absent_in, as_numbers, as_texts
from rwalk.data.datasets.reading import MISSING
from rwalk.data.datasets.tables import Chunk, Table, open_table
from rwalk.errors import InputError

CELLS = 1 << 18  # that are held at a time


@dataclass(frozen=True)
class Column:
    """One column of inputs: numbers, or text of known values."""

    name: str
    values: tuple[str, ...] | None = None  # None: numbers
    mean: float = 0.0  # of the numbers, in the place of missing ones where those are filled
    written: Notation = Notation()  # noqa: RUF009 - frozen

    @property
    def width(self) -> int:
        return 1 if self.values is None else len(self.values)


@dataclass(frozen=True)
class TableForm:
    """How rows become inputs and classes.

    label    the column of classes
    whole    whether those are whole numbers
    columns  what inputs are made of
    missing  what becomes of a row without a value
    id       the column that tells rows apart, which is not learned but shown beside predictions
    shift, scale  inputs are (value − shift) / scale
    """

    label: str
    whole: bool
    columns: tuple[Column, ...]
    missing: str = "refuse"
    shift: tuple[float, ...] = ()
    scale: tuple[float, ...] = ()
    id: str | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        return (sum(column.width for column in self.columns),)

    def rows(self) -> int:
        """How many to read at a time."""
        return max(64, CELLS // (self.shape[0] + 1))

    def standardised(self, shift: NDArray[Any], scale: NDArray[Any]) -> TableForm:
        return replace(self, shift=tuple(map(float, shift)), scale=tuple(map(float, scale)))

    def needed(self, table: Table, labelled: bool) -> list[str]:
        """The columns to read of a table, which has to have them."""
        names = [column.name for column in self.columns] + ([self.label] if labelled else [])
        for name in names:
            if name not in table.columns:
                raise InputError(f"{str(table.path)!r} has no column {name!r}: add it")
        return names

    def read(self, chunk: Chunk, path: Path, labelled: bool) -> Rows:
        """Inputs and classes of the rows of a chunk, without those that are dropped."""
        x = np.concatenate([self._inputs(column, chunk, path) for column in self.columns], axis=1)
        kept = np.isfinite(x).all(1)  # what is missing and neither refused nor filled is NaN
        if labelled and self.missing == "drop":
            kept &= ~absent_in(as_texts(chunk.columns[self.label]))
        numbers = chunk.start + kept.nonzero()[0]
        y = self._labels(chunk.columns[self.label][kept], numbers, path) if labelled else None
        if self.scale:
            x = (x - np.array(self.shift)) / np.array(self.scale)
        return Rows(x[kept], y, numbers)

    def _inputs(self, column: Column, chunk: Chunk, path: Path) -> NDArray[np.float64]:
        cells = chunk.columns[column.name]
        if column.values is not None:
            texts = as_texts(cells)
            self._check_present(absent_in(texts), column.name, chunk, path)
            place = {value: index for index, value in enumerate(column.values)}
            known = np.array([-1 if text is None else place.get(text, -2) for text in texts])
            if (known == -2).any():
                _warn_of_new(column.name, texts[known == -2][0])
            shown: NDArray[np.float64] = (known[:, None] == np.arange(len(place))).astype(np.float64)
            if self.missing == "drop":
                shown[known == -1] = np.nan
            return shown
        numbers = as_numbers(cells, column.written)
        if numbers is None:
            each = (as_numbers(cells[row : row + 1], column.written) for row in range(len(cells)))
            row = next(row for row, number in enumerate(each) if number is None)
            raise InputError(
                f"row {chunk.start + row} of {str(path)!r} has {str(cells[row])[:40]!r} in column "
                f"{column.name!r}, which holds {column.written.describe()}: correct it"
            )
        if np.isinf(numbers).any():
            row = int(np.isinf(numbers).argmax())
            raise InputError(
                f"row {chunk.start + row} of {str(path)!r} has infinity in column {column.name!r}: correct it"
            )
        absent = np.isnan(numbers)
        self._check_present(absent, column.name, chunk, path)
        return np.where(absent & (self.missing == "fill"), column.mean, numbers)[:, None]

    def _check_present(self, absent: NDArray[np.bool_], name: str, chunk: Chunk, path: Path) -> None:
        if self.missing == "refuse" and absent.any():
            raise no_value(chunk.start + int(absent.argmax()), path, name)

    def _labels(self, cells: NDArray[Any], rows: NDArray[np.int64], path: Path) -> NDArray[Any]:
        texts = as_texts(cells)
        if (absent := absent_in(texts)).any():
            row = int(rows[absent.argmax()])
            raise InputError(
                f"row {row} of {str(path)!r} has no {self.label!r}: name its class, or remove the row"
            )
        if not self.whole:
            return texts.astype(np.str_)
        numbers = as_numbers(cells)
        if numbers is None or (numbers != np.round(numbers)).any():
            strange = next(text for text in texts if not _is_whole(text))
            raise InputError(
                f"{str(path)!r} has the class {strange!r}, where classes were whole numbers: correct it"
            )
        return numbers.astype(np.int64)

    def to_json(self) -> dict[str, Any]:
        columns = [
            {"name": each.name, "values": each.values, "mean": each.mean, "written": astuple(each.written)}
            for each in self.columns
        ]
        return {
            "kind": "table", "label": self.label, "whole": self.whole, "columns": columns, "missing": self.missing,
            "shift": self.shift, "scale": self.scale, "id": self.id,
        }  # fmt: skip

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> TableForm:
        """What `to_json` wrote; anything else is a ValueError, LookupError or TypeError."""
        columns = []
        for each in record["columns"]:
            values = each["values"]
            sound = values is None or all(isinstance(value, str) for value in values)
            if not isinstance(each["name"], str) or not sound or not math.isfinite(each["mean"]):
                raise ValueError("a column that cannot be")
            decimal, grouped, unit = each.get("written", (".", False, ""))  # files of 0.2.0 have plain numbers
            if decimal not in (".", ",") or type(grouped) is not bool or unit not in ("", *UNITS):
                raise ValueError("numbers that cannot be")
            written = Notation(decimal, grouped, unit)
            values = None if values is None else tuple(values)
            columns.append(Column(each["name"], values, float(each["mean"]), written))
        shift, scale = (tuple(map(float, record[name])) for name in ("shift", "scale"))
        label, whole, missing, identifier = record["label"], record["whole"], record["missing"], record.get("id")
        form = cls(label, whole, tuple(columns), missing, shift, scale, identifier)
        widths = {len(form.shift), len(form.scale)}
        if not isinstance(label, str) or not isinstance(identifier, str | None) or missing not in MISSING:
            raise ValueError("a table that cannot be")
        if not columns or type(whole) is not bool:
            raise ValueError("a table that cannot be")
        if widths not in ({0}, {form.shape[0]}) or not all(0 < scale < math.inf for scale in form.scale):
            raise ValueError("scales that cannot be")
        return form


@dataclass(frozen=True)
class Rows:
    """Inputs [n, d], classes, and the numbers the rows have in their file."""

    x: NDArray[np.float64]
    y: NDArray[Any] | None
    numbers: NDArray[np.int64]


def every_row(
    form: TableForm, paths: Sequence[Path], labelled: bool, beside: Sequence[str] = ()
) -> Iterator[tuple[Path, Chunk, Rows]]:
    """All rows of these files, in chunks; `beside` names columns to include in the chunks."""
    for path in paths:
        table = open_table(path)
        columns = [*form.needed(table, labelled), *beside]
        for chunk in table.chunks(form.rows(), columns):
            yield path, chunk, form.read(chunk, path, labelled)


def no_value(row: int, path: Path, name: str) -> InputError:
    return InputError(
        f"row {row} of {str(path)!r} has no value in column {name!r}: fill it in, or give --missing fill (the "
        "column's mean) or --missing drop (leave such rows out)"
    )


def _warn_of_new(name: str, value: str) -> None:
    warnings.warn(
        f"column {name!r} holds {value[:40]!r}, which was not among its values at first: it counts as none of "
        "them",
        stacklevel=2,
    )


def _is_whole(text: str) -> bool:
    try:
        return float(text).is_integer()
    except ValueError:
        return False
