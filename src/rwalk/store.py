"""Where results live: a study folder with `study.json` and one JSON row a run, written so that nothing is torn."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from rwalk.errors import InputError

Row = dict[str, Any]


def write_atomically(path: Path, content: str | bytes) -> None:
    """All of it or nothing: a temporary file beside it, flushed to the disk, then renamed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(beside, "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise


class Store:
    """A study folder.

    study.json   every setting, versions and seeds: what the study is
    runs.jsonl   one row a run, appended as runs finish
    """

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)
        self.study_file = self.folder / "study.json"
        self.rows_file = self.folder / "runs.jsonl"

    @contextmanager
    def opened(self, study: Mapping[str, Any]) -> Iterator[Store]:
        """The folder, for this study alone: made if it is not there, refused if another study is in it."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            if self.study_file.exists():
                if self.study().get("hash") != study["hash"]:
                    raise InputError(f"{self.folder} holds another study: choose another --out, or remove it")
            elif any(path.name != ".lock" for path in self.folder.iterdir()):
                raise InputError(f"{self.folder} is not empty and holds no study: choose another --out")
            with self._locked():
                if not self.study_file.exists():
                    write_atomically(self.study_file, json.dumps(study, indent=1, default=list) + "\n")
                yield self
        except OSError as error:
            raise InputError(f"cannot write to {self.folder}: {error.strerror or error}") from error

    @contextmanager
    def _locked(self) -> Iterator[None]:
        try:
            import fcntl
        except ImportError:  # Windows: no lock, no harm to a single process
            yield
            return
        with open(self.folder / ".lock", "w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise InputError(
                    f"another process is working on {self.folder}: wait for it, or choose --out"
                ) from None
            yield

    def study(self) -> dict[str, Any]:
        """What is in study.json."""
        try:
            record = json.loads(self.study_file.read_text())
        except FileNotFoundError:
            raise InputError(f"{self.folder} holds no study: there is no study.json in it") from None
        except (OSError, ValueError) as error:
            raise InputError(
                f"{self.study_file} cannot be read ({error}): restore it or remove the folder"
            ) from None
        if not isinstance(record, dict):
            raise InputError(f"{self.study_file} is no study: it must hold one JSON object")
        return record

    def rows(self) -> list[Row]:
        """All rows; a last line torn by a crash is dropped, and its run is done again."""
        return read_rows(self.rows_file) if self.rows_file.exists() else []

    def add(self, row: Row) -> None:
        """Append a row, on the disk before this returns."""
        with open(self.rows_file, "a+b") as file:
            if file.tell() and not _ends_with_newline(file):
                _drop_torn_line(file)
            file.write(json.dumps(row).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())


def read_rows(path: Path) -> list[Row]:
    """One JSON row a line; the last line may be torn, any other must be whole."""
    lines = path.read_text().split("\n")
    rows = []
    for number, line in enumerate(lines, 1):
        if not line:
            continue
        try:
            rows.append(json.loads(line))
        except ValueError:
            if number < len(lines):
                raise InputError(f"{path}, line {number}, is no JSON: remove that line") from None
    return rows


def _ends_with_newline(file: Any) -> bool:
    file.seek(-1, os.SEEK_END)
    return bool(file.read(1) == b"\n")


def _drop_torn_line(file: Any) -> None:
    file.seek(0)
    content = file.read()
    file.truncate(content.rfind(b"\n") + 1)


def environment(device: str) -> dict[str, str]:
    """What is needed to say why two studies differ."""
    versions = {}
    for package in ("rwalk", "torch", "numpy", "scikit-learn"):
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return {"python": platform.python_version(), "machine": platform.machine(), "system": platform.system(),
            "device": device, **versions}  # fmt: skip
