"""Claims in a shared folder: who works on what, with leases that are renewed.

A claim is a file that only one process can create (O_EXCL, which works on NFS and on Windows). Its owner changes
it every few seconds. A process that sees it unchanged for the length of a lease, by its own clock so that clocks
need not agree, may take it over: claims are numbered, and only one process can create the next. An owner that was
merely slow just continues: two processes then do the same work, and write the same result.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from rwalk.files import write_atomically

LEASE = 60.0  # seconds without a sign of life after which a claim may be taken over; RWALK_LEASE sets it
BEATS = 5  # signs of life per lease


def lease_seconds() -> float:
    return float(os.environ.get("RWALK_LEASE") or LEASE)


class Claims:
    """The claims in a folder, as one process sees them."""

    def __init__(self, folder: Path, lease: float | None = None) -> None:
        self.folder = folder
        self.lease = lease_seconds() if lease is None else lease
        self.owner = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
        self._seen: dict[str, tuple[bytes, float]] = {}  # the content of a claim, and since when it is the same

    def held(self) -> dict[str, Path]:
        """The newest claim on every key that is claimed."""
        found: dict[str, Path] = {}
        with suppress(FileNotFoundError):
            for name in os.listdir(self.folder):
                if not name.startswith("."):  # just being written
                    path = self.folder / name
                    found[path.stem] = max(path, found.get(path.stem, path), key=_number)
        return found

    def take(
        self, key: str, about: Callable[[], Mapping[str, Any]] = dict, held: Mapping[str, Path] | None = None
    ) -> Claim | None:
        """The claim on a key, if it is free or was abandoned; `about` is written into it at every sign of life.

        Who takes one after another may say which are `held`, instead of having the folder listed again.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        last = (self.held() if held is None else held).get(key)
        if last is not None and not self._abandoned(last):
            return None
        path = self.folder / f"{key}.{0 if last is None else _number(last) + 1}"
        claim = Claim(path, self.owner, self.lease / BEATS, about)
        if not claim.create():
            return None
        if last is not None:
            last.unlink(missing_ok=True)
        return claim

    def _abandoned(self, path: Path) -> bool:
        try:
            content = path.read_bytes()
        except OSError:
            return False  # it has just been given back
        now = time.monotonic()
        before, since = self._seen.get(path.name, (None, now))
        if content != before:
            since = now
        self._seen[path.name] = (content, since)
        return now - since >= self.lease


class Claim:
    """One claim, kept alive while it is entered."""

    def __init__(self, path: Path, owner: str, period: float, about: Callable[[], Mapping[str, Any]]) -> None:
        self._path, self._owner, self._period, self._about = path, owner, period, about
        self._beats = 0
        self._ended = threading.Event()
        self._heart = threading.Thread(target=self._beat, name=f"claim {path.name}", daemon=True)

    def create(self) -> bool:
        """False, if somebody has it."""
        try:
            handle = os.open(self._path, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
        except OSError:  # it exists; on Windows also: it is just being removed
            return False
        with os.fdopen(handle, "wb") as file:
            file.write(self._content())
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
            self._path.unlink(missing_ok=True)

    def _beat(self) -> None:
        while not self._ended.wait(self._period):
            if not self._mine():
                return  # it was slow, and somebody took over: there is nothing to keep alive any more
            self._beats += 1
            with suppress(OSError):  # a busy file on Windows, a network that is away: the next beat may succeed
                write_atomically(self._path, self._content())

    def _mine(self) -> bool:
        return read_claim(self._path).get("owner") == self._owner

    def _content(self) -> bytes:
        return json.dumps({"owner": self._owner, "beats": self._beats, **self._about()}).encode()


def _number(path: Path) -> int:
    return int(path.suffix.removeprefix(".") or 0)


def read_claim(path: Path) -> dict[str, Any]:
    """What a claim says; nothing, if it is gone or just being written."""
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
