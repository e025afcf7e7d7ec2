"""Where results live: a study folder with `study.json` and one JSON row a run, written so that nothing is torn.

What is read back is checked before it is believed: a folder may have been copied, edited or damaged.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

import torch

from rwalk.errors import InputError

Row = dict[str, Any]
HEADS = ("single", "multi")


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
    _flush_folder(path.parent)


def _flush_folder(folder: Path) -> None:
    """A rename is safe from a power cut once the folder itself is on the disk."""
    with suppress(OSError):  # where folders cannot be opened (Windows), the system does it in its own time
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def parse_json(text: str | bytes) -> Any:
    """JSON from a file nobody vouches for: whatever is wrong with it is a ValueError."""
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


class Store:
    """A study folder.

    study.json    every setting, versions and seeds: what the study is
    runs.jsonl    one row a run, appended as runs finish, in the study's order once all have
    checkpoints/  what unfinished runs go on from, a folder each
    """

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)
        self.study_file = self.folder / "study.json"
        self.rows_file = self.folder / "runs.jsonl"
        self.checkpoints = self.folder / "checkpoints"

    @contextmanager
    def opened(self, study: Mapping[str, Any]) -> Iterator[Store]:
        """The folder, for this study and this process alone: made if it is not there."""
        with ExitStack() as held:
            with self._writing():
                self._check_is_ours(study)  # before anything is written into a folder that may be somebody's
                self.folder.mkdir(parents=True, exist_ok=True)
                held.enter_context(self._locked())
                self._check_is_ours(study)
                if not self.study_file.exists() or self.study()["hash"] != study["hash"]:
                    write_atomically(self.study_file, json.dumps(study, indent=1, default=list) + "\n")
            yield self  # what goes wrong here is not the folder's fault

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise InputError(
                f"cannot write to {self.folder}: {error.strerror or error}; what is finished there is kept"
            ) from error

    def _check_is_ours(self, study: Mapping[str, Any]) -> None:
        if self.folder.exists() and not self.folder.is_dir():
            raise InputError(f"{self.folder} is a file: choose another --out")
        if self.study_file.exists():
            there = self.study()
            if there["hash"] != study["hash"] and not _contains(study, there):
                raise InputError(
                    f"{self.folder} holds another study, which this one does not contain: choose another --out"
                )
            if there.get("data", study["data"]) != study["data"]:
                raise InputError(f"the data of {self.folder} has changed since it was begun: choose another --out")
        elif self.folder.is_dir() and not all(_is_litter(path) for path in self.folder.iterdir()):
            raise InputError(f"{self.folder} is not empty and holds no study: choose another --out")

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """The system gives the lock back when its holder ends, however it ends."""
        try:
            import fcntl
        except ImportError:  # Windows: no lock, no harm to a single process
            yield
            return
        with open(self.folder / ".lock", "a+") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise InputError(
                    f"another process is working on {self.folder}: wait for it, or choose another --out"
                ) from None
            yield

    def study(self) -> dict[str, Any]:
        """What is in study.json."""
        try:
            record = parse_json(self.study_file.read_bytes())
        except FileNotFoundError:
            raise InputError(f"{self.folder} holds no study: there is no study.json in it") from None
        except (OSError, ValueError) as error:
            raise InputError(
                f"{self.study_file} cannot be read ({error}): restore it or remove the folder"
            ) from None
        runs = record.get("runs") if isinstance(record, dict) else None
        if not isinstance(runs, list) or not all(isinstance(run, dict) for run in runs) or "hash" not in record:
            raise InputError(f"{self.study_file} is no study: restore it or remove the folder")
        return dict(record)

    def rows(self) -> list[Row]:
        """All rows; the run of a line torn by a crash is done again."""
        return read_rows(self.rows_file) if self.rows_file.exists() else []

    def add(self, *rows: Row) -> None:
        """Append rows in one piece, on the disk before this returns."""
        with self._writing(), open(self.rows_file, "a+b") as file:
            _end_last_line(file)
            file.write(b"".join(json.dumps(row).encode() + b"\n" for row in rows))
            file.flush()
            os.fsync(file.fileno())

    def settle(self, rows: Sequence[Row]) -> None:
        """The study is complete: its rows in this order, whatever the order they finished in, and nothing else."""
        content = b"".join(json.dumps(row).encode() + b"\n" for row in rows)
        with self._writing():
            if self.rows_file.read_bytes() != content:
                write_atomically(self.rows_file, content)
            shutil.rmtree(self.checkpoints, ignore_errors=True)
            for path in self.folder.iterdir():
                if _is_litter(path) and path.name != ".lock":
                    path.unlink(missing_ok=True)


def read_rows(path: Path) -> list[Row]:
    """The rows of a file, one JSON object a line; a last line torn by a crash is dropped."""
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from None
    rows = []
    for number, line in enumerate(lines, 1):
        if not line:
            continue
        try:
            row = parse_json(line)
            fault = _fault(row)
        except ValueError:
            if number == len(lines):
                break
            fault = "no JSON"
        if fault:
            raise InputError(f"{path}, line {number}, is no result of a run ({fault}): remove that line")
        rows.append(row)
    return rows


def _contains(study: Mapping[str, Any], smaller: Mapping[str, Any]) -> bool:
    """Whether a study only grows, by seeds or methods or λ's: what it is and where it runs are the same."""
    now, then = (json.loads(json.dumps(each, default=list)) for each in (study, smaller))
    same = all(now.get(key) == then.get(key) for key in ("reference", "environment"))
    return same and all(run in now["runs"] for run in then["runs"]) and bool(then["runs"])


