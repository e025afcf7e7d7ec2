"""The site in a real browser, one page of every kind: `make test-site` builds it, and brings axe-core.

Screenshots are left in build/shots, to be looked at.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from browser import LOOKS, cut_off, look_of, tab_of, violations

SITE = Path(os.environ.get("SITE", "build/docs")).absolute()
SHOTS = Path("build/shots")
KINDS = {
    "home": "index.html",
    "tutorial": "tutorials/fine-tune.html",
    "how-to": "howto/which-method.html",
    "explanation": "concepts/drift.html",
    "equations": "methods/rwalk.html",
    "anchor": "anchor.html",
    "guard": "guard.html",
    "classifier": "classifier.html",
    "design": "design.html",
    "reference": "api/index.html",
    "a class": "api/generated/rwalk.Guard.html",
    "commands": "commands.html",
    "results": "reproduction.html",
    "generated results": "results-appendix.html",
    "a list of examples": "gallery/index.html",
    "an example": "gallery/guard_plain.html",
    "search": "search.html?q=budget",
    "index": "genindex.html",
}


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """The site as a server shows it: the search fetches pages, which files may not."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(SITE))) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture(scope="module", params=LOOKS, ids="{0[0]}-{0[1]}".format)
def tab(browser: Any, request: pytest.FixtureRequest) -> Any:
    tab = tab_of(browser, **look_of(*request.param))
    tab.look = "-".join(map(str, request.param))
    yield tab
    tab.context.close()


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_page_is_whole_and_accessible(kind: str, tab: Any, address: str, axe: str) -> None:
    complaints: list[str] = []
    tab.on("pageerror", lambda error: complaints.append(str(error)))
    page, _, query = KINDS[kind].partition("?")
    tab.goto(f"{address}/{page}?{query}")
    if query:
        tab.locator("#search-results li").first.wait_for()
    tab.screenshot(path=SHOTS / f"{kind}-{tab.look}.png", full_page=True)
    found = [*complaints, *cut_off(tab, "article *"), *violations(tab, axe)]
    assert found == []
