"""The report of a study while it runs: a small server on this machine alone, whose page follows the folder."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from rwalk.errors import InputError
from rwalk.report import results
from rwalk.report.html import render, title_of
from rwalk.report.results import Results
from rwalk.report.sections import NOTHING, Published
from rwalk.studies.curves import NAME as LOSSES
from rwalk.studies.specs import content_hash

HOST = "127.0.0.1"
AT_MOST = 10.0  # seconds between pages if only losses are new


class Watched:
    """Folders of results, read again when something in them has changed."""

    def __init__(self, folders: Sequence[Path], title: str = "", published: Published = NOTHING) -> None:
        self.folders = folders
        self.title = title or title_of(folders)
        self.published = published
        self._lock = threading.Lock()
        self._page = ""
        self._state = {"version": "", "status": ""}
        self._stamps: tuple[Any, Any] = ((), ())
        self._made = 0.0
        self._look()  # what is wrong with the folders is said now

    def page(self) -> str:
        with self._lock:
            self._look()
            return self._page

    def state(self) -> dict[str, str]:
        """The version of the page, and how far the study is, in a sentence."""
        with self._lock:
            self._look()
            return self._state

    def _look(self) -> None:
        every = [each for folder in self.folders for each in results.stamp(folder)]
        losses = tuple(each for each in every if each[0].endswith(LOSSES))
        stamps = (tuple(each for each in every if each not in losses), losses)
        urgent, now = stamps[0] != self._stamps[0], time.monotonic()
        if self._page and not urgent and (stamps == self._stamps or now - self._made < AT_MOST):
            return
        try:
            studies = results.read_all(self.folders, unfinished=True)
        except InputError as error:  # a file may be half copied: it is looked at again
            if not self._page:
                raise
            self._state = {**self._state, "status": f"These results cannot be read now: {error}"}
            return
        self._state = {"version": content_hash(stamps), "status": status(studies)}
        self._page = render(studies, self.title, published=self.published, live=self._state)
        self._stamps, self._made = stamps, now


def status(studies: Sequence[Results]) -> str:
    """How far studies are: runs finished and missing, and the last loss of one that is being trained."""
    done, missing = (sum(len(study.rows) for study in studies), sum(study.missing for study in studies))
    if not missing:
        return f"All {done} runs have finished." if done else "No run has finished, and none is planned here."
    running = [f"step {step}, loss {loss:.3g}" for study in studies for step, loss in study.in_training().values()]
    last = f"; in training: {' · '.join(running[-4:])}" if running else ""
    return f"{done} of {done + missing} runs have finished{last}."


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, watched: Watched, port: int) -> None:
        self.watched = watched
        super().__init__((HOST, port), _Handler)


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def do_GET(self) -> None:
        if self.headers.get("Host", "").rpartition(":")[0] not in {HOST, "localhost"}:
            self.send_error(403)  # a name that leads here from elsewhere: another site's page is asking
        elif self.path == "/":
            self._answer(self.server.watched.page(), "text/html")
        elif self.path == "/state.json":
            self._answer(json.dumps(self.server.watched.state()), "application/json")
        else:
            self.send_error(404)

    def _answer(self, text: str, kind: str) -> None:
        content = text.encode()
        self.send_response(200)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *words: Any) -> None:
        """Not a line per request."""


def serve(watched: Watched, port: int = 0) -> _Server:
    """A server that answers at once, on a port of its own choice where none is given; `serve_forever` runs it."""
    try:
        return _Server(watched, port)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"cannot serve at port {port} ({reason}): choose another --port, or none") from None
