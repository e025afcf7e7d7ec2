"""What travels to another machine once: data, whose memory all processes there share, and the user's own code."""

from __future__ import annotations

import atexit
import io
import pickle
import shutil
import sys
import tempfile
import warnings
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rwalk.errors import InputError
from rwalk.studies import sources

MOST_CODE = 100 << 20  # bytes; who has more in a package has data in it


class Parcel(NamedTuple):
    """A value as bytes, its tensors as arrays, and the files of the code it needs, by their relative paths."""

    code: dict[str, bytes]
    content: bytes
    arrays: list[NDArray[np.uint8]]


def packed(value: Any, code: Sequence[str] = ()) -> Parcel:
    """A value and the user's own code, named `package.module:name`, that will be imported where it arrives."""
    buffers: list[pickle.PickleBuffer] = []
    file = io.BytesIO()
    _Pickler(file, protocol=5, buffer_callback=buffers.append).dump(value)
    arrays = [np.frombuffer(buffer.raw(), np.uint8) for buffer in buffers]
    return Parcel(_files_of(code), file.getvalue(), arrays)


def unpacked(parcel: Parcel) -> Any:
    if parcel.code:
        _make_importable(parcel.code)
    return pickle.loads(parcel.content, buffers=parcel.arrays)


class _Pickler(pickle.Pickler):
    """Tensors by their memory, which is then not copied."""

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, Tensor) and value.device.type == "cpu" and not value.requires_grad:
            with suppress(TypeError):  # a type that NumPy lacks
                return _tensor, (value.contiguous().numpy(),)
        return NotImplemented


def _tensor(array: NDArray[Any]) -> Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the memory is read-only, and nothing writes into data
        return torch.from_numpy(array)


def _files_of(code: Sequence[str]) -> dict[str, bytes]:
    """Modules that are one file, and whole packages: they may have files beside their source."""
    files: dict[str, bytes] = {}
    for top in sources.carried(name.partition(":")[0] for name in code):
        inside = top.rglob("*") if top.is_dir() else [top]
        for path in inside:
            if path.is_file() and "__pycache__" not in path.parts:
                if sum(map(len, files.values())) + path.stat().st_size > MOST_CODE:
                    raise InputError(f"{top} is too large to send to every machine: install it on them")
                files[str(path.relative_to(top.parent))] = path.read_bytes()
    return files


def _make_importable(files: dict[str, bytes]) -> None:
    folder = Path(tempfile.mkdtemp(prefix="rwalk-code-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    brought = {Path(name).parts[0].removesuffix(".py") for name in files}
    for name in [each for each in sys.modules if each.partition(".")[0] in brought]:
        del sys.modules[name]  # an earlier study of the same program brought an older version
    sys.path.insert(0, str(folder))
