"""Tables in files, CSV and Parquet, read in chunks of rows: memory use does not grow with the file."""

from __future__ import annotations

import csv
import gzip
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, TextIO

import numpy as np
from numpy.typing import NDArray

from rwalk.data.datasets.optional import optional
from rwalk.errors import InputError

DELIMITED = (".csv", ".tsv", ".csv.gz", ".tsv.gz")
PARQUET = (".parquet", ".pq")
DELIMITERS = ",;\t|"
ABSENT = {"", "na", "n/a", "nan", "null", "?"}  # what people write where a value is missing
LONGEST_LINE = 1 << 24  # characters in a header


@dataclass(frozen=True)
class Chunk:
    """Some rows of a table, by column: numbers, with NaN where one is missing, or texts, with None there."""

    start: int  # the number of the first row, the first of all being 1
    columns: dict[str, NDArray[Any]]

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))


class Table:
    """A table in a file."""

    def __init__(self, path: Path, columns: list[str]) -> None:
        self.path = path
        self.columns = columns
        for place, name in enumerate(columns):
            if name in columns[:place]:
                raise InputError(f"{str(path)!r} has two columns called {name!r}: rename one")

    def chunks(self, rows: int, columns: Sequence[str]) -> Iterator[Chunk]:
        """These columns of all rows, in chunks of `rows`."""
        raise NotImplementedError


def is_table(path: Path | str) -> bool:
    return str(path).lower().endswith((*DELIMITED, *PARQUET))


def open_table(path: Path) -> Table:
    if not path.is_file():
        raise InputError(f"there is no file {str(path)!r}: correct the path")
    return ParquetTable(path) if str(path).lower().endswith(PARQUET) else TextTable(path)


class TextTable(Table):
    """Comma-separated values, or separated by semicolons, tabs or bars: whichever the first line has most of.

    The first line names the columns, unless it holds nothing but numbers.
    """

    def __init__(self, path: Path) -> None:
        with _told(path), _text(path) as file:
            line = file.readline(LONGEST_LINE)
        self.delimiter = "\t" if ".tsv" in path.suffixes else max(DELIMITERS, key=line.count)
        try:
            first = next(csv.reader([line], delimiter=self.delimiter), [])
        except csv.Error as error:
            raise InputError(f"the first line of {str(path)!r} cannot be read ({error}): repair it") from None
        if not first:
            raise InputError(f"{str(path)!r} begins with an empty line: put the columns' names there")
        self.headed = not all(_is_number(cell) for cell in first)
        names = [cell.strip() or f"column{place}" for place, cell in enumerate(first, 1)]
        super().__init__(path, names if self.headed else [f"column{place}" for place in range(1, len(first) + 1)])

    def chunks(self, rows: int, columns: Sequence[str]) -> Iterator[Chunk]:
        start, wanted = 1, {name: self.columns.index(name) for name in columns}
        with _told(self.path), _text(self.path) as file:
            lines = csv.reader(file, delimiter=self.delimiter)
            if self.headed:
                next(lines)
            filled = (line for line in lines if line)
            while part := list(islice(filled, rows)):
                for number, line in enumerate(part, start):
                    if len(line) != len(self.columns):
                        raise InputError(
                            f"row {number} of {str(self.path)!r} has {len(line)} cells, not "
                            f"{len(self.columns)} as its first line: repair it"
                        )
                cells = {name: [line[place] for line in part] for name, place in wanted.items()}
                yield Chunk(start, {name: np.array(column, dtype=object) for name, column in cells.items()})
                start += len(part)


class ParquetTable(Table):
    """Columns with types of their own, read by pyarrow."""

    def __init__(self, path: Path) -> None:
        self.parquet = optional("pyarrow.parquet", "pyarrow")
        with _told(path), self.parquet.ParquetFile(path) as file:
            super().__init__(path, list(file.schema_arrow.names))

    def chunks(self, rows: int, columns: Sequence[str]) -> Iterator[Chunk]:
        start = 1
        with _told(self.path), self.parquet.ParquetFile(self.path) as file:
            for batch in file.iter_batches(batch_size=rows, columns=[*columns]):
                if len(batch):
                    yield Chunk(start, {name: self._cells(name, batch.column(name)) for name in columns})
                    start += len(batch)

    def _cells(self, name: str, column: Any) -> NDArray[Any]:
        types = optional("pyarrow.types", "pyarrow")
        kind = column.type
        if types.is_dictionary(kind):
            column = column.dictionary_decode()
            kind = column.type
        if types.is_floating(kind) or types.is_integer(kind) or types.is_decimal(kind):
            return np.array(column.cast("float64").to_numpy(zero_copy_only=False), dtype=np.float64)
        if types.is_boolean(kind) or types.is_string(kind) or types.is_large_string(kind) or types.is_null(kind):
            texts = (value if value is None else str(value) for value in column.to_pylist())
            return np.fromiter(texts, dtype=object, count=len(column))
        raise InputError(
            f"column {name!r} of {str(self.path)!r} is of type {kind}, neither numbers nor text: leave it out, "
            f"--drop {name}"
        )


def as_numbers(cells: NDArray[Any]) -> NDArray[np.float64] | None:
    """The cells as numbers, NaN for missing ones; None if one of them is anything else."""
    if cells.dtype.kind == "f":
        return cells
    try:
        return cells.astype(np.float64)
    except (TypeError, ValueError):
        pass
    try:
        return np.array([np.nan if is_absent(cell) else float(cell) for cell in cells], dtype=np.float64)
    except ValueError:
        return None


def as_texts(cells: NDArray[Any]) -> NDArray[Any]:
    """The cells as texts, None for missing ones; whole numbers without a decimal point."""
    if cells.dtype.kind == "f":
        shown = (None if cell != cell else f"{cell:.17g}" for cell in cells.tolist())
    else:
        shown = (None if is_absent(cell) else str(cell).strip() for cell in cells)
    return np.fromiter(shown, dtype=object, count=len(cells))


def absent_in(texts: NDArray[Any]) -> NDArray[np.bool_]:
    return np.fromiter((text is None for text in texts), dtype=np.bool_, count=len(texts))


def is_absent(cell: Any) -> bool:
    return cell is None or (isinstance(cell, str) and cell.strip().lower() in ABSENT)


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _text(path: Path) -> TextIO:
    """UTF-8, with or without the byte-order mark that spreadsheets write."""
    if path.suffix.lower() == ".gz":
        return gzip.open(path, "rt", encoding="utf-8-sig", newline="")
    return open(path, encoding="utf-8-sig", newline="")


class _told:
    """Whatever is wrong with a file, in one line."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if error is None or isinstance(error, InputError | GeneratorExit) or not isinstance(error, Exception):
            return
        if isinstance(error, UnicodeDecodeError):
            raise InputError(f"{str(self.path)!r} is not text in UTF-8: save it as “CSV UTF-8”") from None
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise InputError(f"{str(self.path)!r} cannot be read as a table ({reason}): save it again") from None
