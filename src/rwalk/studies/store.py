"""Where results live: a study folder with `study.json` and one JSON row per run.

Files are written atomically and only grow: whoever replaces one reads it again first, under the folder's lock, and
keeps all rows that are in it. Whatever is read back is checked: a folder may have been copied, edited or damaged.
"""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from rwalk.errors import InputError
from rwalk.files import WrongChecksum, checked_json, parse_json, with_checksum, write_atomically
from rwalk.studies import rows as rules
from rwalk.studies.claims import CLAIMS, Claims
from rwalk.studies.rows import MACHINE, SCHEMA, SEALED_SINCE, Row
from rwalk.studies.specs import RunSpec, content_hash

__all__ = ["MACHINE", "SCHEMA", "Row", "SharedStore", "Store", "hash_of", "is_torn", "read_rows"]

PATIENCE = 600.0  # seconds that a process which joined waits for others to have written their rows

logger = logging.getLogger(__name__)


class Store:
    """A study folder.

    study.json    every setting, versions and seeds: what the study is
    runs.jsonl    one row per run, appended as runs finish; sorted into the study's order once all have
    checkpoints/  what unfinished runs resume from, one folder each
    """

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)
        self.study_file = self.folder / "study.json"
        self._begun = False  # whether study.json was there, so that its absence means that it was removed
        self.rows_file = self.folder / "runs.jsonl"
        self.checkpoints = self.folder / "checkpoints"

    @contextmanager
    def opened(self, study: Mapping[str, Any]) -> Iterator[Store]:
        """Hold the folder for this study and this process alone; it is created if it does not exist."""
        with ExitStack() as held:
            with self._writing():
                self._check_is_ours(study)  # before anything is written into a folder that may be somebody's
                self.folder.mkdir(parents=True, exist_ok=True)
                held.enter_context(self._alone())
                self._check_is_ours(study)
                self._begun = True
                if not self.study_file.exists() or self.study()["hash"] != study["hash"]:
                    self._complete_rows()
                    self._describe(study)
            yield self  # what goes wrong here is not the folder's fault

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            rest = "finished runs are kept" if self.rows_file.exists() else "choose another --out"
            raise InputError(f"cannot write to {self.folder}: {error.strerror or error}; {rest}") from error

    @contextmanager
    def _adding(self) -> Iterator[None]:
        """Rows are only written into the folder that the study was begun in."""
        with self._writing():
            if self._begun and not self.study_file.exists():
                raise InputError(
                    f"{self.folder} was removed, or its study.json, while its runs were trained: their results "
                    "cannot be kept; the same command begins again"
                )
            yield

    def _describe(self, study: Mapping[str, Any]) -> None:
        write_atomically(self.study_file, with_checksum(study, indent=1) + "\n")

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
            with self._alone():
                pass  # no process is working on it
            return self.folder.rename(self.folder.with_name(f"{self.folder.name}-{there['hash'][:8]}"))

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Hold the lock, while no process that joined is at work; claims of processes that died are removed."""
        with self._locked():
            claims = Claims(self.folder / CLAIMS)
            if claims.held():
                logger.warning(
                    "%s: processes have joined it, waiting up to %g s to see if any is still at work",
                    *(self.folder, claims.lease),
                )
                if claims.are_alive():
                    raise InputError(
                        f"processes that joined {self.folder} are working on it: add --join, or wait for them"
                    )
                claims.clear()
            yield

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
        except NotImplementedError:
            self._without_lock()
        try:
            yield
        finally:
            lock.release()

    def _without_lock(self) -> None:
        raise InputError(f"{self.folder} is on a file system without locks: choose another --out, or add --join")

    def study(self) -> dict[str, Any]:
        """What is in study.json."""
        cure = "restore it or remove the folder"
        try:
            record, sealed = checked_json(self.study_file.read_bytes())
        except FileNotFoundError:
            raise InputError(f"{self.folder} holds no study: there is no study.json in it") from None
        except WrongChecksum:
            raise InputError(f"{self.study_file} was altered (its checksum is wrong): {cure}") from None
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise InputError(f"{self.study_file} cannot be read ({reason}): {cure}") from None
        runs = record.get("runs") if isinstance(record, dict) else None
        if not isinstance(runs, list) or not all(isinstance(run, dict) for run in runs) or "hash" not in record:
            raise InputError(f"{self.study_file} is not a study: {cure}")
        if not isinstance(record.get("data", []), list):
            raise InputError(f"{self.study_file} does not say which data it is of: restore it")
        schema = record.get("schema", 1)
        if type(schema) is not int or schema > SCHEMA:
            raise InputError(f"{self.folder} was written by a newer version of rwalk: use that one")
        if not sealed and (schema >= SEALED_SINCE or hash_of(record) != record["hash"]):
            raise InputError(f"{self.study_file} was altered (its settings do not match its hash): {cure}")
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
        with self._adding(), open(self.rows_file, "a+b") as file:
            _end_last_line(file)
            file.write(_lines(rows))
            file.flush()
            os.fsync(file.fileno())

    def settle(self, rows: Sequence[Row]) -> None:
        """The study is complete: put its rows into its order, whatever order they finished in."""
        if not self._has_exactly(rows):
            self._merge(rows)
        with self._writing():
            shutil.rmtree(self.checkpoints, ignore_errors=True)
            for path in self.folder.iterdir():
                if _is_litter(path) and path.name != ".lock":
                    path.unlink(missing_ok=True)

    def rest(self, rows: Sequence[Row]) -> None:
        """Some of the study's runs are left for another time: the others' rows are in the file already."""

    def _merge(self, rows: Iterable[Row]) -> None:
        """Write these rows and all that are in the file, in the study's order. The caller holds the lock."""
        with self._adding():
            known = {row["hash"]: row for row in self._in_file()} | {row["hash"]: row for row in rows}
            places = {key: place for place, key in enumerate(self._planned())}
            content = _lines(sorted(known.values(), key=lambda row: places.get(row["hash"], len(places))))
            write_atomically(self.rows_file, content)

    def _has_exactly(self, rows: Iterable[Row]) -> bool:
        with self._adding():
            return self.rows_file.exists() and self.rows_file.read_bytes() == _lines(rows)

    def _in_file(self) -> list[Row]:
        return Store.rows(self)

    def _planned(self) -> list[str]:
        return [RunSpec.from_json(run).hash() for run in self.study()["runs"]]


