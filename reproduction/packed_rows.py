"""The rows in results/: one compressed file per experiment, with their SHA-256 in `manifest.json`.

NAME.jsonl.xz holds the rows byte for byte as a study wrote them. An experiment that runs again works in the study
folder NAME/ beside it, until `python -m reproduction --pack` writes the file again.
"""

from __future__ import annotations

import hashlib
import json
import lzma
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rwalk.atomic_files import write_atomically
from rwalk.errors import InputError
from rwalk.studies.rows import Row
from rwalk.studies.study_folder import Store

SUFFIX = ".jsonl.xz"
MANIFEST = "manifest.json"
OF_OTHERS = ("language-model",)  # rows of a benchmark, not of a study
PRESET = 9 | lzma.PRESET_EXTREME


def packed(results: Path) -> list[str]:
    """The names of the compressed experiments."""
    return sorted(file.name.removesuffix(SUFFIX) for file in results.glob(f"*{SUFFIX}"))


def names(results: Path) -> list[str]:
    """The names of all studies with rows, compressed or in a folder."""
    folders = {file.parent.name for file in results.glob("*/runs.jsonl")}
    return sorted(folders | set(packed(results)) - set(OF_OTHERS))


def text(results: Path, name: str) -> bytes:
    """The rows of a compressed experiment as they were written, one per line; refused if the manifest differs."""
    file = results / f"{name}{SUFFIX}"
    try:
        rows = lzma.decompress(file.read_bytes())
    except (OSError, lzma.LZMAError) as error:
        raise InputError(f"{file} cannot be read ({error}): restore it from the repository") from None
    if (listed := manifest(results).get(name)) is None or listed["sha256"] != hashlib.sha256(rows).hexdigest():
        raise InputError(f"{file} does not match {MANIFEST}: restore both from the repository")
    return rows


def manifest(results: Path) -> dict[str, Any]:
    """By name: the number of rows, and the SHA-256 of the uncompressed text."""
    file = results / MANIFEST
    return dict(json.loads(file.read_text())) if file.exists() else {}


@contextmanager
def opened(results: Path) -> Iterator[Path]:
    """A temporary folder that holds every experiment as a study folder, for programs that read those."""
    with TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for name in names(results):
            if (results / name).is_dir():
                (folder / name).symlink_to((results / name).resolve())
            else:
                (folder / name).mkdir()
                (folder / name / "runs.jsonl").write_bytes(text(results, name))
        yield folder


def rows_of(folder: Path) -> list[Row]:
    """The rows of the experiment that works in `folder`: those of its compressed file and of the folder."""
    rows: dict[str, Row] = {}
    if folder.with_name(f"{folder.name}{SUFFIX}").exists():
        with TemporaryDirectory() as temporary:
            Path(temporary, "runs.jsonl").write_bytes(text(folder.parent, folder.name))
            rows = {row.hash: row for row in Store(temporary).rows()}
    rows |= {row.hash: row for row in Store(folder).rows()}
    return list(rows.values())


def all_rows(results: Path) -> dict[str, list[Row]]:
    """The rows of every experiment, by its name."""
    return {name: rows_of(results / name) for name in names(results)}


def pack(results: Path) -> list[Path]:
    """Compress the study folders whose runs are all finished, list them in the manifest and remove the folders."""
    listed, written = manifest(results), []
    for file in sorted(results.glob("*/runs.jsonl")):
        store = Store(file.parent)
        name, rows = file.parent.name, store.rows()
        if set(store.study().hashes()) - {row.hash for row in rows}:
            continue  # it has unfinished runs
        written.append(write(results, name, file.read_bytes(), listed))
        shutil.rmtree(file.parent)
    return written


def write(results: Path, name: str, rows: bytes, listed: dict[str, Any]) -> Path:
    """Write one compressed file and the manifest."""
    listed[name] = {"rows": rows.count(b"\n"), "sha256": hashlib.sha256(rows).hexdigest()}
    path = results / f"{name}{SUFFIX}"
    write_atomically(path, lzma.compress(rows, preset=PRESET))
    write_atomically(results / MANIFEST, json.dumps(listed, indent=1, sort_keys=True) + "\n")
    return path
