"""Pickles that can build arrays and plain values, and call nothing else."""

from __future__ import annotations

import codecs
import io
import pickle
from typing import Any, ClassVar

import numpy as np

from rwalk.errors import InputError


class ArraysOnly(pickle.Unpickler):
    """Builds lists, dicts, strings, numbers and numpy arrays; refuses to call anything else."""

    RECONSTRUCT = np.empty(0).__reduce__()[0]  # taken from numpy itself, because its module moved in numpy 2
    CALLABLE: ClassVar[dict[tuple[str, str], Any]] = {
        ("numpy.core.multiarray", "_reconstruct"): RECONSTRUCT,
        ("numpy._core.multiarray", "_reconstruct"): RECONSTRUCT,
        ("numpy", "ndarray"): np.ndarray,
        ("numpy", "dtype"): np.dtype,
        ("_codecs", "encode"): codecs.encode,
    }

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self.CALLABLE:
            raise pickle.UnpicklingError(f"it wants to call {module}.{name}")
        return self.CALLABLE[module, name]


def unpickled(content: bytes, file: str) -> dict[str, Any]:
    """The dict in a CIFAR file, pickled by Python 2."""
    try:
        record = ArraysOnly(io.BytesIO(content), encoding="latin1").load()
    except Exception as error:  # a damaged pickle may raise anything
        reason = str(error) if isinstance(error, pickle.UnpicklingError) else type(error).__name__
        raise InputError(f"{file} is not a CIFAR file ({reason!r}): delete it and download it again") from None
    if not isinstance(record, dict):
        raise InputError(f"{file} is not a CIFAR file (it does not hold a dict): delete it and download it again")
    return record
