"""The contents of official files: found or downloaded, and verified before anyone parses them.

What is verified is what a file holds: one that was compressed again is as good as the published one.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import tarfile
import zlib
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from rwalk.data.datasets.official import OFFICIAL, Official
from rwalk.data.datasets.optional import optional
from rwalk.errors import InputError
from rwalk.files import at_home

GZIP = b"\x1f\x8b"
LARGEST = 1 << 28  # bytes that a file may hold, unpacked; the largest official one holds 154 MB
Verified = TypeVar("Verified")
Verify = Callable[[bytes], Verified | None]  # what a file's bytes hold, if that is what was published


def contents(source: Official, data: Path | str | None, download: bool) -> dict[str, bytes]:
    """The verified contents of every file of the source, unpacked."""
    folders = _data_folders(source, data)
    found = {name: _found(name, partial(_content, source, name), folders) for name in source.files}
    if source.archive is not None and None in found.values():
        name, checksum = source.archive
        members = _obtained(source, name, checksum, partial(_members, source), folders, download)
        if missing := source.files.keys() - members.keys():
            raise InputError(f"{source.name}: its archive lacks {min(missing)}: delete it and download it again")
        return members
    return {
        name: _obtained(source, name, source.files[name], partial(_content, source, name), folders, download)
        if content is None
        else content
        for name, content in found.items()
    }


def _content(source: Official, name: str, packed: bytes) -> bytes | None:
    """The content of an official file, however it was compressed; None if it is not what was published."""
    as_published = _has(packed, source.files[name])
    if not name.endswith(".gz"):
        return packed if as_published else None
    content = _unzipped(packed)
    if content is None:
        return None
    same = hashlib.sha256(content).hexdigest() == source.contents.get(name)
    return content if as_published or same else None


def _unzipped(packed: bytes) -> bytes | None:
    """The content of a gzip file, or the file itself if it is not one; None if it is damaged or too large."""
    if not packed.startswith(GZIP):
        return packed
    try:
        with gzip.open(io.BytesIO(packed)) as file:
            content = file.read(LARGEST + 1)
    except (OSError, EOFError, zlib.error):
        return None
    return content if len(content) <= LARGEST else None


def _members(source: Official, packed: bytes) -> dict[str, bytes] | None:
    """The source's files from an archive; None if it is damaged, or neither the published one nor complete.

    It is read in memory, and nothing an archive says can lead to a write. What counts is what is in it: an archive
    that was packed again is as good.
    """
    members = {}
    try:
        with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
            for member in archive:
                name = Path(member.name).name
                if not member.isfile() or name not in source.files or member.size > LARGEST:
                    continue
                stream = archive.extractfile(member)
                content = _content(source, name, stream.read() if stream is not None else b"")
                if content is not None:
                    members[name] = content
    except (tarfile.TarError, OSError, EOFError, zlib.error):
        return None
    as_published = source.archive is not None and _has(packed, source.archive[1])
    return members if as_published or members.keys() == source.files.keys() else None


def _has(content: bytes, checksum: str) -> bool:
    kind, _, digits = checksum.rpartition(":")
    return hashlib.new(kind or "sha256", content, usedforsecurity=False).hexdigest() == digits


def _data_folders(source: Official, data: Path | str | None) -> list[Path]:
    """Where the files may be; their own folders first, because MNIST and Fashion-MNIST share file names."""
    given = data if data is not None else os.environ.get("RWALK_DATA")
    if not given:
        return []
    root = at_home(given)
    if not root.is_dir():
        raise InputError(f"there is no data folder {str(root)!r}: correct it, or leave it out to download")
    return [root / folder for folder in (*source.folders, ".")]


def _found(
    name: str, verify: Verify[Verified], folders: Sequence[Path], replaceable: bool = False
) -> Verified | None:
    """The verified content of a file in the first folder that has it.

    A damaged file is refused or, where a download can replace it, counts as absent.
    """
    unpacked = name.removesuffix(".gz")
    for path in (folder / each for folder in folders for each in dict.fromkeys((name, unpacked))):
        if not path.is_file():
            continue
        try:
            packed = path.read_bytes()
        except OSError as error:
            raise InputError(f"{str(path)!r} cannot be read ({error.strerror}): correct its permissions") from None
        verified = verify(packed)
        if verified is not None:
            return verified
        # An intact file of the other dataset is neither ours nor damaged.
        siblings = (official for official in OFFICIAL.values() if name in official.files)
        altered = path.name == name and all(_content(sibling, name, packed) is None for sibling in siblings)
        if altered and not replaceable:
            raise InputError(
                f"{str(path)!r} is truncated or altered (it does not hold what was published under its name): "
                "delete it or move it away, and download it again"
            )
    return None


def _obtained(
    source: Official, name: str, checksum: str, verify: Verify[Verified], folders: Sequence[Path], download: bool
) -> Verified:
    """The verified content of a file, downloaded into the cache if it is not found."""
    content = _found(name, verify, folders)
    if content is not None:
        return content
    cache = cache_folder() / source.name
    content = _found(name, verify, [cache], replaceable=download)
    if content is None and download:
        download_file(source, name, checksum, cache, f" is not in {str(folders[-1])!r}, and" if folders else "")
        content = _found(name, verify, [cache])
    if content is None:
        raise InputError(
            f"{source.name}: no {name} in the data folder or in {str(cache)!r}: allow the download, or put "
            "the official file into a folder and name that (data, or RWALK_DATA)"
        )
    return content


def cache_folder() -> Path:
    return Path(optional("pooch", "pooch").os_cache("rwalk"))


def download_file(source: Official, name: str, checksum: str, folder: Path, because: str) -> None:
    """Download the file into the folder from the first mirror whose copy has the right checksum."""
    pooch = optional("pooch", "pooch")
    # A console of our own: the caller may be drawing on another.
    console = optional("rich.console", "rich").Console(stderr=True)
    draw = optional("rich.progress", "rich").Progress
    if console.is_terminal:
        pooch.get_logger().setLevel("WARNING")  # the bar says it already
    failures = []
    for mirror in source.mirrors:
        with draw(console=console, transient=True, disable=not console.is_terminal) as progress:
            bar = _Bar(progress, progress.add_task(f"{source.name}: {name}", total=None))
            fetch = pooch.HTTPDownloader(progressbar=bar, chunk_size=1 << 16, timeout=30)
            try:
                pooch.retrieve(mirror + name, checksum, fname=name, path=folder, downloader=fetch)
                return
            except (OSError, ValueError) as error:
                failures.append(f"{mirror}: {_reason(error)}")
    raise InputError(
        f"{source.name}: {name}{because} could not be downloaded ({'; '.join(failures)}): try again later, or "
        "put the official file into a folder and name that (data, or RWALK_DATA)"
    )


def _reason(error: Exception) -> str:
    """Why a download failed, in two words: the libraries' own messages fill a screen."""
    response = getattr(error, "response", None)
    if response is not None:
        return f"HTTP {response.status_code}"
    return "wrong checksum" if isinstance(error, ValueError) else type(error).__name__


class _Bar:
    """The progress bar as pooch drives it, drawn by rich."""

    def __init__(self, progress: Any, task: Any) -> None:
        self._progress, self._task = progress, task

    @property
    def total(self) -> int | None:
        total: int | None = self._progress.tasks[0].total
        return total

    @total.setter
    def total(self, size: int) -> None:
        self._progress.update(self._task, total=size or None)  # 0: the server did not say

    def update(self, size: int) -> None:
        self._progress.advance(self._task, size)

    def reset(self) -> None:
        self._progress.update(self._task, completed=0)

    def close(self) -> None:
        """Closed by its context."""
