"""docs/reliability.md: every test that it cites exists, in the file that it names."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
PAGE = TESTS.parent / "docs" / "reliability.md"
NAMED = re.compile(r"[a-z0-9]+(?:_[a-z0-9]+)+…?(?:\[[^\]]*\])?|[a-z0-9_]*…[a-z0-9_]+")


@cache
def known_tests() -> dict[str, set[str]]:
    found = {}
    for path in TESTS.rglob("test_*.py"):
        nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        names = {node.name.removeprefix("test_") for node in nodes if isinstance(node, ast.FunctionDef)}
        found[path.relative_to(TESTS).as_posix()] = names
    return found


def cited() -> Iterator[tuple[str, str]]:
    """Every cited test, and the file cited last before it in the same cell; none where none is named."""
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        if not line.startswith("| ") or line.startswith("| promise"):
            continue
        file = ""
        for token in re.findall(r"`([^`]+)`", line.rsplit(" | ", 1)[-1]):
            if re.fullmatch(r"(?:\w+/)?test_\w+\.py", token):
                file = token
            elif NAMED.fullmatch(token):
                yield file, token


CITED = sorted(set(cited()))


def test_the_page_cites_tests() -> None:
    assert len(CITED) > 80


@pytest.mark.parametrize(("file", "name"), CITED)
def test_a_cited_test_exists(file: str, name: str) -> None:
    known = known_tests()
    assert not file or file in known, f"there is no tests/{file}"
    names = known[file] if file else set().union(*known.values())
    pattern = ".*".join(map(re.escape, name.partition("[")[0].split("…")))
    if any(re.fullmatch(pattern, each) for each in names):
        return
    elsewhere = [place for place, each in known.items() if any(re.fullmatch(pattern, one) for one in each)]
    raise AssertionError(f"no test {name} in {file or 'tests'}; it may be in {', '.join(elsewhere) or 'no file'}")
