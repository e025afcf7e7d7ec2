"""The report of a study while it runs: a small server on this machine alone, whose page follows the folder."""

from __future__ import annotations

import json
import secrets
import socket
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from rwalk.errors import InputError
from rwalk.report import result_folders
from rwalk.report.html_page import render
from rwalk.report.page_data import NOTHING, Published
from rwalk.report.result_folders import Results
from rwalk.studies.json_records import content_hash
from rwalk.studies.losses_and_costs import LOSSES

HOST = "127.0.0.1"
AT_MOST = 10.0  # seconds between pages if only losses are new
MOST = 64  # open connections
IDLE = 10.0  # seconds after which an idle connection is closed
# The page's own policy names the script that may run; these headers restrict framing, reading and caching.
HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


class Watched:
    """Folders of results, read again when something in them has changed."""

    def __init__(self, folders: Sequence[Path], title: str = "", published: Published = NOTHING) -> None:
        self.folders = folders
        self.title = title
        self.published = published
        self._lock = threading.Lock()
        self._page = ""
        self._state = {"version": "", "status": ""}
        self._stamps: tuple[Any, Any] = ((), ())
        self._made = 0.0
        self._look()  # raises if the folders cannot be read

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
        every = [each for folder in self.folders for each in result_folders.stamp(folder)]
        losses = tuple(each for each in every if each[0].endswith(LOSSES))
        stamps = (tuple(each for each in every if each not in losses), losses)
        urgent, now = stamps[0] != self._stamps[0], time.monotonic()
        if self._page and not urgent and (stamps == self._stamps or now - self._made < AT_MOST):
            return
        try:
            studies = result_folders.read_all(self.folders, unfinished=True)
        except InputError as error:  # a file may be half copied: the next look reads it again
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
    """Serves at an address with a secret in it, which other users of this machine cannot guess."""

    daemon_threads = True
    request_queue_size = MOST

    def __init__(self, watched: Watched, port: int) -> None:
        self.watched = watched
        self._root = f"/{secrets.token_urlsafe(16)}/"
        self._open: dict[Any, None] = {}  # connections, oldest first
        self._changing = threading.Lock()
        super().__init__((HOST, port), _Handler)

    @property
    def address(self) -> str:
        return f"http://{HOST}:{self.server_port}{self._root}"

    def inside(self, path: str) -> str | None:
        """A path below the secret one; None for any other."""
        root = path[: len(self._root)]
        return path[len(root) :] if secrets.compare_digest(root.encode(), self._root.encode()) else None

    def process_request(self, request: Any, client_address: Any) -> None:
        """Idle connections must not keep others out: if there are too many, the oldest is closed."""
        with self._changing:
            self._open[request] = None
            oldest = next(iter(self._open)) if len(self._open) > MOST else None
        if oldest is not None:
            with suppress(OSError):
                oldest.shutdown(socket.SHUT_RDWR)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._changing:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that goes away in the middle of an answer is no error."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = IDLE

    def do_GET(self) -> None:
        path = self.server.inside(self.path)
        if self.headers.get("Host", "").rpartition(":")[0] not in {HOST, "localhost"}:
            self.send_error(403)  # another site's name that leads here
        elif path == "":
            self._answer(self.server.watched.page(), "text/html")
        elif path == "state.json":
            self._answer(json.dumps(self.server.watched.state()), "application/json")
        else:
            self.send_error(404)

    def _answer(self, text: str, kind: str) -> None:
        content = text.encode()
        self.send_response(200)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def end_headers(self) -> None:
        for name, value in HEADERS.items():
            self.send_header(name, value)
        super().end_headers()

    def version_string(self) -> str:
        return "rwalk"

    def log_message(self, *words: Any) -> None:
        """Not a line per request."""


def serve(watched: Watched, port: int = 0) -> _Server:
    """A server that answers at once, on a port of its own choice where none is given; `serve_forever` runs it."""
    try:
        return _Server(watched, port)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"cannot serve at port {port} ({reason}): choose another --port, or none") from None
