"""Where results live: a study folder with `study.json` and one JSON row per run, written atomically.

Whatever is read back is checked first: a folder may have been copied, edited or damaged.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from rwalk.errors import InputError
from rwalk.files import parse_json, write_atomically
from rwalk.metrics import HEADS
from rwalk.studies.specs import RunSpec, content_hash

Row = dict[str, Any]
MACHINE = ("device", "gpu", "processor", "instructions", "torch")  # what decides how floating point rounds
# Of study.json and of rows. 1, which files do not name: a hash covers all settings; rows have no provenance. 2: a
# hash covers what differs from the defaults, and rows record what made them.
SCHEMA = 2


class Store:
    """A study folder.

    study.json    every setting, versions and seeds: what the study is
    runs.jsonl    one row per run, appended as runs finish; sorted into the study's order once all have
    checkpoints/  what unfinished runs resume from, one folder each
    """

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)
        self.study_file = self.folder / "study.json"
        self.rows_file = self.folder / "runs.jsonl"
        self.checkpoints = self.folder / "checkpoints"

    @contextmanager
    def opened(self, study: Mapping[str, Any]) -> Iterator[Store]:
        """Hold the folder for this study and this process alone; it is created if it does not exist."""
        with ExitStack() as held:
            with self._writing():
                self._check_is_ours(study)  # before anything is written into a folder that may be somebody's
                self.folder.mkdir(parents=True, exist_ok=True)
                held.enter_context(self._locked())
                self._check_is_ours(study)
                if not self.study_file.exists() or self.study()["hash"] != study["hash"]:
                    self._complete_rows()
                    write_atomically(self.study_file, json.dumps(study, indent=1, default=list) + "\n")
            yield self  # what goes wrong here is not the folder's fault

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            rest = "finished runs are kept" if self.rows_file.exists() else "choose another --out"
            raise InputError(f"cannot write to {self.folder}: {error.strerror or error}; {rest}") from error

    def _check_is_ours(self, study: Mapping[str, Any]) -> None:
        if self.folder.exists() and not self.folder.is_dir():
            raise InputError(f"{self.folder} is a file: choose another --out")
        # Looked at before study.json is: who joins at the same moment writes that first.
        occupied = self.folder.is_dir() and not all(_is_litter(path) for path in self.folder.iterdir())
        if self.study_file.exists():
            there = self.study()
            if there["hash"] != study["hash"] and not _contains(study, there):
                raise InputError(
                    f"{self.folder} holds another study, which is not part of this one: choose another --out"
                )
            if not all(each in study["data"] for each in there.get("data", [])):
                raise InputError(f"the data of {self.folder} has changed since it was begun: choose another --out")
        elif occupied:
            raise InputError(f"{self.folder} is not empty and holds no study: choose another --out")

    def set_aside(self, study: Mapping[str, Any]) -> Path | None:
        """Make room for a study where the folder holds another one; the name which that has from now on."""
        there = self.study() if self.study_file.exists() else study
        if there["hash"] == study["hash"] or _contains(study, there):
            return None
        with self._writing():
            with self._locked():
                pass  # nobody is working on it
            return self.folder.rename(self.folder.with_name(f"{self.folder.name}-{there['hash'][:8]}"))

    @contextmanager
    def _locked(self, patience: float = 0.0) -> Iterator[None]:
        """The system releases the lock when its holder ends, however it ends."""
        from filelock import FileLock, Timeout

        lock = FileLock(self.folder / ".lock", thread_local=False)  # whichever thread gives it back
        try:
            lock.acquire(timeout=patience)
        except Timeout:
            raise InputError(
                f"another process is working on {self.folder}: wait for it, or choose another --out"
            ) from None
        try:
            yield
        finally:
            lock.release()

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
            raise InputError(f"{self.study_file} is not a study: restore it or remove the folder")
        if not isinstance(record.get("data", []), list):
            raise InputError(f"{self.study_file} does not say which data it is of: restore it")
        if isinstance(record.get("schema", 1), int) and record.get("schema", 1) > SCHEMA:
            raise InputError(f"{self.folder} was written by a newer version of rwalk: use that one")
        return dict(record)

    def rows(self) -> list[Row]:
        """The newest row of each run; a run whose line was truncated by a crash is done again.

        Rows without provenance are assigned the machine that their study was begun on.
        """
        rows = {row["hash"]: row for row in read_rows(self.rows_file)} if self.rows_file.exists() else {}
        if any(not row["made"] for row in rows.values()) and self.study_file.exists():
            begun = self.study().get("environment")
            machine = {name: begun[name] for name in MACHINE if name in begun} if isinstance(begun, dict) else {}
            rows = {key: row if row["made"] else {**row, "made": machine} for key, row in rows.items()}
        return list(rows.values())

    def _complete_rows(self) -> None:
        """Before study.json is replaced, whatever old rows take from it must be written into the rows."""
        if self.rows_file.exists() and any(not row["made"] for row in read_rows(self.rows_file)):
            write_atomically(self.rows_file, _lines(self.rows()))

    def add(self, *rows: Row) -> None:
        """Append rows in one write, flushed to disk before this returns."""
        with self._writing(), open(self.rows_file, "a+b") as file:
            _end_last_line(file)
            file.write(_lines(rows))
            file.flush()
            os.fsync(file.fileno())

    def settle(self, rows: Sequence[Row]) -> None:
        """The study is complete: write exactly its rows, in this order, whatever order they finished in."""
        content = _lines(rows)
        with self._writing():
            if self.rows_file.read_bytes() != content:
                write_atomically(self.rows_file, content)
            shutil.rmtree(self.checkpoints, ignore_errors=True)
            for path in self.folder.iterdir():
                if _is_litter(path) and path.name != ".lock":
                    path.unlink(missing_ok=True)

    def rest(self, rows: Sequence[Row]) -> None:
        """Some of the study's runs are left for another time: the others' rows are in the file already."""


class SharedStore(Store):
    """A study folder that several processes have open, on one machine or many (see executors/join.py).

    No process holds a lock: rows are written when all outcomes are there, and then every process writes the same.
    """

    def __init__(self, folder: Path | str) -> None:
        super().__init__(folder)
        self._added: dict[str, Row] = {}

    @contextmanager
    def opened(self, study: Mapping[str, Any]) -> Iterator[Store]:
        with self._writing():
            self._check_is_ours(study)
            self.folder.mkdir(parents=True, exist_ok=True)
            with suppress(NotImplementedError), self._locked(patience=10.0):  # nobody has it exclusively
                pass
            if not self.study_file.exists():
                write_atomically(self.study_file, json.dumps(study, indent=1, default=list) + "\n")
        if self.study()["hash"] != study["hash"]:
            raise InputError(f"{self.folder} holds another study: join it with the command that began it")
        yield self

    def rows(self) -> list[Row]:
        """Those in the folder, and those that this process knows of."""
        return list(({row["hash"]: row for row in super().rows()} | self._added).values())

    def add(self, *rows: Row) -> None:
        """Remember them until all are there; the outcomes that they are made of are in the folder already."""
        self._added |= {row["hash"]: row for row in rows}

    def settle(self, rows: Sequence[Row]) -> None:
        """Others may still be writing here: nothing is removed. Most find the rows written, and need not do it."""
        content = _lines(rows)
        with self._writing():
            if not self.rows_file.exists() or self.rows_file.read_bytes() != content:
                write_atomically(self.rows_file, content)

    rest = settle


def _lines(rows: Iterable[Row]) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def read_rows(path: Path) -> list[Row]:
    """The rows of a file, one JSON object per line; a last line truncated by a crash is dropped."""
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
        except ValueError:
            if number == len(lines):
                break
            row = None
        try:
            rows.append(_checked(row))
        except InputError as fault:
            raise InputError(f"{path}, line {number}, is not a result of a run ({fault}): remove it") from None
    return rows


def is_torn(path: Path) -> bool:
    """Whether a file of rows ends in the middle of one, as after a crash or on a full disk."""
    last = path.read_bytes().rpartition(b"\n")[2]
    try:
        parse_json(last or b"{}")
    except ValueError:
        return True
    return False


def _checked(row: Any) -> Row:
    """A row as this version writes it, or InputError with what is wrong with it.

    Settings that did not exist when it was written get their defaults, and the hash is today's.
    """
    if fault := _fault(row):
        raise InputError(fault)
    try:
        run = RunSpec.from_json(row["spec"])
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise InputError(f"its settings cannot be read: {error}") from None
    written_as = content_hash(row["spec"]) if row.get("schema", 1) == 1 else run.hash()
    if written_as != row["hash"]:
        raise InputError("its settings are not those of its hash")
    return {**row, "schema": SCHEMA, "hash": run.hash(), "spec": run.to_json(), "made": row.get("made", {})}


def _contains(study: Mapping[str, Any], smaller: Mapping[str, Any]) -> bool:
    """Whether a study is the same or only adds seeds, methods or λ's."""
    if study["reference"] != smaller.get("reference"):
        return False
    now, then = ({RunSpec.from_json(run).hash() for run in each["runs"]} for each in (study, smaller))
    return bool(then) and then <= now


