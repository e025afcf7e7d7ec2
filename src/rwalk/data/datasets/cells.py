"""Cells of a table: which are missing, and how numbers are written in them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

ABSENT = {"", "na", "n/a", "#n/a", "nan", "null", "<na>", "?"}  # what people write where a value is missing
LONGEST_ABSENT = max(map(len, ABSENT))
UNITS = "$€£¥₹%"
SPACES = " '’\u00a0\u2009\u202f"  # between thousands


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
        """In words for those who gave the table."""
        ways = []
        if self.decimal == ",":
            ways.append("with decimal commas")
        elif self.grouped:
            ways.append("with commas between thousands")
        if self.unit:
            ways.append(f"in {self.unit}")
        return " ".join(["numbers", *ways])


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
    unit = ""
    for cell in cells:
        if not is_absent(cell):
            unit = next((symbol for symbol in UNITS if symbol in str(cell)), "")
            break
    comma, grouped = Notation(",", False, unit), Notation(".", True, unit)
    return [Notation(unit=unit), *((comma, grouped) if commas_are_decimal else (grouped, comma))]


def as_numbers(cells: NDArray[Any], written: Notation = Notation()) -> NDArray[np.float64] | None:  # noqa: B008
    """The cells as numbers, NaN for missing ones; None if one of them is anything else."""
    if cells.dtype.kind == "f":
        return cells
    if written.is_plain:
        try:
            return cells.astype(np.float64)
        except (TypeError, ValueError):
            pass
    numbers, wrong = read_numbers(cells, written)
    return None if wrong.any() else numbers


def read_numbers(cells: NDArray[Any], written: Notation) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """The cells as numbers, NaN for missing ones; and which are neither."""
    numbers = np.full(len(cells), np.nan)
    wrong = np.zeros(len(cells), dtype=np.bool_)
    for place, cell in enumerate(cells):
        if not is_absent(cell):
            number = written.number(str(cell))
            if number is None:
                wrong[place] = True
            else:
                numbers[place] = number
    return numbers, wrong


def as_texts(cells: NDArray[Any]) -> NDArray[Any]:
    """The cells as texts, None for missing ones; whole numbers without a decimal point."""
    if cells.dtype.kind == "f":
        shown = (None if cell != cell else f"{cell:.17g}" for cell in cells.tolist())
    else:
        shown = (None if is_absent(cell) else str(cell).strip() for cell in cells)
    return np.fromiter(shown, dtype=object, count=len(cells))


def distinct(cells: NDArray[Any]) -> set[str]:
    """The texts that occur."""
    if cells.dtype.kind == "f":
        return {text for text in as_texts(cells) if text is not None}
    texts = {str(cell).strip() for cell in set(cells.tolist()) - {None}}
    return {text for text in texts if len(text) > LONGEST_ABSENT or text.lower() not in ABSENT}


def absent_in(texts: NDArray[Any]) -> NDArray[np.bool_]:
    return np.fromiter((text is None for text in texts), dtype=np.bool_, count=len(texts))


def is_absent(cell: Any) -> bool:
    return cell is None or (isinstance(cell, str) and cell.strip().lower() in ABSENT)
