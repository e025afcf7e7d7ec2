"""How the user's own files are to be read."""

from __future__ import annotations

from dataclasses import dataclass, fields

from rwalk.data.checks import whole
from rwalk.errors import InputError, unknown

MISSING = ("refuse", "fill", "drop")
LARGEST_SIDE = 4096
OF_TABLES = ("label", "task_column", "drop", "missing")
OF_IMAGES = ("size",)


@dataclass(frozen=True)
class Reading:
    """What a file or folder does not say about itself.

    label        of a table: the column of classes; None for one called label, target or class, else the last
    task_column  of a table: the column that says in which task an example arrives
    drop         of a table: columns to leave out
    missing      of a table: what becomes of a row without a value: "refuse" it, "fill" it with the column's mean
                 (a column of text with none of its values), or "drop" it
    size         of images: resize and crop them to squares of this many pixels
    """

    label: str | None = None
    task_column: str | None = None
    drop: tuple[str, ...] = ()
    missing: str = "refuse"
    size: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "drop", tuple(self.drop))
        if self.missing not in MISSING:
            raise unknown("way with missing values", str(self.missing), MISSING)
        if self.size is not None and whole(self.size, "size", least=1) > LARGEST_SIDE:
            raise InputError(f"size is {self.size}: give at most {LARGEST_SIDE} pixels")

    def only(self, allowed: tuple[str, ...], name: str, kind: str) -> None:
        """Refuse what means nothing for this kind of data."""
        for each in fields(self):
            if each.name not in allowed and getattr(self, each.name) != each.default:
                option = each.name.replace("_", "-")
                raise InputError(f"{name!r} is {kind}, of which --{option} says nothing: leave it out")
