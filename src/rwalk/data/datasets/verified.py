"""The contents of official files: found or downloaded, and verified before anyone parses them."""

from __future__ import annotations

import hashlib
import io
import os
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rwalk.data.datasets.official import OFFICIAL, Official
from rwalk.data.datasets.optional import optional
from rwalk.errors import InputError


def contents(source: Official, data: Path | str | None, download: bool) -> dict[str, bytes]:
    """The verified contents of every file of the source."""
    folders = _data_folders(source, data)
    found = {name: _found(name, md5, folders) for name, md5 in source.files.items()}
    if source.archive is not None and None in found.values():
        return _unpacked(source, _obtained(source, *source.archive, folders, download))
    return {
        name: _obtained(source, name, source.files[name], folders, download) if content is None else content
        for name, content in found.items()
    }


def _data_folders(source: Official, data: Path | str | None) -> list[Path]:
    """Where the files may be; their own folders first, because MNIST and Fashion-MNIST share file names."""
    given = data if data is not None else os.environ.get("RWALK_DATA")
    if not given:
        return []
    root = Path(given).expanduser()
    if not root.is_dir():
        raise InputError(f"there is no data folder {str(root)!r}: correct it, or leave it out to download")
    return [root / folder for folder in (*source.folders, ".")]


def _found(name: str, md5: str, folders: Sequence[Path], replaceable: bool = False) -> bytes | None:
    """The verified content of a file in the first folder that has it.

    A damaged file is refused or, where a download can replace it, counts as absent.
    """
    for folder in folders:
        path = folder / name
        if not path.is_file():
            continue
        try:
            content = path.read_bytes()
        except OSError as error:
            raise InputError(f"{str(path)!r} cannot be read ({error.strerror}): correct its permissions") from None
        actual = hashlib.md5(content, usedforsecurity=False).hexdigest()
        if actual == md5:
            return content
        # An intact file of the other dataset is neither ours nor damaged.
        sibling = any(actual == official.files.get(name) for official in OFFICIAL.values())
        if not sibling and not replaceable:
            raise InputError(
                f"{str(path)!r} is truncated or altered (its md5 is {actual}, the official one {md5}): "
                "delete it or move it away, and download it again"
            )
    return None


def _obtained(source: Official, name: str, md5: str, folders: Sequence[Path], download: bool) -> bytes:
    """The verified content of a file, downloaded into the cache if it is not found."""
    content = _found(name, md5, folders)
    if content is not None:
        return content
    cache = cache_folder() / source.name
    content = _found(name, md5, [cache], replaceable=download)
    if content is None and download:
        download_file(source, name, md5, cache, f" is not in {str(folders[-1])!r}, and" if folders else "")
        content = _found(name, md5, [cache])
    if content is None:
        raise InputError(
            f"{source.name}: no {name} in the data folder or in {str(cache)!r}: allow the download, or put "
            "the official file into a folder and name that (data, or RWALK_DATA)"
        )
    return content


def cache_folder() -> Path:
    return Path(optional("pooch", "pooch").os_cache("rwalk"))


def download_file(source: Official, name: str, md5: str, folder: Path, because: str) -> None:
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
                pooch.retrieve(mirror + name, f"md5:{md5}", fname=name, path=folder, downloader=fetch)
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


def _unpacked(source: Official, packed: bytes) -> dict[str, bytes]:
    """The source's files from its archive, read in memory: nothing in an archive can cause a write."""
    contents = {}
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        for member in archive:
            name = Path(member.name).name
            if not member.isfile() or name not in source.files:
                continue
            stream = archive.extractfile(member)
            content = stream.read() if stream is not None else b""
            if hashlib.md5(content, usedforsecurity=False).hexdigest() == source.files[name]:
                contents[name] = content
    if missing := source.files.keys() - contents.keys():
        raise InputError(f"{source.name}: its archive lacks {min(missing)}: delete it and download it again")
    return contents
