"""Columns of a table: how their cells are written, and a first pass over all rows."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rwalk.data.arrays import EXACT
from rwalk.data.datasets.tables import RowChunk, Table
from rwalk.errors import InputError

ABSENT = {"", "na", "n/a", "#n/a", "nan", "null", "<na>", "?"}  # what people write where a value is missing
LONGEST_ABSENT = max(map(len, ABSENT))
UNITS = "$€£¥₹%"
SPACES = " '’\u00a0\u2009\u202f"  # between thousands
MOST_VALUES = 100  # of a column of text: more is an identifier, or prose
MOST_CLASSES = 10_000
FEW = 20  # values of a column of whole numbers that may be classes
TYPOS = 0.1  # the largest share of values that count as mistakes in a column of numbers

# Names of columns that identify rows. The index that pandas writes has no name.
IDENTIFIER = re.compile(
    r"(?i:id|uuid|guid|index|idx|row|row[ _]?(number|no|id)|unnamed: \d+|__index_level_\d+__|.*[ _-]id)"
    r"|.*[a-z]I[dD]"
)
DATE = re.compile(r"\d{4}[-/.]\d\d?[-/.]\d\d?([T ].*)?|\d\d?[-/.]\d\d?[-/.]\d{4}.*")


# Cells


@dataclass(frozen=True)
class Notation:
    """How the numbers of a column are written: 1234.5, "1,234.5" (grouped) or 1.234,5; perhaps as $2 or 10%.

    >>> Notation(unit="$", grouped=True).number("$1,234.50"), Notation(decimal=",").number("3,5")
    (1234.5, 3.5)
    >>> Notation().number("3,5") is None
    True
    """

    decimal: str = "."
    grouped: bool = False
    unit: str = ""

    @property
    def is_plain(self) -> bool:
        return self == Notation()

    def number(self, text: str) -> float | None:
        """The number in a cell, or None if it is written in another way."""
        text = text.strip()
        if self.unit:
            sign = text[:1] if text[:1] in ("-", "+") else ""
            bare = text[len(sign) :].strip()
            if bare.startswith(self.unit) == bare.endswith(self.unit):
                return None
            text = sign + bare.removeprefix(self.unit).removesuffix(self.unit).strip()
        if self.grouped or self.decimal == ",":
            if not _pattern(self.decimal).fullmatch(text):
                return None
            text = re.sub(f"[{SPACES}{'.' if self.decimal == ',' else ','}]", "", text).replace(",", ".")
        try:
            return float(text)
        except ValueError:
            return None

    def describe(self) -> str:
        """In words for the table's owner."""
        ways = []
        if self.decimal == ",":
            ways.append("with decimal commas")
        elif self.grouped:
            ways.append("with commas between thousands")
        if self.unit:
            ways.append(f"in {self.unit}")
        return " ".join(["numbers", *ways])


PLAIN = Notation()


@cache
def _pattern(decimal: str) -> re.Pattern[str]:
    group = rf"[{SPACES}{re.escape('.' if decimal == ',' else ',')}]"
    digits = rf"(\d{{1,3}}({group}\d{{3}})+|\d+)"
    mark = re.escape(decimal)
    return re.compile(rf"[+-]?({digits}({mark}\d*)?|{mark}\d+)([eE][+-]?\d+)?")


def notations(cells: NDArray[Any], commas_are_decimal: bool) -> list[Notation]:
    """The ways in which a column with these cells may write numbers, the likeliest first.

    "1,234" is read in one of two ways: as 1.234 where semicolons separate the columns, else as 1234.
    """
    first = next((str(cell) for cell in cells if not is_absent(cell)), "")
    unit = next((symbol for symbol in UNITS if symbol in first), "")
    comma, grouped = Notation(",", False, unit), Notation(".", True, unit)
    return [Notation(unit=unit), *((comma, grouped) if commas_are_decimal else (grouped, comma))]


def read_numbers(cells: NDArray[Any], written: Notation = PLAIN) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """The cells as numbers, NaN for missing ones; and which cells are neither."""
    wrong = np.zeros(len(cells), dtype=np.bool_)
    if cells.dtype.kind == "f":
        return cells, wrong
    if written.is_plain:
        try:
            return cells.astype(np.float64), wrong
        except (TypeError, ValueError):
            pass
    numbers = np.full(len(cells), np.nan)
    for place, cell in enumerate(cells):
        if not is_absent(cell):
            number = written.number(str(cell))
            if number is None:
                wrong[place] = True
            else:
                numbers[place] = number
    return numbers, wrong


