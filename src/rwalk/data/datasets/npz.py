"""Files of arrays: x and y, with or without x_test and y_test."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np

from rwalk.data.streams import Dataset
from rwalk.errors import InputError

# An archive that would unpack to more than this many times its size, and to more than this many bytes, is refused.
LARGEST_RATIO = 100
SUSPICIOUS = 1 << 28


def read_npz(path: Path, seed: int) -> Dataset:
    if not path.is_file():
        raise InputError(f"there is no file {str(path)!r}: correct the path")
    try:
        _check_unpacked_size(path)
        with np.load(path, allow_pickle=False) as archive:
            keys = [key for key in ("x", "y", "x_test", "y_test") if key in archive]
            arrays = {key: archive[key] for key in keys}
    except InputError:
        raise
    except Exception as error:  # a damaged archive may raise anything
        reason = " ".join(str(error).split()) or type(error).__name__
        raise InputError(
            f"{str(path)!r} cannot be read ({reason}): save it again with np.savez, numbers and strings only"
        ) from None
    if missing := {"x", "y"} - arrays.keys():
        raise InputError(f"{str(path)!r} has no array {min(missing)!r}: save it with np.savez(path, x=..., y=...)")
    return Dataset.from_arrays(**arrays, name=path.stem, seed=seed)


def _check_unpacked_size(path: Path) -> None:
    """Refuse a small archive that would fill the memory; zipfile does not unpack beyond the stated sizes."""
    with zipfile.ZipFile(path) as archive:
        unpacked = sum(member.file_size for member in archive.infolist())
    if unpacked > SUSPICIOUS and unpacked > LARGEST_RATIO * path.stat().st_size:
        raise InputError(
            f"{str(path)!r} would unpack to {unpacked / 1e9:.1f} GB, over {LARGEST_RATIO} times its size: if you "
            "trust it, save it again with np.savez, uncompressed"
        )
