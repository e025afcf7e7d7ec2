"""Paths as users write them, atomic file writes, and JSON from untrusted files, with or without a checksum."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import secrets
import shutil
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import Any, NoReturn

from rwalk.errors import InputError

LEFT = 3600.0  # seconds without a write after which a temporary file counts as left by a killed process
LOOKED_AT = 1000  # names of a folder that are searched for such files
_SEAL = re.compile(rb',\s*"sha256": "([0-9a-f]{64})"\s*\}\s*\Z')


def at_home(path: str | Path) -> Path:
    """Expand `~`; leave unknown user names alone."""
    return Path(os.path.expanduser(path))


def write_atomically(path: Path, content: str | bytes) -> None:
    """All of it or nothing."""
    with replacing(path) as beside:
        beside.write_bytes(content.encode() if isinstance(content, str) else content)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """An empty temporary file to write to; afterwards it is flushed to disk and renamed to `path`.

    The new file has the permissions of the old one. A link stays, and leads to the new file; a device or a pipe is
    refused, because a rename would replace it.
    """
    path = Path(os.path.realpath(path))
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise OSError(errno.EINVAL, "it is a device or a pipe, not a file", str(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")  # on whatever machine
    try:
        beside.touch()
        _clear(path, beside)
        yield beside
        with open(beside, "rb+") as file:
            os.fsync(file.fileno())
        with suppress(OSError):  # there is none yet, or its file system has no permissions
            shutil.copymode(path, beside)
        os.replace(beside, path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
    _flush_folder(path.parent)


@contextmanager
def writing(what: object, cure: str = "") -> Iterator[None]:
    """A file that cannot be written is one line: which, why, and what to do."""
    try:
        yield
    except OSError as error:
        raise InputError(f"cannot write {what}: {error.strerror or error}{cure}") from error


@contextmanager
def folder_beside(beside: Path) -> Iterator[Path]:
    """A folder for another library's temporary files; the next writer removes it if this process is killed."""
    folder = beside.with_name(f"{beside.name}.d")
    folder.mkdir()
    try:
        yield folder
    finally:
        try:
            folder.rmdir()  # which opens nothing, so that it works without a free file handle too
        except OSError:
            shutil.rmtree(folder, ignore_errors=True)


def _clear(path: Path, beside: Path) -> None:
    """Remove temporary files that earlier writers of this path have left, by the file system's own clock."""
    ours = re.compile(rf"\.{re.escape(path.name)}\.\d+\.[0-9a-f]{{8}}(\.d)?")
    with suppress(OSError):
        now = beside.stat().st_mtime
        with os.scandir(path.parent) as entries:
            for entry in islice(entries, LOOKED_AT):
                if ours.fullmatch(entry.name) and now - entry.stat(follow_symlinks=False).st_mtime > LEFT:
                    shutil.rmtree(entry) if entry.is_dir(follow_symlinks=False) else os.unlink(entry)


def _flush_folder(folder: Path) -> None:
    """A rename survives a power cut once the folder itself has been flushed."""
    with suppress(OSError):  # folders cannot be opened on Windows, which flushes them
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
    """JSON from an untrusted file; raises ValueError for any other content."""
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not valid JSON")


class WrongChecksum(ValueError):
    """A file was altered after it was written."""


def with_checksum(record: Mapping[str, Any], indent: int | None = None) -> str:
    """JSON whose last entry is a checksum of all bytes before it; `checked_json` reads it."""
    text = json.dumps(record, indent=indent, default=list)
    body = text.removesuffix("}").rstrip()
    before, after = (" ", "") if indent is None else ("\n" + " " * indent, "\n")
    digest = hashlib.sha256(body.encode()).hexdigest()
    return f'{body},{before}"sha256": "{digest}"{after}}}'


def checked_json(content: bytes) -> tuple[Any, bool]:
    """A JSON value from an untrusted file, without its checksum; and whether it had one.

    Raises:
        ValueError: If it is not valid JSON; WrongChecksum if it was altered.
    """
    content = content.replace(b"\r\n", b"\n")  # as some tools that copy files write the ends of lines
    record = parse_json(content)
    if not isinstance(record, dict) or "sha256" not in record:
        return record, False
    seal = _SEAL.search(content)
    if seal is None or hashlib.sha256(content[: seal.start()]).hexdigest() != seal[1].decode():
        raise WrongChecksum("its checksum is wrong")
    del record["sha256"]
    return record, True
