"""Files of arrays: x and y, with or without x_test and y_test."""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rwalk.data.streams import Dataset
from rwalk.errors import InputError

# An archive that would unpack to more than this many times its size, and to more than this many bytes, is refused.
LARGEST_RATIO = 100
SUSPICIOUS = 1 << 28


def read_npz(path: Path, seed: int) -> Dataset:
    arrays = arrays_of(path, ("x", "y"), ("x_test", "y_test"))
    x, y, x_test, y_test = (arrays.get(name) for name in ("x", "y", "x_test", "y_test"))
    assert x is not None and y is not None
    return Dataset.from_arrays(x, y, x_test, y_test, name=path.stem, seed=seed)


def arrays_of(path: Path, needed: Sequence[str], wanted: Sequence[str] = ()) -> dict[str, NDArray[Any]]:
    """The arrays of these names: all that are needed, and those wanted if they exist."""
    if not path.is_file():
        raise InputError(f"there is no file {str(path)!r}: correct the path")
    try:
        _check_unpacked_size(path)
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


def _check_unpacked_size(path: Path) -> None:
    """Refuse a small archive that would fill the memory; zipfile does not unpack beyond the stated sizes."""
    with zipfile.ZipFile(path) as archive:
        unpacked = sum(member.file_size for member in archive.infolist())
    check_unpacked(path, unpacked, path.stat().st_size, SUSPICIOUS, "save it again with np.savez, uncompressed")


def check_unpacked(path: Path, unpacked: int, packed: int, harmless: int, instead: str) -> None:
    """Refuse a file that unpacks to so many bytes or more, over `harmless` and out of proportion to its size."""
    if unpacked > harmless and unpacked > LARGEST_RATIO * packed:
        raise InputError(
            f"{str(path)!r} would unpack to {unpacked / 1e9:.1f} GB or more, over {LARGEST_RATIO} times its size: "
            f"if you trust it, {instead}"
        )