class SharedStore(Store):
    """A study folder that several processes have open, on one machine or many (see executors/join.py).

    A process holds the lock only while it writes. Rows are written when all outcomes are there; then every process
    has the same, so that most find them written. A study that has grown meanwhile keeps all rows it has.
    """

    def __init__(self, folder: Path | str) -> None:
        super().__init__(folder)
        self._added: dict[str, Row] = {}
        self._before: dict[str, Row] = {}

    @contextmanager
    def opened(self, study: Mapping[str, Any]) -> Iterator[Store]:
        with self._writing():
            self._check_is_ours(study)
            self.folder.mkdir(parents=True, exist_ok=True)
            self._begun = True
            with self._locked(patience=10.0):  # no process has it exclusively
                if not self.study_file.exists():
                    self._describe(study)
        if self.study()["hash"] != study["hash"]:
            raise InputError(f"{self.folder} holds another study: join it with the command that began it")
        self._before = {row["hash"]: row for row in self._in_file()}
        yield self

    def _without_lock(self) -> None:
        """Rows are then merged without one: only two processes that write in the same moment could disagree."""

    def rows(self) -> list[Row]:
        """Those in the folder, and those that this process knows of."""
        return list(({row["hash"]: row for row in super().rows()} | self._added).values())

    def add(self, *rows: Row) -> None:
        """Remember them until all are there; the outcomes that they are made of are in the folder already."""
        self._added |= {row["hash"]: row for row in rows}

    def settle(self, rows: Sequence[Row]) -> None:
        """Others may still be writing here: nothing is removed, and a row that is newer than ours stays."""
        if self._has_exactly(rows):
            return
        with self._writing(), self._locked(patience=PATIENCE):
            if not self._has_exactly(rows):  # another process may have written them meanwhile
                there = {row["hash"]: row for row in self._in_file()}
                stays = {key for key, row in there.items() if row != self._before.get(key)}
                self._merge(row for row in rows if row["hash"] not in stays)

    rest = settle


def _lines(rows: Iterable[Row]) -> bytes:
    return b"".join(with_checksum(row).encode() + b"\n" for row in rows)


def read_rows(path: Path) -> list[Row]:
    """The rows of a file, one JSON object per line; a last line truncated by a crash is dropped."""
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from None
    rows, numbers = [], []
    for number, line in enumerate(lines, 1):
        if not line:
            continue
        try:
            row, sealed = checked_json(line)
            rows.append(rules.checked(row, sealed))
            numbers.append(number)
        except (WrongChecksum, InputError) as fault:
            raise _no_row(path, number, fault) from None
        except ValueError:
            if number < len(lines):
                raise _no_row(path, number, "not a JSON object") from None
    if (wrong := rules.check_measures(rows)) is not None:
        raise _no_row(path, numbers[wrong], "its A, F or I are not those of its accuracies")
    return rows


def _no_row(path: Path, number: int, fault: object) -> InputError:
    return InputError(f"{path}, line {number}, is not a result of a run ({fault}): remove it")


def hash_of(record: Mapping[str, Any]) -> str:
    """The hash of the study that a study.json describes: of its runs and references, as its schema has it."""
    first = record.get("schema", 1) == 1
    runs = record["runs"] if first else [RunSpec.from_json(run).hash() for run in record["runs"]]
    return content_hash({"runs": runs, "reference": record.get("reference")})


def is_torn(path: Path) -> bool:
    """Whether a file of rows ends in the middle of one, as after a crash or on a full disk."""
    last = path.read_bytes().rpartition(b"\n")[2]
    try:
        parse_json(last or b"{}")
    except ValueError:
        return True
    return False


def _contains(study: Mapping[str, Any], smaller: Mapping[str, Any]) -> bool:
    """Whether a study is the same or only adds seeds, methods or λ's."""
    if study["reference"] != smaller.get("reference"):
        return False
    now, then = ({RunSpec.from_json(run).hash() for run in each["runs"]} for each in (study, smaller))
    return bool(then) and then <= now


def _is_litter(path: Path) -> bool:
    """The lock, or a temporary file of a process that was killed."""
    return path.name == ".lock" or path.name.startswith((".study.json.", ".runs.jsonl."))


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
