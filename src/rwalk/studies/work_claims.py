"""Claims in a shared folder: who works on what, with leases that are renewed.

A claim is a file that only one process can create (O_EXCL, which works on NFS and on Windows). Its owner changes
it five times per lease. A process that finds it unchanged for the length of a lease may take it over: claims are
numbered, and only one process can create the next. An owner that was merely slow just continues: two processes
then do the same work, and write the same result.

No process compares its clock with another's or with a file's time: each measures, by its own monotonic clock, how
long a claim has not changed. So the times of day may differ by any amount, and may jump. Only the clocks' speeds
matter: where one runs five times as fast as another, claims are taken over that are alive, and runs trained twice.
"""

from __future__ import annotations

import json
import math
import os
import re
import secrets
import socket
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from rwalk.atomic_files import parse_json, write_atomically
from rwalk.errors import InputError

CLAIMS = "claims"  # The folder of claims in a study's.
LEASE = 60.0  # Seconds without a sign of life after which a claim may be taken over; RWALK_LEASE sets it.
BEATS = 5  # Signs of life per lease.
LONGEST = 1 << 16  # Bytes of a claim that are read.

_NAME = re.compile(r"([\w-]+)\.(\d{1,18})")


def lease_seconds() -> float:
    given = os.environ.get("RWALK_LEASE") or str(LEASE)
    try:
        lease = float(given)
    except ValueError:
        lease = math.nan
    if not 0 < lease < math.inf:
        raise InputError(f"RWALK_LEASE must be a number of seconds above 0, not {given!r}")
    return lease


class Claims:
    """One process's view of the claims in a folder."""

    def __init__(self, folder: Path, lease: float | None = None) -> None:
        self.folder = folder
        self.lease = lease_seconds() if lease is None else lease
        self.owner = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
        self._seen: dict[str, tuple[bytes | None, float]] = {}  # a claim's content, and since when it is the same

    def held(self) -> dict[str, Path]:
        """The newest claim on every key that is claimed; files of other names are not claims."""
        found: dict[str, Path] = {}
        try:
            names = os.listdir(self.folder)
        except (FileNotFoundError, NotADirectoryError):
            return found
        for name in names:
            if match := _NAME.fullmatch(name):
                path = self.folder / name
                found[match[1]] = max(path, found.get(match[1], path), key=_number)
        return found

    def take(self, key: str, held: Mapping[str, Path] | None = None) -> Claim | None:
        """The claim on a key, if it is free or was abandoned.

        Who takes one after another may say which are `held`, instead of having the folder listed again.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        last = (self.held() if held is None else held).get(key)
        if last is not None and not self._abandoned(last):
            return None
        path = self.folder / f"{key}.{0 if last is None else _number(last) + 1}"
        claim = Claim(path, self.owner, self.lease / BEATS)
        if not claim.create():
            return None
        if last is not None:
            _remove(last)
        return claim

    def are_alive(self) -> bool:
        """Whether any claim changes within a lease, appears, or is given back."""
        before = {path: _content(path) for path in self.held().values()}
        until = time.monotonic() + self.lease
        while before and time.monotonic() < until:
            time.sleep(min(0.2, self.lease / BEATS))
            if before != {path: _content(path) for path in self.held().values()}:
                return True
        return False

    def clear(self) -> None:
        """Remove all claims: their owners are gone."""
        for path in self.held().values():
            _remove(path)

    def _abandoned(self, path: Path) -> bool:
        content = _content(path)
        if content is None and not os.path.lexists(path):
            return False  # it has just been given back
        now = time.monotonic()
        before, since = self._seen.get(path.name, (None, now))
        if content != before:
            since = now
        self._seen[path.name] = (content, since)
        return now - since >= self.lease


class Claim:
    """One claim, kept alive while it is entered."""

    def __init__(self, path: Path, owner: str, period: float) -> None:
        self._path, self._owner, self._period = path, owner, period
        self._beats = 0
        self._ended = threading.Event()
        self._heart = threading.Thread(target=self._beat, name=f"claim {path.name}", daemon=True)

    def create(self) -> bool:
        """False if another process has it."""
        try:
            handle = os.open(self._path, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
        except FileExistsError:
            return False
        except PermissionError:
            if os.name == "nt":  # it is just being removed
                return False
            raise
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(self._content())
        except OSError:
            _remove(self._path)
            raise
        return True

    def __enter__(self) -> Self:
        self._heart.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._heart.join()
        if self._mine():
            _remove(self._path)

    def _beat(self) -> None:
        while not self._ended.wait(self._period):
            if not self._mine():
                return  # it was slow, and another process took over
            self._beats += 1
            with suppress(OSError):  # a busy file on Windows, a network that is away: the next beat may succeed
                write_atomically(self._path, self._content())

    def _mine(self) -> bool:
        """Whether the claim is still ours; an unreadable file may be."""
        found = _content(self._path)
        return os.path.lexists(self._path) if found is None else _read(found).get("owner") == self._owner

    def _content(self) -> bytes:
        return json.dumps({"owner": self._owner, "beats": self._beats}).encode()


def _number(path: Path) -> int:
    return int(path.suffix.removeprefix(".") or 0)


def _remove(path: Path) -> None:
    """A claim that cannot be removed does no harm: a higher number counts."""
    with suppress(OSError):
        path.unlink(missing_ok=True)


def _content(path: Path) -> bytes | None:
    """The bytes of a claim; None if it is gone or cannot be read, as a folder or a link cannot."""
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    with suppress(OSError):
        handle = os.open(path, flags)
        try:
            return os.read(handle, LONGEST)
        finally:
            os.close(handle)  # `fdopen` would leave the one of a folder open
    return None


def _read(content: bytes) -> dict[str, Any]:
    try:
        found = parse_json(content)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
