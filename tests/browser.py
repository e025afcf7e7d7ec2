"""Chromium for tests of pages: a tab, what is cut off in it, and what axe-core finds."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from little import PATIENCE

CHROMIUM = shutil.which("chromium")
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"]
FLAGS += ["--disable-background-networking", "--disable-component-update"]
LOOKS = [(width, scheme) for width in (1280, 390) for scheme in ("light", "dark")]

# Elements that end beyond the window or are shorter than their text, where a reader cannot scroll to the rest.
CUT_OFF = """inside => {
  const width = document.documentElement.clientWidth;
  const overflow = each => getComputedStyle(each).overflowX;
  const scrolls = each => each && (["auto", "scroll"].includes(overflow(each)) || scrolls(each.parentElement));
  const hides = each => ["hidden", "clip"].includes(overflow(each)) && each.clientWidth > 1;
  const right = each => each.getBoundingClientRect().width && each.getBoundingClientRect().right;
  return [...document.querySelectorAll(inside)].filter(each => each.checkVisibility())
    .filter(each => right(each) > width + 1 && !scrolls(each)
                    || hides(each) && each.scrollWidth > each.clientWidth + 1)
    .map(each => each.outerHTML.slice(0, 120));
}"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if not CHROMIUM:
        pytest.skip("there is no chromium on this machine")
    with playwright.sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield chromium
        chromium.close()


@pytest.fixture(scope="module")
def axe() -> str:
    """axe-core's source."""
    source = os.environ.get("AXE", "")
    if not source:
        pytest.skip("axe-core is not here: make test-report and make test-site bring it")
    return Path(source).read_text()


def tab_of(browser: Any, **context: Any) -> Any:
    """A new tab, which waits as long as a test may hang."""
    opened = browser.new_context(**context)
    opened.set_default_timeout(1000 * PATIENCE)
    return opened.new_page()


def look_of(width: int, scheme: str) -> dict[str, Any]:
    return {"viewport": {"width": width, "height": 900}, "color_scheme": scheme, "bypass_csp": True}


def violations(tab: Any, axe: str) -> list[str]:
    tab.evaluate(axe)
    found = tab.evaluate("axe.run(document, {resultTypes: ['violations']})")["violations"]
    return [f"{each['id']}: {node['html'][:160]}" for each in found for node in each["nodes"][:3]]


def cut_off(tab: Any, inside: str) -> list[str]:
    """Elements of a selector that a reader cannot see whole, and whether the page scrolls sideways."""
    root = "document.documentElement"
    sideways = tab.evaluate(f"{root}.scrollWidth > {root}.clientWidth")
    return ["the page scrolls sideways"] * sideways + tab.evaluate(CUT_OFF, inside)
