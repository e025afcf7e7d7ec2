"""A first pass over a table: what its columns contain, before anything is learned from it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rwalk.data.datasets.cells import (
    Notation,
    absent_in,
    as_numbers,
    as_texts,
    distinct,
    is_absent,
    notations,
    read_numbers,
)
from rwalk.data.datasets.columns import CELLS, Column, TableForm, no_value
from rwalk.data.datasets.reading import Reading
from rwalk.data.datasets.tables import Chunk, Table, open_table
from rwalk.errors import InputError, unknown

USUAL_LABELS = ("label", "target", "class")
MOST_VALUES = 100  # of a column of text: more is an identifier, or prose
MOST_CLASSES = 10_000
FEW = 20  # values of a column of whole numbers that may be classes
TYPOS = 0.1  # of a column: if so many of its values or fewer are no numbers, they are mistakes
# Names of columns that tell rows apart. The index that pandas writes has no name.
IDENTIFIER = re.compile(
    r"(?i:id|uuid|guid|index|idx|row|row[ _]?(number|no|id)|unnamed: \d+|__index_level_\d+__|.*[ _-]id)"
    r"|.*[a-z]I[dD]"
)
DATE = re.compile(r"\d{4}[-/.]\d\d?[-/.]\d\d?([T ].*)?|\d\d?[-/.]\d\d?[-/.]\d{4}.*")


class Survey(NamedTuple):
    """How a table is read, and in words for its owner, column by column, what was found."""

    form: TableForm
    rows: int
    notes: tuple[str, ...]


def survey(paths: Sequence[Path], reading: Reading) -> TableForm:
    """How all rows of these files are read."""
    return look_at(paths, reading).form


def look_at(paths: Sequence[Path], reading: Reading) -> Survey:
    """A first pass over all rows: which columns are numbers, which values the others have, the classes."""
    tables = [open_table(path) for path in paths]
    label, is_clear = _label_by_name(tables[0], reading)
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
            for look in (*inputs.values(), classes):
                look.at(chunk, table)
    if not classes.rows:
        raise InputError(f"{str(paths[0])!r} has no rows: add some")
    if not is_clear:
        _check_clear(classes, inputs.values())
    whole = classes.names_classes()
    ids = [look.name for look in inputs.values() if look.identifies]
    learned = [look for look in inputs.values() if not look.identifies]
    if not learned:
        raise InputError(f"{str(paths[0])!r} has only {label!r} and {ids[0]!r}: add columns to learn from")
    columns = tuple(look.column(reading.missing) for look in learned)
    form = TableForm(label, whole, columns, reading.missing, id=ids[0] if ids else None)
    return Survey(form, classes.rows, tuple(_notes(form, inputs, ids, named=reading.label is not None)))


def _label_by_name(table: Table, reading: Reading) -> tuple[str, bool]:
    """The column of classes, and whether its name says so: else it is the last that has no other use."""
    for name in (reading.label, reading.task_column, *reading.drop):
        if name is not None and name not in table.columns:
            raise unknown("column", name, table.columns)
    left = [name for name in table.columns if name not in (reading.task_column, *reading.drop)]
    if not left or (reading.label is not None and reading.label not in left):
        named = reading.label or next(reversed(table.columns))
        raise InputError(f"column {named!r} cannot be the label and left out: keep it")
    if reading.label is not None:
        return reading.label, True
    usual = [name for name in left if name.lower() in USUAL_LABELS]
    if len(usual) > 1:
        raise _ask(usual)
    return (usual[0], True) if usual else (left[-1], False)


def _check_clear(last: _Look, others: Iterable[_Look]) -> None:
    """The last column has the classes if it is the only text, or the only one of few whole numbers."""
    others = [look for look in others if not look.identifies]
    rivals = [look.name for look in others if look.is_text]
    if not last.is_text:
        rivals += [look.name for look in others if look.is_few]
    if rivals:
        raise _ask([*rivals, last.name])


def _ask(names: Sequence[str]) -> InputError:
    listed = ", ".join(repr(name) for name in names[:5]) + (", …" if len(names) > 5 else "")
    return InputError(f"which column holds the classes? Name it: --label {names[-1]!r} (it may be {listed})")


def _notes(form: TableForm, inputs: dict[str, _Look], ids: list[str], named: bool) -> Iterable[str]:
    if not named:
        yield f"the classes are in column {form.label!r} (--label names another)"
    plain = [column.name for column in form.columns if column.values is None and column.written.is_plain]
    if plain:
        yield f"numbers: {_listed(plain)}"
    for column in form.columns:
        if column.values is not None:
            yield f"{column.name!r} is text of {len(column.values)} values: {_listed(column.values)}"
        elif not column.written.is_plain:
            yield f"{column.name!r} holds {column.written.describe()}, such as {inputs[column.name].some!r}"
    for name in ids:
        yield f"{name!r} is not learned: it numbers or names the rows (predictions show {ids[0]!r})"
    for column in form.columns:
        if warned := inputs[column.name].suspicion:
            yield f"{column.name!r} {warned}: correct it, or leave it out (--drop), if that is wrong"


def _listed(names: Sequence[str], most: int = 8) -> str:
    more = f", … ({len(names):,} in all)" if len(names) > most else ""
    return ", ".join(name[:40] for name in names[:most]) + more


@dataclass
class _Tried:
    """How far one way of writing numbers explains a column."""

    wrong: int = 0
    first: tuple[int, Path, str] | None = None  # row, file and text of what it cannot read
    total: float = 0.0

    def note(
        self, wrong: NDArray[np.bool_], missing: NDArray[np.bool_], chunk: Chunk, path: Path, name: str
    ) -> None:
        wrong = wrong & ~missing
        self.wrong += int(wrong.sum())
        if self.first is None and wrong.any():
            place = int(wrong.argmax())
            self.first = chunk.start + place, path, str(chunk.columns[name][place])


@dataclass
class _Look:
    """What is known about a column so far."""

    name: str
    most: int = MOST_VALUES
    rows: int = 0
    present: int = 0
    tried: dict[Notation, _Tried] = field(default_factory=dict)  # the likeliest first
    values: set[str] = field(default_factory=set)
    some: str = ""
    absent: tuple[int, Path] | None = None  # where the first value is missing
    unnamed: bool = False
    fractions: bool = False
    repeats: bool = False  # a value, among rows read together
    counts: bool = True  # each row one more than the row before
    last: float | None = None
    path: Path | None = None

    def at(self, chunk: Chunk, table: Table) -> None:
        cells = chunk.columns[self.name]
        if self.path != table.path:
            self.path, self.last, self.unnamed = table.path, None, self.name in table.unnamed
        self.rows += len(cells)
        if not self.tried:
            self.tried = {way: _Tried() for way in notations(cells, table.separator == ";")}
            self.some = next((str(cell).strip() for cell in cells if not is_absent(cell)), "")
        missing = self._count(cells, chunk, table.path)
        self.present += len(cells) - int(missing.sum())
        if self.absent is None and missing.any():
            self.absent = chunk.start + int(missing.argmax()), table.path
        if len(self.values) <= self.most:
            self.values |= distinct(cells)
        if self.present > 1000 and self.is_text and not self.is_mixed and len(self.values) > self.most:
            self._check_values()  # no use to read on

    def _count(self, cells: NDArray[Any], chunk: Chunk, path: Path) -> NDArray[np.bool_]:
        """Count the numbers of some rows; which of them have no value."""
        plain = next(iter(self.tried))
        numbers = as_numbers(cells, plain)
        if numbers is not None:
            missing: NDArray[np.bool_] = np.isnan(numbers)
            there = numbers[~missing] if missing.any() else numbers
            fractions, total = np.count_nonzero(there != np.floor(there)), float(there.sum())
            for way, tried in self.tried.items():
                tried.total += total
                if way.decimal == "," and fractions:  # with a decimal point they are no decimal commas
                    tried.note(numbers != np.floor(numbers), missing, chunk, path, self.name)
            self._follow(numbers, bool(fractions))
            return missing
        missing = absent_in(as_texts(cells))
        for way, tried in self.tried.items():
            found, wrong = read_numbers(cells, way)
            tried.total += float(np.nansum(found))
            tried.note(wrong, missing, chunk, path, self.name)
            if way == self.way:
                self._follow(found, bool((found != np.floor(found))[~np.isnan(found)].any()))
        return missing

    def _follow(self, numbers: NDArray[np.float64], fractions: bool) -> None:
        """Whether these numbers tell rows apart, or count them."""
        self.fractions |= fractions
        if self.fractions or (self.repeats and not self.counts):
            return
        before = numbers[:1] - 1 if self.last is None else np.array([self.last])
        with np.errstate(invalid="ignore"):  # infinity is refused later, by its row
            self.counts &= bool((np.diff(np.concatenate([before, numbers])) == 1).all())
        self.repeats |= len(np.unique(numbers)) < len(numbers)
        self.last = float(numbers[-1])

    @property
    def way(self) -> Notation:
        """The way of writing numbers that explains most."""
        return min(self.tried, key=lambda way: self.tried[way].wrong)

    @property
    def wrong(self) -> int:
        """Values that are no numbers."""
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
        """Text that no two rows share."""
        return self.is_text and len(self.values) == self.present > 2

    @property
    def is_few(self) -> bool:
        """A few whole numbers, which may be classes."""
        return not self.is_text and not self.fractions and len(self.values) <= min(FEW, self.present / 2)

    @property
    def identifies(self) -> bool:
        """Whether it tells rows apart, by its name and by its values."""
        if self.rows < 3 or not (self.unnamed or IDENTIFIER.fullmatch(self.name)):
            return False
        if self.is_text:
            return len(self.values) > self.most or self.is_all_different
        return not self.fractions and not self.repeats and self.absent is None

    @property
    def suspicion(self) -> str:
        if self.is_mixed:
            numbers = self.present - self.wrong
            return f"is read as text, though {numbers:,} of its {self.present:,} values are numbers"
        if not self.is_text and self.counts and not self.fractions and self.rows >= FEW:
            return "counts the rows"
        if len(self.values) == 1 and self.rows > 1:
            return "has the same value in every row"
        return ""

    def column(self, missing: str) -> Column:
        if not self.values:
            raise InputError(f"column {self.name!r} is empty: leave it out, --drop {self.name!r}")
        if 0 < self.wrong <= TYPOS * self.present and len(self.values) > FEW:
            raise self._mistake()
        if self.is_text:
            self._check_values()
            if self.is_all_different and self.present > FEW:
                raise InputError(
                    f"column {self.name!r} holds another text in every row, such as {min(self.values)[:40]!r}: "
                    f"leave it out, --drop {self.name!r}"
                )
        if self.absent is not None and missing == "refuse":
            raise no_value(*self.absent, self.name)
        if self.is_text:
            return Column(self.name, tuple(sorted(self.values)))
        mean = self.tried[self.way].total / self.present if missing == "fill" else 0.0
        return Column(self.name, None, mean, self.way)

    def names_classes(self) -> bool:
        """Whether classes are whole numbers; they may be text too, but no other numbers."""
        self._check_values()
        if not self.is_text and self.fractions:
            raise InputError(
                f"column {self.name!r} holds numbers with fractions, which name no classes: name the column of "
                "classes with --label"
            )
        return not self.is_text and self.way.is_plain

    def _mistake(self) -> InputError:
        first = self.tried[self.way].first
        assert first is not None
        row, path, text = first
        more = f" (and {self.wrong - 1:,} more)" if self.wrong > 1 else ""
        return InputError(
            f"row {row} of {str(path)!r} has {text[:40]!r} in column {self.name!r}{more}, whose other values are "
            f"{self.way.describe()}: correct it, or leave the column out, --drop {self.name!r}"
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
                f"column {self.name!r} holds {what} of more than {MOST_VALUES} values, such as {some!r}: leave it "
                f"out, --drop {self.name!r}"
            )
