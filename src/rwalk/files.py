"""Paths as users write them, atomic file writes, and JSON from untrusted files."""

from __future__ import annotations

import json
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn


def at_home(path: str | Path) -> Path:
    """A path that may begin with ~; if nobody has that name, it is a file that does."""
    return Path(os.path.expanduser(path))


def write_atomically(path: Path, content: str | bytes) -> None:
    """All of it or nothing."""
    with replacing(path) as beside:
        beside.write_bytes(content.encode() if isinstance(content, str) else content)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """An empty temporary file to write to; afterwards it is flushed to disk and renamed to `path`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")  # on whatever machine
    try:
        beside.touch()
        yield beside
        with open(beside, "rb+") as file:
            os.fsync(file.fileno())
        os.replace(beside, path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
    _flush_folder(path.parent)


def _flush_folder(folder: Path) -> None:
    """A rename survives a power cut once the folder itself has been flushed."""
    with suppress(OSError):  # folders cannot be opened on Windows, which flushes them by itself
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def is_private(folder: Path) -> bool:
    """Whether a folder is this user's, and no other user can write to it or replace it."""
    if not hasattr(os, "getuid"):  # Windows, where the folders of a user are private
        return folder.is_dir()
    found, around = folder.lstat(), folder.parent.stat()
    others = stat.S_IWGRP | stat.S_IWOTH
    own = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & others
    replaceable = around.st_mode & stat.S_IWOTH and not around.st_mode & stat.S_ISVTX
    return own and not replaceable


def parse_json(text: str | bytes) -> Any:
    """JSON from an untrusted file: whatever is wrong with it is a ValueError."""
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not valid JSON")
