"""The user's own files: how they are to be read, and arrays in .npz files."""

from __future__ import annotations

import importlib
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rwalk.data.arrays import whole
from rwalk.data.streams import Dataset
from rwalk.errors import InputError, unknown
from rwalk.fields import option

MISSING = ("refuse", "fill", "drop")
LARGEST_SIDE = 4096
OF_TABLES = ("label", "task_column", "drop", "missing")
OF_IMAGES = ("size",)
# An archive that would unpack to more than this many times its size, and to more than this many bytes, is refused.
LARGEST_RATIO = 100
SUSPICIOUS = 1 << 28


@dataclass(frozen=True)
class Reading:
    """How a file or folder of the user is read.

    Args:
        label: The table's column of classes; by default one called label, target or class, else the last.
        task_column: The table's column of tasks: in which one an example arrives.
        drop: Columns of the table to leave out.
        missing: What happens to a row of a table without a value: "refuse", "fill" (with the column's mean; text
            gets none of its values) or "drop".
        size: Images are resized and cropped to squares of this many pixels.
    """

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
        if self.size is not None and whole(self.size, "size", least=1) > LARGEST_SIDE:
            raise InputError(f"size is {self.size}: give at most {LARGEST_SIDE} pixels")

    def only(self, allowed: tuple[str, ...], name: str, kind: str) -> None:
        """Refuse settings that have no meaning for this kind of data."""
        for each in fields(self):
            if each.name not in allowed and getattr(self, each.name) != each.default:
                option = each.name.replace("_", "-")
                raise InputError(f"{name!r} is {kind}, of which --{option} says nothing: leave it out")


def optional(module: str, package: str) -> Any:
    """Import a module that may not be installed."""
    try:
        return importlib.import_module(module)
    except ImportError:
        raise InputError(f"this needs {package}: pip install {package}") from None


def check_unpacked(path: Path, unpacked: int, packed: int, harmless: int, instead: str) -> None:
    """Refuse a file that unpacks to more bytes than is `harmless`, and out of proportion to its size."""
    if unpacked > harmless and unpacked > LARGEST_RATIO * packed:
        raise InputError(
            f"{str(path)!r} would unpack to {unpacked / 1e9:.1f} GB or more, over {LARGEST_RATIO} times its size: "
            f"if you trust it, {instead}"
        )


def read_npz(path: Path, seed: int) -> Dataset:
    """The dataset of arrays x and y, with or without x_test and y_test."""
    arrays = arrays_of(path, ("x", "y"), ("x_test", "y_test"))
    tests = arrays.get("x_test"), arrays.get("y_test")
    return Dataset.from_arrays(arrays["x"], arrays["y"], *tests, name=path.stem, seed=seed)


def arrays_of(path: Path, needed: Sequence[str], wanted: Sequence[str] = ()) -> dict[str, NDArray[Any]]:
    """The needed arrays of an .npz file, and the wanted ones that it has."""
    if not path.is_file():
        raise InputError(f"there is no file {str(path)!r}: correct the path")
    try:
        with zipfile.ZipFile(path) as archive:  # which does not unpack beyond the stated sizes
            unpacked = sum(member.file_size for member in archive.infolist())
        check_unpacked(
            path, unpacked, path.stat().st_size, SUSPICIOUS, "save it again with np.savez, uncompressed"
        )
        with np.load(path, allow_pickle=False) as archive:
            arrays = {key: archive[key] for key in (*needed, *wanted) if key in archive}
    except InputError:
        raise
    except Exception as error:  # a damaged archive may raise anything
        reason = " ".join(str(error).split()) or type(error).__name__
        raise InputError(
            f"{str(path)!r} cannot be read ({reason}): save it again with np.savez, numbers and strings only"
        ) from None
    if missing := set(needed) - arrays.keys():
        raise InputError(f"{str(path)!r} has no array {min(missing)!r}: save it with np.savez(path, x=..., y=...)")
    for name, array in arrays.items():
        _check_array(path, name, array)
    return arrays


def _check_array(path: Path, name: str, array: NDArray[Any]) -> None:
    """Inputs are numbers, labels are numbers or text; both have one row per example."""
    inputs = name.startswith("x")
    if array.dtype.kind not in ("biuf" if inputs else "biufUS"):
        want = "numbers" if inputs else "whole numbers or strings"
        kind = "fields of a record" if array.dtype.names else f"of type {array.dtype}"
        raise InputError(f"array {name!r} of {str(path)!r} is {kind}: save {want}")
    if (array.ndim < 2 or 0 in array.shape[1:]) if inputs else array.ndim != 1:
        want = "[examples, …]" if inputs else "[examples]"
        raise InputError(f"array {name!r} of {str(path)!r} has the shape {list(array.shape)}: save {want}")