def _is_litter(path: Path) -> bool:
    """The lock, or a temporary file of a process that was killed."""
    return path.name == ".lock" or path.name.startswith((".study.json.", ".runs.jsonl."))


def _fault(row: Any) -> str | None:
    """What is wrong with a row, if anything its readers rely on."""
    if not isinstance(row, dict):
        return "not a JSON object"
    if row.get("schema", 1) not in range(1, SCHEMA + 1):
        return "written by a newer version of rwalk"
    if not isinstance(row.get("made", {}), dict):
        return "no record of what made it"
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
    if len({len(accuracy[head]) for head in HEADS} - {0}) != 1:
        return "its heads must have the same tasks"
    tried = row.get("tried", {})  # only where λ was chosen
    if not isinstance(tried, dict) or not all(map(_is_number, tried.values())):
        return "no tried λs"
    for name, dimensions in (("within", 3), ("calibration", 2)):  # only where they were asked for
        if name in row and not _is_measured(row[name], len(accuracy[HEADS[0]]), dimensions):
            return f"no {name} of its tasks"
    return None


def _is_measured(values: Any, tasks: int, dimensions: int) -> bool:
    """Whether these are numbers by head, [task, …, task]."""
    try:
        shapes = [np.array(values[head], dtype=float).shape for head in HEADS]
    except (ArithmeticError, LookupError, TypeError, ValueError):
        return False
    return all(len(shape) == dimensions and shape[0] == shape[-1] == tasks for shape in shapes)


def _is_line(line: Any, length: int) -> bool:
    return isinstance(line, list) and len(line) == length and all(map(_is_number, line))


def _is_number(value: Any) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))


def _end_last_line(file: BinaryIO) -> None:
    """A line without an end is completed if it is whole, and dropped if a crash truncated it."""
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
