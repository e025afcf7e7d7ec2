"""From the columns of a table to inputs and classes, by one encoder for files and for data frames.

A column of numbers is one input. A column of text becomes one input per value, which is 1 in rows with that value.
The first pass over all rows collects the values; a new value in later rows counts as none of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from rwalk.data.arrays import EXACT
from rwalk.data.datasets.columns import (
    MOST_CLASSES,
    UNITS,
    Column,
    ColumnScan,
    Notation,
    absent_in,
    as_texts,
    no_value,
    read_classes,
    read_numbers,
)
from rwalk.data.datasets.tables import RowChunk, Table, as_table, is_number
from rwalk.data.file_options import MISSING, Reading
from rwalk.data.streams import Dataset
from rwalk.errors import InputError, unknown, warn_caller

CELLS = 1 << 18  # that are held at a time
USUAL_LABELS = ("label", "target", "class")


@dataclass(frozen=True)
class TableRows:
    """Some rows of a table as examples."""

    x: NDArray[np.float64]
    y: NDArray[Any] | None
    numbers: NDArray[np.int64]  # of the rows in their table, from 1
    beside: dict[str, NDArray[Any]]  # cells of other columns


@dataclass(frozen=True)
class TableEncoder:
    """How rows become inputs and classes.

    >>> import pandas
    >>> frame = pandas.DataFrame({"size": [1, 2, 3], "colour": ["red", "blue", "red"]})
    >>> TableEncoder.fit(frame, labelled=False).transform(frame).tolist()
    [[1.0, 0.0, 1.0], [2.0, 1.0, 0.0], [3.0, 0.0, 1.0]]

    Args:
        label: The column of classes; None if the table has none.
        whole: Whether classes are whole numbers.
        columns: The columns of inputs.
        missing: What happens to a row without a value: "refuse", "fill" or "drop".
        shift: Inputs are (value − shift) / scale.
        scale: See `shift`.
        id: The column that identifies rows. It is not learned, but shown beside predictions.
        notes: How every column was read, in words; not saved.
        doubts: Those notes that say what may be wrong; not saved.
        fitted: How many rows it was fitted on; not saved.
    """

    label: str | None
    whole: bool
    columns: tuple[Column, ...]
    missing: str = "refuse"
    shift: tuple[float, ...] = ()
    scale: tuple[float, ...] = ()
    id: str | None = None
    notes: tuple[str, ...] = field(default=(), compare=False, repr=False)
    doubts: tuple[str, ...] = field(default=(), compare=False, repr=False)
    fitted: int = field(default=0, compare=False, repr=False)

    @classmethod
    def fit(cls, *given: Any, reading: Reading = Reading(), labelled: bool = True) -> TableEncoder:  # noqa: B008
        """Decide how all rows are read, in one pass over them.

        Args:
            given: Tables of the same columns: paths, pandas DataFrames or pyarrow Tables.
            reading: How the tables are read.
            labelled: Whether one of the columns has the classes; else all are inputs.

        Raises:
            InputError: If a table cannot be read or learned; the message names the row or the column.
        """
        tables = [as_table(each) for each in given]
        label, is_clear = _label_by_name(tables[0], reading, labelled)
        left_out = {*reading.drop, reading.task_column, label}
        inputs = {name: ColumnScan(name) for name in tables[0].columns if name not in left_out}
        if not inputs:
            beside = "" if label is None else f" beside {label!r}"
            raise InputError(f"{tables[0].name} has no column{beside} to learn from: add some")
        classes = None if label is None else ColumnScan(label, most=MOST_CLASSES)
        scans = [*inputs.values(), *([classes] if classes else [])]
        names = [scan.name for scan in scans]
        for table in tables:
            for name in names:
                if name not in table.columns:
                    raise InputError(f"{table.name} has no column {name!r}, as {tables[0].name} has: add it")
            for chunk in table.chunks(max(64, CELLS // len(tables[0].columns)), names):
                for scan in scans:
                    scan.add(chunk, table)
        if not scans[0].rows:
            raise InputError(f"{tables[0].name} has no rows: add some")
        if classes and not is_clear:
            _check_clear(classes, inputs.values())
        whole = classes is not None and classes.has_whole_classes()
        ids = [scan.name for scan in inputs.values() if scan.is_identifier]
        learned = [scan for scan in inputs.values() if not scan.is_identifier]
        if not learned:
            only = " and ".join(repr(name) for name in (label, ids[0]) if name is not None)
            raise InputError(f"{tables[0].name} has only {only}: add columns to learn from")
        columns = tuple(scan.column(reading.missing) for scan in learned)
        encoder = cls(label, whole, columns, reading.missing, id=ids[0] if ids else None, fitted=scans[0].rows)
        notes = [] if label == reading.label else [f"the classes are in column {label!r} (--label names another)"]
        doubts = (*_doubts_about_names(tables[0], classes), *_doubts(learned))
        return replace(encoder, notes=(*notes, *_notes(encoder, inputs, ids), *doubts), doubts=doubts)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one input."""
        return (sum(column.width for column in self.columns),)

    def transform(self, given: Any) -> NDArray[np.float64]:
        """The inputs of all rows of a table; see `read` where rows without a value are dropped."""
        parts = [rows.x for rows in self.read(given, labelled=False)]
        return np.concatenate(parts) if parts else np.empty((0, *self.shape))

    def read(self, given: Any, labelled: bool = True, beside: Sequence[str] = ()) -> Iterator[TableRows]:
        """All rows of a table, in chunks.

        Args:
            given: The path of a file, a pandas DataFrame or a pyarrow Table.
            labelled: Whether the classes are read too.
            beside: Other columns whose cells are read along.
        """
        table = as_table(given)
        names = [column.name for column in self.columns] + ([self.label] if labelled and self.label else [])
        for name in names:
            if name not in table.columns:
                raise InputError(f"{table.name} has no column {name!r}: add it")
        for chunk in table.chunks(max(64, CELLS // (self.shape[0] + 1)), [*names, *beside]):
            yield self._rows(chunk, table, self.label if labelled else None, beside)

    def _rows(self, chunk: RowChunk, table: Table, label: str | None, beside: Sequence[str]) -> TableRows:
        x = np.concatenate([self._inputs(column, chunk, table) for column in self.columns], axis=1)
        kept = np.isfinite(x).all(1)  # NaN is left where a value is missing and rows without one are dropped
        if label and self.missing == "drop":
            kept &= ~absent_in(as_texts(chunk.columns[label]))
        numbers = chunk.start + kept.nonzero()[0]
        y = self._labels(chunk.columns[label][kept], numbers, table) if label else None
        if self.scale:
            x = (x - np.array(self.shift)) / np.array(self.scale)
        return TableRows(x[kept], y, numbers, {name: chunk.columns[name][kept] for name in beside})

    def _inputs(self, column: Column, chunk: RowChunk, table: Table) -> NDArray[np.float64]:
        cells = chunk.columns[column.name]
        if column.values is not None:
            texts = as_texts(cells)
            self._check_present(absent_in(texts), column.name, chunk, table)
            place = {value: index for index, value in enumerate(column.values)}
            known = np.array([-1 if text is None else place.get(text, -2) for text in texts])
            if (known == -2).any():
                warn_caller(
                    f"column {column.name!r} holds {texts[known == -2][0][:40]!r}, which was not among its values "
                    "at first: it counts as none of them"
                )
            shown: NDArray[np.float64] = (known[:, None] == np.arange(len(place))).astype(np.float64)
            if self.missing == "drop":
                shown[known == -1] = np.nan
            return shown
        numbers, wrong = read_numbers(cells, column.written)
        if wrong.any():
            raise InputError(
                f"row {chunk.start + wrong.argmax()} of {table.name} has {str(cells[wrong.argmax()])[:40]!r} in "
                f"column {column.name!r}, which holds {column.written.describe()}: correct it"
            )
        if np.isinf(numbers).any():
            row = chunk.start + np.isinf(numbers).argmax()
            raise InputError(f"row {row} of {table.name} has infinity in column {column.name!r}: correct it")
        absent = np.isnan(numbers)
        self._check_present(absent, column.name, chunk, table)
        return np.where(absent & (self.missing == "fill"), column.mean, numbers)[:, None]

    def _check_present(self, absent: NDArray[np.bool_], name: str, chunk: RowChunk, table: Table) -> None:
        if self.missing == "refuse" and absent.any():
            raise no_value(chunk.start + int(absent.argmax()), table.name, name)

    def _labels(self, cells: NDArray[Any], rows: NDArray[np.int64], table: Table) -> NDArray[Any]:
        texts = as_texts(cells)
        if (absent := absent_in(texts)).any():
            row = int(rows[absent.argmax()])
            raise InputError(f"row {row} of {table.name} has no {self.label!r}: name its class, or remove the row")
        if not self.whole:
            return texts.astype(np.str_)
        numbers, wrong = read_classes(cells)
        if wrong.any():
            raise InputError(
                f"{table.name} has the class {texts[wrong.argmax()]!r}, where classes were whole numbers: correct "
                "it"
            )
        return numbers

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
    def from_json(cls, record: Mapping[str, Any]) -> TableEncoder:
        """The encoder that `to_json` wrote; from any other record a ValueError, LookupError or TypeError."""
        columns = []
        for each in record["columns"]:
            values = each["values"]
            sound = values is None or all(isinstance(value, str) for value in values)
            if not isinstance(each["name"], str) or not sound or not math.isfinite(each["mean"]):
                raise ValueError("an impossible column")
            decimal, grouped, unit = each.get("written", (".", False, ""))  # files of 0.2.0 have plain numbers
            if decimal not in (".", ",") or type(grouped) is not bool or unit not in ("", *UNITS):
                raise ValueError("an impossible notation")
            written = Notation(decimal, grouped, unit)
            values = None if values is None else tuple(values)
            columns.append(Column(each["name"], values, float(each["mean"]), written))
        shift, scale = (tuple(map(float, record[name])) for name in ("shift", "scale"))
        label, whole, missing, identifier = record["label"], record["whole"], record["missing"], record.get("id")
        encoder = cls(label, whole, tuple(columns), missing, shift, scale, identifier)
        widths = {len(encoder.shift), len(encoder.scale)}
        if not isinstance(label, str | None) or not isinstance(identifier, str | None) or missing not in MISSING:
            raise ValueError("an impossible table")
        if not columns or type(whole) is not bool:
            raise ValueError("an impossible table")
        if widths not in ({0}, {encoder.shape[0]}) or not all(0 < each < math.inf for each in encoder.scale):
            raise ValueError("impossible scales")
        return encoder


def read_table(path: Path, reading: Reading, seed: int = 0) -> Dataset:
    """A file's rows as examples, whose inputs have mean 0 and deviation 1 over the training rows.

    Networks train on these inputs as they are, and would learn little from columns in units of their own.
    """
    encoder = TableEncoder.fit(path, reading=reading)
    named = reading.task_column
    parts = list(encoder.read(path, beside=[] if named is None else [named]))
    x = np.concatenate([rows.x for rows in parts])
    y = np.concatenate([rows.y for rows in parts if rows.y is not None])
    if not len(y):
        raise InputError(f"every row of {str(path)!r} has a missing value: give --missing fill")
    tasks = None if named is None else _tasks(named, np.concatenate([rows.beside[named] for rows in parts]))
    middle = x.mean(0)  # subtracted in float64: float32 has too few digits for the years of a calendar
    dataset = Dataset.from_arrays(x - middle, y, name=path.name.partition(".")[0], seed=seed, arrival=tasks)
    mean, scale = dataset.x.double().mean(0), dataset.x.double().std(0, correction=0)
    scale = torch.where(scale > 0, scale, 1.0)
    shown, tested = (((part.double() - mean) / scale).float() for part in (dataset.x, dataset.x_test))
    shift, factor = (tuple(each.tolist()) for each in (middle + mean.numpy(), scale.numpy()))
    return replace(dataset, x=shown, x_test=tested, form=replace(encoder, shift=shift, scale=factor))


def _tasks(name: str, cells: NDArray[Any]) -> NDArray[Any]:
    texts, (numbers, wrong) = as_texts(cells), read_numbers(cells)
    if absent_in(texts).any():
        raise InputError(f"column {name!r} has rows without a task: fill them in")
    if wrong.any() or (np.abs(numbers) >= EXACT).any():
        return texts
    if (numbers != np.round(numbers)).any():
        raise InputError(f"column {name!r} holds numbers with fractions, which name no tasks: name another")
    return numbers


def _label_by_name(table: Table, reading: Reading, labelled: bool) -> tuple[str | None, bool]:
    """The column of classes, and whether its name is clear; by default the last column without another use."""
    for name in (reading.label, reading.task_column, *reading.drop):
        if name is not None and name not in table.columns:
            raise unknown("column", name, table.columns)
    if not labelled:
        return None, True
    left = [name for name in table.columns if name not in (reading.task_column, *reading.drop)]
    if not left or (reading.label is not None and reading.label not in left):
        named = reading.label or next(reversed(table.columns))
        raise InputError(f"column {named!r} cannot be the label and left out: keep it")
    if reading.label is not None:
        return reading.label, True
    usual = [name for name in left if name.lower() in USUAL_LABELS]
    if len(usual) > 1:
        raise _unclear(usual)
    return (usual[0], True) if usual else (left[-1], False)


def _check_clear(last: ColumnScan, others: Iterable[ColumnScan]) -> None:
    """The last column has the classes if it is the only text, or the only one of few whole numbers."""
    others = [scan for scan in others if not scan.is_identifier]
    rivals = [scan.name for scan in others if scan.is_text]
    if not last.is_text:
        rivals += [scan.name for scan in others if scan.is_few]
    if rivals:
        raise _unclear([*rivals, last.name])


def _unclear(names: Sequence[str]) -> InputError:
    listed = ", ".join(repr(name) for name in names[:5]) + (", …" if len(names) > 5 else "")
    return InputError(f"which column holds the classes? Name it: --label {names[-1]!r} (it may be {listed})")


def _notes(encoder: TableEncoder, inputs: Mapping[str, ColumnScan], ids: Sequence[str]) -> Iterator[str]:
    plain = [column.name for column in encoder.columns if column.values is None and column.written.is_plain]
    if plain:
        yield f"numbers: {_listed(plain)}"
    for column in encoder.columns:
        if column.values is not None:
            yield f"{column.name!r} is text of {len(column.values)} values: {_listed(column.values)}"
        elif not column.written.is_plain:
            yield f"{column.name!r} holds {column.written.describe()}, such as {inputs[column.name].some!r}"
    for name in ids:
        yield f"{name!r} is not learned: it numbers or names the rows (predictions show {ids[0]!r})"


def _doubts_about_names(table: Table, classes: ColumnScan | None) -> Iterator[str]:
    """A file without a line of names: its first row was taken for one."""
    if not table.separator:
        return
    cells = [name for name in table.columns if "." in name and is_number(name)]
    if classes is not None and classes.name in classes.values:
        cells.append(classes.name)
    if cells:
        yield f"the first line of {table.name} has {cells[-1]!r}, like a row: put the columns' names above it"


def _doubts(scans: Sequence[ColumnScan]) -> Iterator[str]:
    commas = [scan.name for scan in scans if not scan.is_text and scan.way.decimal == ","]
    for scan in scans:
        doubt = scan.suspicion
        if commas and scan.fractions and not scan.is_text and scan.way.is_plain and scan.separator == ";":
            doubt = f"is read with decimal points, such as {scan.some!r}, and {commas[0]!r} with decimal commas"
        if doubt:
            yield f"column {scan.name!r} {doubt}: correct it or leave it out, if that is wrong"


def _listed(names: Sequence[str], most: int = 8) -> str:
    more = f", … ({len(names):,} in all)" if len(names) > most else ""
    return ", ".join(name[:40] for name in names[:most]) + more
