"""Where results live: a study folder with `study.json` and one JSON row per run.

Files are written atomically and only grow. A process that replaces one reads it again first, under the folder's
lock, and keeps all rows that are in it. Every file is checked when it is read: a folder may have been copied,
edited or damaged.
"""

from __future__ import annotations

import logging
import os
import shutil
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import BinaryIO

from rwalk.atomic_files import WrongChecksum, checked_json, parse_json, with_checksum, write_atomically
from rwalk.errors import InputError
from rwalk.studies.rows import Description, Row, Rows, check_measures, lines_of
from rwalk.studies.work_claims import CLAIMS, Claims, lease_seconds
from rwalk.studies.worker_pool import Stop

PATIENCE = 600.0  # seconds that a process which joined waits for others to have written their rows
PAUSE = 0.1  # seconds between two attempts to take the lock

logger = logging.getLogger(__name__)


class Store:
    """A study folder.

    study.json    the study: every setting, versions and seeds.
    runs.jsonl    one row per run, appended as runs finish. The study's order is restored at its end.
    checkpoints/  the states from which unfinished runs resume, one folder each.
    """

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)
        self.study_file = self.folder / "study.json"
        self.is_open = False  # for a study: where study.json is missing then, it was removed
        self.rows_file = self.folder / "runs.jsonl"
        self.checkpoints = self.folder / "checkpoints"

    @contextmanager
    def opened(self, study: Description) -> Iterator[Store]:
        """Hold the folder for this study and this process alone; it is created if it does not exist."""
        lease_seconds()  # refused before the first write
        with ExitStack() as held:
            with self._writing():
                self._check_is_ours(study)  # before the first write: the folder may hold other files
                self.folder.mkdir(parents=True, exist_ok=True)
                held.enter_context(self._alone())
                self._check_is_ours(study)
                self.is_open = True
                held.callback(setattr, self, "is_open", False)
                if not self.study_file.exists() or self.study().hash != study.hash:
                    self._describe(study)
            yield self  # errors from here on are not the folder's

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
            if self.is_open and not self.study_file.exists():
                raise InputError(
                    f"{self.folder} was removed, or its study.json, while its runs were trained: their results "
                    "cannot be kept; the same command begins again"
                )
            yield

    def _describe(self, study: Description) -> None:
        write_atomically(self.study_file, with_checksum(study.to_json(), indent=1) + "\n")

    def _check_is_ours(self, study: Description) -> None:
        if self.folder.exists() and not self.folder.is_dir():
            raise InputError(f"{self.folder} is a file: choose another --out")
        # Looked at before study.json is: who joins at the same moment writes that first.
        occupied = self.folder.is_dir() and not all(_is_litter(path) for path in self.folder.iterdir())
        if self.study_file.exists():
            there = self.study()
            if there.hash != study.hash and not study.contains(there):
                raise InputError(
                    f"{self.folder} holds another study, which is not part of this one: choose another --out"
                )
            if not all(each in study.data for each in there.data):
                raise InputError(f"the data of {self.folder} has changed since it was begun: choose another --out")
        elif occupied:
            raise InputError(f"{self.folder} is not empty and holds no study: choose another --out")

    def set_aside(self, study: Description) -> Path | None:
        """Rename the folder if it holds another study; returns its new name."""
        there = self.study() if self.study_file.exists() else study
        if there.hash == study.hash or study.contains(there):
            return None
        with self._writing():
            with self._alone():
                pass  # no process is working on it
            return self.folder.rename(self.folder.with_name(f"{self.folder.name}-{there.hash[:8]}"))

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
    def _locked(self, patience: float = 0.0, stop: Stop = lambda: False) -> Iterator[None]:
        """Hold the lock. The system releases it when its holder ends, however it ends."""
        from filelock import FileLock, Timeout

        lock = FileLock(self.folder / ".lock", thread_local=False)  # another thread may release it
        until = time.monotonic() + patience
        while True:
            try:
                lock.acquire(timeout=0)
                break
            except Timeout:
                if stop():
                    raise KeyboardInterrupt from None
                if time.monotonic() >= until:
                    raise InputError(
                        f"another process is working on {self.folder}: wait for it, or choose another --out"
                    ) from None
                time.sleep(PAUSE)
            except NotImplementedError:
                self._without_lock()
                break
        try:
            yield
        finally:
            lock.release()

    def _without_lock(self) -> None:
        raise InputError(f"{self.folder} is on a file system without locks: choose another --out, or add --join")

    def study(self) -> Description:
        """The content of study.json."""
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
        try:
            return Description.from_json(record, sealed)
        except InputError as error:
            raise InputError(f"{self.study_file} is not a study that can be used ({error}): {cure}") from None

    def rows(self) -> Rows:
        """The newest row of each run; a run whose line was truncated by a crash is done again."""
        return Rows(read_rows(self.rows_file).by_hash().values()) if self.rows_file.exists() else Rows()

    def add(self, *rows: Row) -> None:
        """Append rows in one write, flushed to disk before this returns."""
        with self._adding(), open(self.rows_file, "a+b") as file:
            _end_last_line(file)
            file.write(lines_of(rows))
            file.flush()
            os.fsync(file.fileno())

    def settle(self, rows: Sequence[Row], stop: Stop = lambda: False) -> None:
        """The study is complete: put its rows into its order, whatever order they finished in."""
        if not self._has_exactly(rows):
            self._merge(rows)
        with self._writing():
            shutil.rmtree(self.checkpoints, ignore_errors=True)
            for path in self.folder.iterdir():
                if _is_litter(path) and path.name != ".lock":
                    path.unlink(missing_ok=True)

    def _merge(self, rows: Iterable[Row]) -> None:
        """Write these rows and all that are in the file, in the study's order. The caller holds the lock."""
        with self._adding():
            known = self._in_file().by_hash() | {row.hash: row for row in rows}
            places = {key: place for place, key in enumerate(self.study().hashes())}
            content = lines_of(sorted(known.values(), key=lambda row: places.get(row.hash, len(places))))
            write_atomically(self.rows_file, content)

    def _has_exactly(self, rows: Sequence[Row]) -> bool:
        with self._adding():
            return self.rows_file.exists() and self.rows_file.read_bytes() == lines_of(rows)

    def _in_file(self) -> Rows:
        return Store.rows(self)


