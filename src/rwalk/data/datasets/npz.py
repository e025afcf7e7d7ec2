"""Arrays in .npz files, and what reading any file of the user needs."""

from __future__ import annotations

import importlib
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
            if strange := [key for key, array in arrays.items() if not isinstance(array, np.ndarray)]:
                raise ValueError(f"{strange[0]!r} is not an array")  # NumPy returns its bytes
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
