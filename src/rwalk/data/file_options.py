"""How the user's own files are to be read: a pure record."""

from __future__ import annotations

from dataclasses import dataclass, fields
from numbers import Integral

from rwalk.errors import InputError, unknown
from rwalk.option_fields import documented, option

MISSING = ("refuse", "fill", "drop")
LARGEST_SIDE = 4096
OF_TABLES = ("label", "task_column", "drop", "missing")
OF_IMAGES = ("size",)


@documented
@dataclass(frozen=True)
class Reading:
    """How a file or folder of the user is read."""

    label: str | None = option(
        None, "of a table: the column of classes (default: label, target or class, or the last)"
    )
    task_column: str | None = option(None, "of a table: the column that says in which task an example arrives")
    drop: tuple[str, ...] = option((), "of a table: a column to leave out; repeatable")
    missing: str = option(
        "refuse", "of a table, missing values: refuse, fill (with the column's mean), or drop the row"
    )
    size: int | None = option(None, "of images: resize and crop to squares of N pixels")

    def __post_init__(self) -> None:
        object.__setattr__(self, "drop", tuple(self.drop))
        if self.missing not in MISSING:
            raise unknown("way with missing values", str(self.missing), MISSING)
        if self.size is None:
            return
        if not isinstance(self.size, Integral) or self.size < 1:
            raise InputError(f"size is {self.size!r}: give a whole number, 1 or larger")
        if self.size > LARGEST_SIDE:
            raise InputError(f"size is {self.size}: give at most {LARGEST_SIDE} pixels")

    def only(self, allowed: tuple[str, ...], name: str, kind: str) -> None:
        """Refuse settings that have no meaning for this kind of data."""
        for each in fields(self):
            if each.name not in allowed and getattr(self, each.name) != each.default:
                option = each.name.replace("_", "-")
                raise InputError(f"{name!r} is {kind}, of which --{option} says nothing: leave it out")
