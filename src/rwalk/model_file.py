"""Learned models in one file: safetensors, with a JSON record and a checksum in its metadata.

Classifiers and guards are written here, and checkpoints share the checks of tensors in files. Nothing in such a
file is code or is unpickled. The checksum detects damage; it is not a signature, so readers still check everything
before they use it.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from rwalk.atomic_files import folder_beside, parse_json, replacing, writing
from rwalk.errors import InputError, first_line
from rwalk.escaping import shown

DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "BF16": torch.bfloat16,
    "F16": torch.float16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}


NOTE = "note"  # the metadata's name for what others than the writer add


class TensorForm(NamedTuple):
    """Type and shape of a tensor, from a file's header."""

    dtype: torch.dtype | None
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return f"{str(self.dtype).removeprefix('torch.')} {list(self.shape)}"


def forms(file: Any) -> dict[str, TensorForm]:
    """The forms of all tensors of an open file, from its header, which safetensors has checked."""
    slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118 - no mapping
    return {name: TensorForm(DTYPES.get(s.get_dtype()), tuple(s.get_shape())) for name, s in slices.items()}


def write(
    path: Path,
    kind: str,
    record: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    note: Mapping[str, Any] | None = None,
) -> None:
    """Write a file completely or not at all; it is on the disk when this returns.

    Args:
        path: The file.
        kind: Its format.
        record: Everything but tensors.
        tensors: The tensors by name.
        note: A second record, for readers that look for one.
    """
    about = metadata(kind, json.dumps(record), tensors)
    if note is not None:
        text = json.dumps(note)
        about |= {NOTE: text, f"{NOTE}.sha256": _checksum(text, {})}
    _save(path, tensors, about)


def _save(path: Path, tensors: Mapping[str, Tensor], about: dict[str, str]) -> None:
    with writing(path), replacing(path) as beside:
        rights = beside.stat().st_mode  # safetensors makes a file that only its owner may read
        with folder_beside(beside) as folder:  # where safetensors leaves its own file if it is killed
            try:
                save_file(dict(tensors), folder / path.name, about)
            except SafetensorError as error:
                raise InputError(f"cannot write {path}: {first_line(error)}") from error
            (folder / path.name).chmod(rights)
            os.replace(folder / path.name, beside)


def metadata(kind: str, record: str, tensors: Mapping[str, Tensor]) -> dict[str, str]:
    return {"format": kind, "record": record, "sha256": _checksum(record, tensors)}


@contextmanager
def opened(path: Path) -> Iterator[Any]:
    """A safetensors file, open; safetensors itself takes no path that is not UTF-8."""
    try:
        str(path).encode()
    except UnicodeEncodeError:
        with open(path, "rb") as file, safe_open(f"/dev/fd/{file.fileno()}", "pt") as found:
            yield found
    else:
        with safe_open(path, "pt") as found:
            yield found


def read(path: Path) -> tuple[dict[str, str], dict[str, Tensor]]:
    """The metadata and the tensors of a file, unchecked."""
    if not path.is_file():
        raise InputError("there is no such file: give the path that `save` was given")
    try:
        with opened(path) as file:
            strange = [name for name, form in forms(file).items() if form.dtype is None]
            expect(not strange, "the type of a tensor")
            return file.metadata() or {}, {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except InputError:
        raise
    except (OSError, RuntimeError, ValueError, SafetensorError) as error:
        raise _unreadable(path, error) from error


def note_of(path: Path) -> dict[str, Any] | None:
    """The note in a file, if there is one."""
    found = header(path)
    if (text := found.get(NOTE)) is None:
        return None
    expect(found.get(f"{NOTE}.sha256") == _checksum(text, {}), "its note's checksum")
    return parsed(text)


def header(path: Path) -> dict[str, str]:
    """The metadata of a file alone."""
    if not path.is_file():
        raise InputError("there is no such file: correct the path")
    try:
        with opened(path) as file:
            return file.metadata() or {}
    except (OSError, RuntimeError, ValueError, SafetensorError) as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: Exception) -> InputError:
    """Damage, or another kind of file altogether: safetensors begin with the length of a JSON object."""
    with suppress(OSError), open(path, "rb") as file:
        begin = file.read(9)
        if begin and begin[8:] != b"{":
            return InputError("it is no safetensors file: give the path that `save` was given")
    return InputError(f"it is damaged or no safetensors file ({shown(first_line(error), 80)}): use another copy")


def unsealed(metadata: Mapping[str, str], tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """The record, if neither it nor the tensors have changed since they were written."""
    text = metadata.get("record", "")
    expect(metadata.get("sha256") == _checksum(text, tensors), "its checksum")
    return parsed(text)


def parsed(text: str) -> dict[str, Any]:
    try:
        record = parse_json(text)
    except ValueError as error:
        raise InputError(
            f"it is damaged, its record is no JSON ({shown(first_line(error), 80)}): use another copy"
        ) from error
    expect(isinstance(record, dict), "its record")
    return dict(record)


def expect(holds: bool, what: str) -> None:
    """Refuse a file whose `what` cannot have been written by rwalk."""
    if not holds:
        raise InputError(f"it is damaged, {what} cannot be right: use another copy")


def is_whole(number: Any, least: int, below: int = 2**63) -> bool:
    """Whether this is an integer in a range, and not a bool."""
    return type(number) is int and least <= number < below


def _checksum(record: str, tensors: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256(record.encode())
    for name in sorted(tensors):
        digest.update(name.encode())
        digest.update(tensors[name].contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()