class SharedStore(Store):
    """A study folder that several processes have open, on one machine or many (see shared_folder.py).

    A process holds the lock only while it writes. Rows are written when all outcomes are there; then every process
    has the same, so that most find them written. A study that has grown since keeps all its rows.
    """

    def __init__(self, folder: Path | str) -> None:
        super().__init__(folder)
        self._added: dict[str, Row] = {}
        self._before: dict[str, Row] = {}

    @contextmanager
    def opened(self, study: Description) -> Iterator[Store]:
        lease_seconds()  # refused before the first write
        with self._writing():
            self._check_is_ours(study)
            self.folder.mkdir(parents=True, exist_ok=True)
            self.is_open = True
            with self._locked(patience=10.0):  # no process has it exclusively
                if not self.study_file.exists():
                    self._describe(study)
            self._check_is_ours(study)  # another process may have begun it in the meantime, with other data
        if self.study().hash != study.hash:
            raise InputError(f"{self.folder} holds another study: join it with the command that began it")
        self._before = self._in_file().by_hash()
        try:
            yield self
        finally:
            self.is_open = False

    def _without_lock(self) -> None:
        """Rows are then merged without one: only two processes that write in the same moment could disagree."""

    def rows(self) -> Rows:
        """The rows in the folder, and those that this process has added."""
        return Rows((self._in_file().by_hash() | self._added).values())

    def add(self, *rows: Row) -> None:
        """Remember them until all are there; the outcomes that they are made of are in the folder already."""
        self._added |= {row.hash: row for row in rows}

    def settle(self, rows: Sequence[Row], stop: Stop = lambda: False) -> None:
        """Write the rows under the lock; nothing is removed, and a row that is newer than ours stays."""
        if self._has_exactly(rows):
            return
        with self._writing(), self._locked(PATIENCE, stop):
            if not self._has_exactly(rows):  # another process may have written them
                there = self._in_file().by_hash()
                stays = {key for key, row in there.items() if row != self._before.get(key)}
                self._merge(row for row in rows if row.hash not in stays)


def read_rows(path: Path) -> Rows:
    """The rows of a file, one JSON object per line; a last line truncated by a crash is dropped."""
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from None
    rows, numbers = Rows(), []
    for number, line in enumerate(lines, 1):
        if not line:
            continue
        try:
            rows.append(Row.from_json(*checked_json(line)))
            numbers.append(number)
        except (WrongChecksum, InputError) as fault:
            raise _no_row(path, number, fault) from None
        except ValueError:
            if number < len(lines):
                raise _no_row(path, number, "not a JSON object") from None
    if (wrong := check_measures(rows)) is not None:
        raise _no_row(path, numbers[wrong], "its A, F or I are not those of its accuracies")
    return rows


def _no_row(path: Path, number: int, fault: object) -> InputError:
    return InputError(f"{path}, line {number}, is not a result of a run ({fault}): remove it")


def is_torn(path: Path) -> bool:
    """Whether a file of rows ends in the middle of one, as after a crash or on a full disk."""
    last = path.read_bytes().rpartition(b"\n")[2]
    try:
        parse_json(last or b"{}")
    except ValueError:
        return True
    return False


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
