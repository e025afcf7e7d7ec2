"""Tables: CSV and Parquet files of any size, data frames and Arrow tables, read in chunks of rows."""

from __future__ import annotations

import codecs
import csv
import gzip
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rwalk.data.arrays import EXACT
from rwalk.data.datasets.npz import check_unpacked, optional
from rwalk.errors import InputError, warn_caller

DELIMITED = (".csv", ".tsv", ".csv.gz", ".tsv.gz")
PARQUET = (".parquet", ".pq")
DELIMITERS = ",;\t|"
LONGEST_ROW = 1 << 24  # characters
EMPTY_LINE = 16  # characters that a line counts as, at least, so that empty lines reach the limit too
SUSPICIOUS = 1 << 25  # bytes that a compressed table of any size may unpack to

UNDECODED = re.compile("[\udc80-\udcff]")  # bytes that are not UTF-8, as Python escapes them
MOST_COLUMNS = 100_000
UNUSABLE = {"M": "dates", "m": "durations", "c": "complex numbers", "V": "records"}  # NumPy's letters of types


@dataclass(frozen=True)
class RowChunk:
    """Consecutive rows of a table, by column: numbers, NaN where one is missing, or texts, None where one is.

    Args:
        start: Number of the first row; the table's first row is 1.
        columns: Cells by the column's name.
    """

    start: int
    columns: dict[str, NDArray[Any]]

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))


class Table:
    """Rows of named columns.

    Args:
        name: The table as messages show it.
        columns: Names of the columns, in order.
        unnamed: Columns that have no name in the file, and are called by their number.
        separator: The character between the columns of a text file.

    Raises:
        InputError: If there are too many columns, or two of one name.
    """

    is_file = True  # and not a table in memory

    def __init__(
        self, name: str, columns: Sequence[str], unnamed: frozenset[str] = frozenset(), separator: str = ""
    ) -> None:
        self.name = name
        self.unnamed = unnamed
        self.separator = separator
        if len(columns) > MOST_COLUMNS:
            raise InputError(f"{name} has {len(columns):,} columns: keep at most {MOST_COLUMNS:,} of them")
        self.columns = {column: place for place, column in enumerate(columns)}
        if len(self.columns) < len(columns):
            twice = next(column for place, column in enumerate(columns) if self.columns[column] != place)
            raise InputError(f"{name} has two columns called {twice!r}: rename one")

    def chunks(self, rows: int, columns: Sequence[str]) -> Iterator[RowChunk]:
        """These columns of all rows, in chunks of `rows`."""
        raise NotImplementedError


def is_table(path: Path | str) -> bool:
    """Whether a file is a table, by its name."""
    return str(path).lower().endswith((*DELIMITED, *PARQUET))


def as_table(given: Any) -> Table:
    """A table from the path of a file, a pandas DataFrame or a pyarrow Table."""
    if isinstance(given, Table):
        return given
    if hasattr(given, "to_batches"):
        return ArrowTable(given)
    if hasattr(given, "iloc"):
        return FrameTable(given)
    if not isinstance(given, str | Path):
        raise InputError(f"{type(given).__name__} is no table: give a path, a pandas DataFrame or a pyarrow Table")
    path = Path(given)
    if not path.is_file():
        raise InputError(f"there is no file {str(path)!r}: correct the path")
    return ParquetTable(path) if str(path).lower().endswith(PARQUET) else TextTable(path)


