"""Tables in files, CSV and Parquet, read in chunks of rows: memory use does not grow with the file."""

from __future__ import annotations

import codecs
import csv
import gzip
import re
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rwalk.data.datasets.npz import check_unpacked
from rwalk.data.datasets.optional import optional
from rwalk.errors import InputError

DELIMITED = (".csv", ".tsv", ".csv.gz", ".tsv.gz")
PARQUET = (".parquet", ".pq")
DELIMITERS = ",;\t|"
LONGEST_ROW = 1 << 24  # characters
EMPTY_LINE = 16  # characters that a line counts as, at least: a million empty ones in a row are no table
UNDECODED = re.compile("[\udc80-\udcff]")  # bytes that are not UTF-8, as Python escapes them
SUSPICIOUS = 1 << 25  # bytes that a small compressed table may unpack to, whatever its own size
MOST_COLUMNS = 100_000


@dataclass(frozen=True)
class Chunk:
    """Some rows of a table, by column: numbers, with NaN where one is missing, or texts, with None there."""

    start: int  # the number of the first row, the first of all being 1
    columns: dict[str, NDArray[Any]]

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))


class Table:
    """A table in a file.

    columns    name: place
    unnamed    columns without a name of their own, called by their place
    separator  what stands between columns, if it is text
    """

    def __init__(
        self, path: Path, columns: Sequence[str], unnamed: frozenset[str] = frozenset(), separator: str = ""
    ) -> None:
        self.path = path
        self.unnamed = unnamed
        self.separator = separator
        if len(columns) > MOST_COLUMNS:
            raise InputError(f"{str(path)!r} has {len(columns):,} columns: keep at most {MOST_COLUMNS:,} of them")
        self.columns = {name: place for place, name in enumerate(columns)}
        if len(self.columns) < len(columns):
            twice = next(name for place, name in enumerate(columns) if self.columns[name] != place)
            raise InputError(f"{str(path)!r} has two columns called {twice!r}: rename one")

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
        if path.suffix.lower() == ".gz":
            with _told(path):
                _check_packed(path)
        with _told(path), _Lines(path) as lines:
            line = next(iter(lines), "")
            separator = "\t" if ".tsv" in path.suffixes else max(DELIMITERS, key=line.count)
        with _told(path), _Lines(path) as lines:
            first = next(csv.reader(lines, delimiter=separator), [])
        if not first:
            raise InputError(f"{str(path)!r} begins with an empty line: put the columns' names there")
        self.headed = not all(_is_number(cell) for cell in first)
        names = {place: cell.strip() if self.headed else "" for place, cell in enumerate(first, 1)}
        called = {place: name or f"column{place}" for place, name in names.items()}
        unnamed = frozenset(called[place] for place, name in names.items() if not name and self.headed)
        super().__init__(path, [*called.values()], unnamed, separator)

    def chunks(self, rows: int, columns: Sequence[str]) -> Iterator[Chunk]:
        start, wanted = 1, {name: self.columns[name] for name in columns}
        with _told(self.path), _Lines(self.path) as lines:
            filled = lines.rows(self.separator)
            if self.headed:
                next(filled)
            while part := [self._checked(line, number) for number, line in enumerate(islice(filled, rows), start)]:
                cells = {name: [line[place] for line in part] for name, place in wanted.items()}
                yield Chunk(start, {name: np.array(column, dtype=object) for name, column in cells.items()})
                start += len(part)

    def _checked(self, line: list[str], number: int) -> list[str]:
        if len(line) != len(self.columns):
            raise InputError(
                f"row {number} of {str(self.path)!r} has {len(line)} cells, not {len(self.columns)} as its first "
                "line: repair it"
            )
        return line


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


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


class _Lines:
    """The lines of a text file, none of which, nor any row of several lines, can fill the memory."""

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
        told = False
        while line := self._file.readline(LONGEST_ROW + 1):
            self._in_row += max(len(line), EMPTY_LINE)
            if self._in_row > LONGEST_ROW:
                raise InputError(f"a row of {str(self.path)!r} has over {LONGEST_ROW:,} characters: shorten it")
            if "\0" in line:
                raise InputError(f"{str(self.path)!r} is not text: save it as “CSV UTF-8”")
            if not line.isascii() and UNDECODED.search(line):
                line = UNDECODED.sub(_western, line)
                if not told:
                    told = True
                    warnings.warn(
                        f"{str(self.path)!r} is not in UTF-8: it is read as Windows-1252 (Western European); if "
                        "names look wrong, save it as “CSV UTF-8”",
                        stacklevel=2,
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
    """Unpack a file once, keeping nothing: a small one that would fill the memory is refused before it does."""
    unpacked, packed = 0, path.stat().st_size
    with gzip.open(path, "rb") as file:
        while block := file.read(1 << 20):
            unpacked += len(block)
            check_unpacked(path, unpacked, packed, SUSPICIOUS, "unpack it")


def _western(undecoded: re.Match[str]) -> str:
    """A byte that is not UTF-8, read as Windows-1252, in which spreadsheets of Europe and America write."""
    return bytes([ord(undecoded[0]) - 0xDC00]).decode("cp1252")


class _told:
    """Whatever is wrong with a file, in one line."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if error is None or isinstance(error, InputError | GeneratorExit) or not isinstance(error, Exception):
            return
        if isinstance(error, UnicodeError):
            raise InputError(f"{str(self.path)!r} is not text in UTF-8: save it as “CSV UTF-8”") from None
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise InputError(f"{str(self.path)!r} cannot be read as a table ({reason}): save it again") from None