def _is_litter(path: Path) -> bool:
    """The lock, or a temporary file of a process that was killed."""
    return path.name == ".lock" or path.name.startswith((".study.json.", ".runs.jsonl."))


def _fault(row: Any) -> str | None:
    """What is wrong with a row, as far as whoever reads it relies on."""
    if not isinstance(row, dict):
        return "no object"
    for key, kinds in (("hash", str), ("method", str), ("lam", (int, float)), ("seed", int), ("spec", dict)):
        if not isinstance(row.get(key), kinds):
            return f"no {key}"
    if not row["method"].isprintable():  # it is printed, and a terminal obeys what it is told
        return "no printable method"
    if not isinstance(row.get("stopped", 0), str | None):
        return "no stopped"
    accuracy = row.get("accuracy")
    if not isinstance(accuracy, dict):
        return "no accuracy"
    for head in HEADS:
        measures, matrix = row.get(head), accuracy.get(head)
        if not isinstance(measures, dict) or not all(_is_number(measures.get(name, "")) for name in "AFI"):
            return f"no measures of the {head} head"
        if not isinstance(matrix, list) or not all(_is_line(line, len(matrix)) for line in matrix):
            return f"no square accuracy matrix of the {head} head"
    return None


def _is_line(line: Any, length: int) -> bool:
    return isinstance(line, list) and len(line) == length and all(map(_is_number, line))


def _is_number(value: Any) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))


def _end_last_line(file: BinaryIO) -> None:
    """A line without an end is finished if it is whole, and dropped if a crash has torn it."""
    if not file.seek(0, os.SEEK_END):
        return
    file.seek(-1, os.SEEK_END)
    if file.read(1) == b"\n":
        return
    file.seek(0)
    content = file.read()
    begin = content.rfind(b"\n") + 1
    try:
        parse_json(content[begin:])
        file.write(b"\n")
    except ValueError:
        file.truncate(begin)


@cache
def environment(device: str) -> dict[str, str]:
    """What is needed to say why two studies differ."""
    versions = {}
    for package in ("rwalk", "torch", "numpy", "scikit-learn"):
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    found = {
        "device": device,
        "processor": _processor(),
        "instructions": torch.backends.cpu.get_cpu_capability(),  # decides which kernels round how
        "machine": platform.machine(),
        "system": platform.system(),
        "python": platform.python_version(),
        **versions,
    }
    if torch.device(device).type == "cpu":  # a compiled step rounds otherwise than an eager one
        found["compiler"] = Path(shutil.which(os.environ.get("CXX", "g++")) or "none").name
    if torch.device(device).type == "cuda":
        found |= {"gpu": torch.cuda.get_device_name(device), "cuda": str(torch.version.cuda)}
    return found


def _processor() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor()