class TextTable(Table):
    """A file of values separated by commas, semicolons, tabs or bars: by the one most frequent in the first line.

    The first line has the columns' names, unless it has numbers only.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with _readable(path):
            if path.suffix.lower() == ".gz":
                _check_packed(path)
            with _Lines(path) as lines:
                line = next(iter(lines), "")
            separator = "\t" if ".tsv" in path.suffixes else max(DELIMITERS, key=line.count)
            with _Lines(path) as lines:
                first = next(csv.reader(lines, delimiter=separator), [])
        if not first:
            raise InputError(f"{str(path)!r} begins with an empty line: put the columns' names there")
        self.headed = not all(is_number(cell) for cell in first)
        names = [cell.strip() if self.headed else "" for cell in first]
        called = [name or f"column{number}" for number, name in enumerate(names, 1)]
        unnamed = frozenset(each for each, name in zip(called, names, strict=True) if self.headed and not name)
        super().__init__(repr(str(path)), called, unnamed, separator)

    def chunks(self, rows: int, columns: Sequence[str]) -> Iterator[RowChunk]:
        start, wanted = 1, {name: self.columns[name] for name in columns}
        with _readable(self.path), _Lines(self.path) as lines:
            filled = lines.rows(self.separator)
            if self.headed:
                next(filled)
            while part := [self._checked(line, number) for number, line in enumerate(islice(filled, rows), start)]:
                cells = {name: [line[place] for line in part] for name, place in wanted.items()}
                yield RowChunk(start, {name: np.array(column, dtype=object) for name, column in cells.items()})
                start += len(part)

    def _checked(self, line: list[str], number: int) -> list[str]:
        if len(line) != len(self.columns):
            raise InputError(
                f"row {number} of {self.name} has {len(line)} cells, not {len(self.columns)} as its first line: "
                "repair it"
            )
        return line


class ParquetTable(Table):
    """A Parquet file, read by pyarrow."""

    def __init__(self, path: Path) -> None:
        self.path, self.parquet = path, optional("pyarrow.parquet", "pyarrow")
        with _readable(path), self.parquet.ParquetFile(path) as file:
            super().__init__(repr(str(path)), list(file.schema_arrow.names))

    def chunks(self, rows: int, columns: Sequence[str]) -> Iterator[RowChunk]:
        with _readable(self.path), self.parquet.ParquetFile(self.path) as file:
            yield from _arrow_chunks(file.iter_batches(batch_size=rows, columns=[*columns]), columns, self.name)


class ArrowTable(Table):
    """A pyarrow Table in memory."""

    is_file = False

    def __init__(self, table: Any) -> None:
        super().__init__("the table", list(table.column_names))
        self.table = table

    def chunks(self, rows: int, columns: Sequence[str]) -> Iterator[RowChunk]:
        yield from _arrow_chunks(self.table.select([*columns]).to_batches(rows), columns, self.name)


class FrameTable(Table):
    """A pandas DataFrame."""

    is_file = False

    def __init__(self, frame: Any) -> None:
        super().__init__("the table", [str(name) for name in frame.columns])
        self.frame = frame

    def chunks(self, rows: int, columns: Sequence[str]) -> Iterator[RowChunk]:
        for start in range(0, len(self.frame), rows):
            part = self.frame.iloc[start : start + rows]
            yield RowChunk(
                start + 1, {name: _frame_cells(name, part.iloc[:, self.columns[name]]) for name in columns}
            )


def _frame_cells(name: str, column: Any) -> NDArray[Any]:
    kind = getattr(column.dtype, "kind", "O")
    if kind in UNUSABLE:
        raise InputError(f"column {name!r} holds {UNUSABLE[kind]}: turn it into numbers, or leave it out")
    if kind in "iuf":
        numbers: NDArray[np.float64] = column.to_numpy(dtype=np.float64, na_value=np.nan)
        if kind == "f" or not (np.abs(numbers) >= EXACT).any():
            return numbers
    missing = column.isna().tolist()
    texts = (None if absent else str(value) for value, absent in zip(column.tolist(), missing, strict=True))
    return np.fromiter(texts, dtype=object, count=len(column))


def _arrow_chunks(batches: Iterator[Any], columns: Sequence[str], table: str) -> Iterator[RowChunk]:
    start = 1
    for batch in batches:
        if len(batch):
            yield RowChunk(start, {name: _arrow_cells(name, batch.column(name), table) for name in columns})
            start += len(batch)


def _arrow_cells(name: str, column: Any, table: str) -> NDArray[Any]:
    types = optional("pyarrow.types", "pyarrow")
    if types.is_dictionary(column.type):
        column = column.dictionary_decode()
    kind = column.type
    if types.is_floating(kind) or types.is_integer(kind) or types.is_decimal(kind):
        with suppress(ValueError):  # whole numbers from `EXACT` on stay texts
            return np.array(column.cast("float64").to_numpy(zero_copy_only=False), dtype=np.float64)
    as_text = (types.is_integer, types.is_boolean, types.is_string, types.is_large_string, types.is_null)
    if any(holds(kind) for holds in as_text):
        texts = (value if value is None else str(value) for value in column.to_pylist())
        return np.fromiter(texts, dtype=object, count=len(column))
    raise InputError(
        f"column {name!r} of {table} is of type {kind}, neither numbers nor text: leave it out, --drop {name}"
    )


def is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


class _Lines:
    """The lines of a text file; a line or a row of several lines that would fill the memory is refused."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._in_row = 0

    def __enter__(self) -> _Lines:
        with _opened(self.path, "rb") as file:
            marked = file.read(2) in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
        encoding, errors = ("utf-16", "strict") if marked else ("utf-8-sig", "surrogateescape")
        self._file = _opened(self.path, "rt", encoding=encoding, errors=errors, newline="")
        return self

    def __exit__(self, *error: Any) -> None:
        self._file.close()

    def __iter__(self) -> Iterator[str]:
        warned = False
        while line := self._file.readline(LONGEST_ROW + 1):
            self._in_row += max(len(line), EMPTY_LINE)
            if self._in_row > LONGEST_ROW:
                raise InputError(f"a row of {str(self.path)!r} has over {LONGEST_ROW:,} characters: shorten it")
            if "\0" in line:
                raise InputError(f"{str(self.path)!r} is not text: save it as “CSV UTF-8”")
            if not line.isascii() and UNDECODED.search(line):
                line = UNDECODED.sub(_western, line)
                if not warned:
                    warned = True
                    warn_caller(
                        f"{str(self.path)!r} is not in UTF-8: it is read as Windows-1252 (Western European); if "
                        "names look wrong, save it as “CSV UTF-8”"
                    )
            yield line

    def rows(self, delimiter: str) -> Iterator[list[str]]:
        """The cells of every row, without empty rows."""
        for row in csv.reader(self, delimiter=delimiter):
            if row:
                self._in_row = 0
                yield row


def _opened(path: Path, mode: str, **how: Any) -> Any:
    return gzip.open(path, mode, **how) if path.suffix.lower() == ".gz" else open(path, mode, **how)


def _check_packed(path: Path) -> None:
    """Unpack a file once without keeping it, to refuse one that would fill the memory before it does."""
    unpacked, packed = 0, path.stat().st_size
    with gzip.open(path, "rb") as file:
        while block := file.read(1 << 20):
            unpacked += len(block)
            check_unpacked(path, unpacked, packed, SUSPICIOUS, "unpack it")


def _western(undecoded: re.Match[str]) -> str:
    """A byte that is not UTF-8, read as Windows-1252, the encoding of western spreadsheets."""
    return bytes([ord(undecoded[0]) - 0xDC00]).decode("cp1252")


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Turn any error of reading into one line."""
    try:
        yield
    except InputError:
        raise
    except UnicodeError:
        raise InputError(f"{str(path)!r} is not text in UTF-8: save it as “CSV UTF-8”") from None
    except Exception as error:
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise InputError(f"{str(path)!r} cannot be read as a table ({reason}): save it again") from None