def read_classes(cells: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """The cells as whole numbers; and which of them name no class in this way."""
    numbers, _ = read_numbers(cells)
    whole = (np.abs(numbers) < EXACT) & (numbers == np.round(numbers))
    return np.where(whole, numbers, 0).astype(np.int64), ~whole


def as_texts(cells: NDArray[Any]) -> NDArray[Any]:
    """The cells as texts, None for missing ones; whole numbers without a decimal point."""
    if cells.dtype.kind == "f":
        shown = (None if cell != cell else f"{cell:.17g}" for cell in cells.tolist())
    else:
        shown = (None if is_absent(cell) else str(cell).strip() for cell in cells)
    return np.fromiter(shown, dtype=object, count=len(cells))


def absent_in(texts: NDArray[Any]) -> NDArray[np.bool_]:
    """Which texts are missing."""
    return np.fromiter((text is None for text in texts), dtype=np.bool_, count=len(texts))


def is_absent(cell: Any) -> bool:
    return cell is None or (isinstance(cell, str) and cell.strip().lower() in ABSENT)


def _distinct(cells: NDArray[Any]) -> set[str]:
    """The texts that occur."""
    if cells.dtype.kind == "f":
        return {text for text in as_texts(cells) if text is not None}
    texts = {str(cell).strip() for cell in set(cells.tolist()) - {None}}
    return {text for text in texts if len(text) > LONGEST_ABSENT or text.lower() not in ABSENT}


# Columns


@dataclass(frozen=True)
class Column:
    """One column of inputs.

    Args:
        name: Its name.
        values: The values of a column of text; None for numbers.
        mean: Mean of the numbers, which replaces missing ones where those are filled.
        written: How the numbers are written.
    """

    name: str
    values: tuple[str, ...] | None = None
    mean: float = 0.0
    written: Notation = PLAIN

    @property
    def width(self) -> int:
        """How many inputs it becomes."""
        return 1 if self.values is None else len(self.values)


def no_value(row: int, table: str, name: str) -> InputError:
    return InputError(
        f"row {row} of {table} has no value in column {name!r}: fill it in, or give --missing fill (the column's "
        "mean) or --missing drop (leave such rows out)"
    )


@dataclass
class _Tried:
    """How far one way of writing numbers explains a column."""

    wrong: int = 0
    first: tuple[int, str, str] | None = None  # row, table and text of the first cell that it cannot read
    total: float = 0.0

    def note(self, wrong: NDArray[np.bool_], cells: NDArray[Any], chunk: RowChunk, table: Table) -> None:
        self.wrong += int(wrong.sum())
        if self.first is None and wrong.any():
            place = int(wrong.argmax())
            self.first = chunk.start + place, table.name, str(cells[place])


@dataclass
class ColumnScan:
    """Findings about a column in the rows read so far."""

    name: str
    most: int = MOST_VALUES
    rows: int = 0
    present: int = 0
    tried: dict[Notation, _Tried] = field(default_factory=dict)  # the likeliest first
    values: set[str] = field(default_factory=set)
    some: str = ""
    absent: tuple[int, str] | None = None  # row and table of the first missing value
    unnamed: bool = False
    fractions: bool = False
    repeats: bool = False  # a value occurs twice among rows read together
    counts: bool = True  # each row is one more than the row before
    last: float | None = None
    table: Table | None = None

    def add(self, chunk: RowChunk, table: Table) -> None:
        """Read the next rows."""
        cells = chunk.columns[self.name]
        if self.table is not table:
            self.table, self.last, self.unnamed = table, None, self.name in table.unnamed
        self.rows += len(cells)
        if not self.tried:
            self.tried = {way: _Tried() for way in notations(cells, table.separator == ";")}
            self.some = next((str(cell).strip() for cell in cells if not is_absent(cell)), "")
        missing = self._count(cells, chunk, table)
        self.present += len(cells) - int(missing.sum())
        if self.absent is None and missing.any():
            self.absent = chunk.start + int(missing.argmax()), table.name
        if len(self.values) <= self.most:
            self.values |= _distinct(cells)
        if self.present > 1000 and self.is_text and not self.is_mixed and len(self.values) > self.most:
            self._check_values()  # further rows would change nothing

    def _count(self, cells: NDArray[Any], chunk: RowChunk, table: Table) -> NDArray[np.bool_]:
        """Count the numbers of some rows; which of them have no value."""
        numbers, wrong = read_numbers(cells, next(iter(self.tried)))
        if not wrong.any():
            missing: NDArray[np.bool_] = np.isnan(numbers)
            there = numbers[~missing] if missing.any() else numbers
            fractions, total = np.count_nonzero(there != np.floor(there)), float(there.sum())
            for way, tried in self.tried.items():
                tried.total += total
                if way.decimal == "," and fractions:  # a decimal point rules out decimal commas
                    tried.note((numbers != np.floor(numbers)) & ~missing, cells, chunk, table)
            self._follow(numbers, bool(fractions))
            return missing
        missing = absent_in(as_texts(cells))
        for way, tried in self.tried.items():
            found, wrong = read_numbers(cells, way)
            tried.total += float(np.nansum(found))
            tried.note(wrong & ~missing, cells, chunk, table)
            if way == self.way:
                self._follow(found, bool((found != np.floor(found))[~np.isnan(found)].any()))
        return missing

    def _follow(self, numbers: NDArray[np.float64], fractions: bool) -> None:
        """Whether these numbers identify rows, or count them."""
        self.fractions |= fractions
        if self.fractions or (self.repeats and not self.counts):
            return
        before = numbers[:1] - 1 if self.last is None else np.array([self.last])
        with np.errstate(invalid="ignore"):  # infinity is refused later, with its row
            self.counts &= bool((np.diff(np.concatenate([before, numbers])) == 1).all())
        self.repeats |= len(np.unique(numbers)) < len(numbers)
        self.last = float(numbers[-1])

    @property
    def way(self) -> Notation:
        """The way of writing numbers that explains most."""
        return min(self.tried, key=lambda way: self.tried[way].wrong)

    @property
    def wrong(self) -> int:
        """The number of values that are not numbers."""
        return self.tried[self.way].wrong if self.tried else 0

    @property
    def is_text(self) -> bool:
        return self.wrong > 0

    @property
    def is_mixed(self) -> bool:
        """Mostly numbers: the rest are mistakes, or names beside numbers."""
        return 0 < self.wrong <= self.present / 2

    @property
    def is_all_different(self) -> bool:
        """Text that differs in every row."""
        return self.is_text and len(self.values) == self.present > 2

    @property
    def is_few(self) -> bool:
        """A few whole numbers, which may be classes."""
        return not self.is_text and not self.fractions and len(self.values) <= min(FEW, self.present / 2)

    @property
    def is_identifier(self) -> bool:
        """Whether its name and its values identify the rows."""
        if self.rows < 3 or not (self.unnamed or IDENTIFIER.fullmatch(self.name)):
            return False
        if self.is_text:
            return len(self.values) > self.most or self.is_all_different
        return not self.fractions and not self.repeats and self.absent is None

    @property
    def separator(self) -> str:
        """The character between the columns of a text file; else nothing."""
        return "" if self.table is None else self.table.separator

    @property
    def suspicion(self) -> str:
        """What may be wrong with it, in words; nothing in most cases."""
        if self.is_mixed:
            numbers = self.present - self.wrong
            return f"is read as text, though {numbers:,} of its {self.present:,} values are numbers"
        if not self.is_text and self.counts and not self.fractions and self.rows >= FEW:
            return "counts the rows"
        if len(self.values) == 1 and self.rows > 1:
            return "has the same value in every row"
        if self.is_text and all(DATE.fullmatch(value) for value in self.values):
            return "holds dates, learned as text: later dates count as none of them"
        return ""

    def column(self, missing: str) -> Column:
        """The column of inputs; a column that cannot be learned is refused."""
        if not self.values:
            raise InputError(f"column {self.name!r} is empty: {self._leave_out}")
        if 0 < self.wrong <= TYPOS * self.present and len(self.values) > FEW:
            raise self._mistake()
        if self.is_text:
            self._check_values()
            if self.is_all_different and self.present > FEW:
                raise InputError(
                    f"column {self.name!r} holds another text in every row, such as {min(self.values)[:40]!r}: "
                    f"{self._leave_out}"
                )
        if self.absent is not None and missing == "refuse":
            raise no_value(*self.absent, self.name)
        if self.is_text:
            return Column(self.name, tuple(sorted(self.values)))
        mean = self.tried[self.way].total / self.present if missing == "fill" else 0.0
        return Column(self.name, None, mean, self.way)

    def has_whole_classes(self) -> bool:
        """Whether its classes are whole numbers; they may be text too, as very long numbers are, but no others."""
        self._check_values()
        if not self.is_text and self.fractions:
            raise InputError(
                f"column {self.name!r} holds numbers with fractions, which name no classes: name the column of "
                "classes with --label"
            )
        plain = not self.is_text and self.way.is_plain
        return plain and all(abs(float(value)) < EXACT for value in self.values)

    @property
    def _leave_out(self) -> str:
        """How its owner leaves it out: an option of the command line reads files, not frames."""
        from_file = self.table is not None and self.table.is_file
        return "leave it out" + (f", --drop {self.name!r}" if from_file else "")

    def _mistake(self) -> InputError:
        first = self.tried[self.way].first
        assert first is not None
        row, table, text = first
        more = f" (and {self.wrong - 1:,} more)" if self.wrong > 1 else ""
        return InputError(
            f"row {row} of {table} has {text[:40]!r} in column {self.name!r}{more}, whose other values are "
            f"{self.way.describe()}: correct it, or {self._leave_out}"
        )

    def _check_values(self) -> None:
        """Refuse more values than classes, or inputs, can have."""
        if len(self.values) <= self.most:
            return
        some = min(self.values)[:40]
        if self.most == MOST_CLASSES:
            raise InputError(
                f"column {self.name!r} has more than {MOST_CLASSES} values, such as {some!r}: name the column of "
                "classes with --label"
            )
        if not self.unnamed and not IDENTIFIER.fullmatch(self.name):
            what = "dates" if DATE.fullmatch(some) else "text"
            raise InputError(
                f"column {self.name!r} holds {what} of more than {MOST_VALUES} values, such as {some!r}: "
                f"{self._leave_out}"
            )
