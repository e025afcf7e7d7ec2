"""The site's structure, without Sphinx: links and anchors lead somewhere, nothing is missing, figures are ours."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import sys
from functools import cache
from pathlib import Path

import pytest
from docutils.utils.math.latex2mathml import tex2mathml

import rwalk

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
BUILT = ("gallery/", "api/generated/")  # made by `make docs`
PAGES = sorted(page for page in DOCS.rglob("*.md") if not page.relative_to(DOCS).as_posix().startswith(BUILT))
OUTSIDE = [*sorted(ROOT.glob("*.md")), ROOT / "benchmarks" / "README.md"]
ORPHAN = "---\norphan: true\n---\n"  # a page outside the navigation
LINK = re.compile(r"\]\(([^)\s]+)\)")

sys.path.insert(0, str(DOCS / "_extensions"))
from plain_docstrings import plain  # noqa: E402
from repository_links import on_the_site  # noqa: E402


def name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def prose(page: Path) -> str:
    """Without blocks of code, in which brackets are no links and # is no heading."""
    text = page.read_text(encoding="utf-8").removeprefix(ORPHAN)
    return re.sub(r"^(`{3,}).*?^\1`*$", "", text, flags=re.MULTILINE | re.DOTALL)


def slug(heading: str) -> str:
    """The anchor that GitHub and MyST give a heading."""
    words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
    return re.sub(r"[^\w\- ]", "", words).replace(" ", "-")


@cache
def sections(page: Path) -> dict[str, str]:
    """A page's sections by their anchors, each with the text up to the next heading of its level or above."""
    text = prose(page)
    headings = [(len(found[1]), found.start(), found[2]) for found in re.finditer(r"^(#+) (.+)$", text, re.M)]
    ends = [
        next((start for level, start, _ in headings[number + 1 :] if level <= mine), len(text))
        for number, (mine, _, _) in enumerate(headings)
    ]
    return {slug(title): text[start:end] for (_, start, title), end in zip(headings, ends, strict=True)}


EQUATION = re.compile(r"\$\$(.+?)\$\$|(?<![\w$\\])\$([^$\s](?:[^$\n]*[^$\s])?)\$(?![\w$])", re.S)


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_equation_can_be_shown(page: Path) -> None:
    """By what `make docs` turns it into MathML with, which knows less than LaTeX."""
    for block, inline in EQUATION.findall(re.sub(r"`[^`\n]*`", "", prose(page))):
        assert tex2mathml(block or inline).startswith("<math")


def entries(page: Path) -> set[Path]:
    """What a page's tables of contents list."""
    blocks = re.findall(r"^```\{toctree\}\n(.*?)^```$", page.read_text(encoding="utf-8"), re.M | re.S)
    listed = [line for block in blocks for line in block.splitlines() if line and not line.startswith(":")]
    return {page.parent / f"{entry}.md" for entry in listed}


def reachable(page: Path) -> set[Path]:
    found = {page}
    for entry in entries(page):
        if not entry.relative_to(DOCS).as_posix().startswith(BUILT):
            assert entry.exists(), f"{name(page)} lists {entry.stem}, which is not there"
            found |= reachable(entry)
    return found


@pytest.mark.parametrize("page", [*OUTSIDE, *PAGES], ids=name)
def test_links_lead_somewhere(page: Path) -> None:
    for link in LINK.findall(prose(page)):
        if "://" in link or link.startswith("mailto:"):
            continue
        target, _, anchor = link.partition("#")
        file = (page.parent / target).resolve() if target else page
        assert file.exists(), f"{name(page)} links to {link}"
        assert not anchor or anchor in sections(file), f"{name(page)} links to {link}: no such heading"


def test_every_page_can_be_reached_from_the_first_one() -> None:
    lab_notes = {page for page in PAGES if page.read_text(encoding="utf-8").startswith(ORPHAN)}
    assert len(lab_notes) == 1 and reachable(DOCS / "index.md") == set(PAGES) - lab_notes


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_a_page_has_one_title_and_says_what_it_is_about(page: Path) -> None:
    titles = re.findall(r"^# .+$", prose(page), re.MULTILINE)
    assert len(titles) == 1 and prose(page).lstrip().startswith(titles[0])


GENERATED = {"results-appendix.md", "yardsticks.md"}  # tables of all results


@pytest.mark.parametrize("page", [each for each in PAGES if each.name not in GENERATED], ids=name)
def test_page_can_be_read_in_one_go(page: Path) -> None:
    assert len(page.read_text(encoding="utf-8").splitlines()) <= 200


def test_everything_public_has_a_page() -> None:
    listed = set(re.findall(r"^   (\S+)$", (DOCS / "api" / "index.md").read_text(), re.MULTILINE))
    assert set(rwalk.__all__) <= listed, f"docs/api/index.md lacks {sorted(set(rwalk.__all__) - listed)}"


def test_every_name_of_the_api_page_can_be_imported() -> None:
    for listed in re.findall(r"^   (\w[\w.]*)$", (DOCS / "api" / "index.md").read_text(), re.MULTILINE):
        module, _, attribute = f"rwalk.{listed}".rpartition(".")
        if "lightning" not in module and "hub" not in module and "huggingface" not in module:  # extras
            assert hasattr(importlib.import_module(module), attribute), listed


@pytest.mark.parametrize("door", ["Guard", "IncrementalClassifier"])
def test_the_page_of_a_door_shows_every_public_method(door: str) -> None:
    """Methods without a docstring are left out by autodoc."""
    shown = getattr(rwalk, door)
    ours = [each for each in shown.__mro__ if each.__module__.startswith("rwalk")]
    names = {name for each in ours for name in vars(each) if not name.startswith("_")}
    members = [(name, getattr(shown, name)) for name in sorted(names)]
    assert not [name for name, each in members if callable(each) and not inspect.getdoc(each)]


def test_a_summary_is_a_whole_sentence() -> None:
    """The table of names ends a summary at the first full stop."""
    for name_ in rwalk.__all__:
        summary = (getattr(rwalk, name_).__doc__ or "").split("\n\n")[0]
        assert not re.search(r"\b(eq|e\.g|i\.e|cf|vs|fig)\.", summary), (
            f"the summary of {name_} is cut at an abbreviation"
        )


def test_every_command_is_shown() -> None:
    from rwalk.cli import app

    commands = {each.callback.__name__ for each in app.registered_commands if each.callback}
    shown = re.findall(r"^```\{command-help\} (\w+)$", (DOCS / "commands.md").read_text(), re.MULTILINE)
    assert set(shown) == commands and len(shown) == len(commands)


def test_an_example_can_be_downloaded_alone() -> None:
    names = {example.stem for example in EXAMPLES}
    for example in EXAMPLES:
        tree = ast.walk(ast.parse(example.read_text()))
        assert not [each for each in tree if isinstance(each, ast.ImportFrom) and each.module in names], (
            example.name
        )


@pytest.mark.parametrize("example", EXAMPLES, ids=name)
def test_an_example_begins_with_a_title(example: Path) -> None:
    """What the gallery asks for: a title, underlined, and a sentence about it."""
    title, underline, *about = (ast.get_docstring(ast.parse(example.read_text())) or "").splitlines()
    assert set(underline) == {"="} and len(underline) >= len(title)
    assert any(line.strip() for line in about)


def rows_with_figures() -> list[str]:
    table = sections(DOCS / "howto" / "which-method.md")["which-method-for-my-data"]
    return [row for row in table.splitlines() if row.startswith("|") and LINK.search(row) and _figures(row)]


def _figures(row: str) -> list[str]:
    without_links = LINK.sub("", row)
    return re.findall(r"(?<![\w.])(?:\d+\.\d+|\d+e-\d+)(?![\w.])", without_links)


@pytest.mark.parametrize("row", rows_with_figures(), ids=lambda row: row.split("|")[1].strip()[:40])
def test_figures_of_the_decision_table_stand_where_it_says(row: str) -> None:
    (link,) = LINK.findall(row.split("|")[-2])
    target, _, anchor = link.partition("#")
    page = (DOCS / "howto" / target).resolve()
    measured = sections(page)[anchor] if anchor else page.read_text()
    for figure in _figures(row):
        assert re.search(rf"(?<![\d.]){re.escape(figure)}(?!\d)", measured), (
            f"{figure} is not in {link} (any more?)"
        )


def test_the_decision_table_has_figures() -> None:
    assert len(rows_with_figures()) >= 10


def test_docstrings_become_restructured_text() -> None:
    """Aligned names become a list; a*_k and classes_ are no markup; code is left alone."""
    assert plain(
        ["What a* and `b*` are.", "", "lam    λ", "       or so", "alpha  α of classes_", "", ">>> f(*a)"]
    ) == [
        *("What a\\* and `b*` are.", ""),
        *("``lam``", "    λ", "    or so", "``alpha``", "    α of classes\\_", ""),
        ">>> f(*a)",
    ]


def test_links_into_the_repository_become_links_within_the_site() -> None:
    page = DOCS / "howto" / "x.md"
    text = "[a](../../RESULTS.md#figures) [b](../../examples/unlearn.py) [c](../guard.md) [d](https://e.org/f.md)"
    assert on_the_site(text, page.parent, page) == (
        "[a](/reproduction.md#figures) [b](/gallery/unlearn.rst) [c](../guard.md) [d](https://e.org/f.md)"
    )


def test_the_versions_that_build_the_site_are_pinned() -> None:
    import tomllib

    extra = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["docs"]
    wanted = {re.split(r"[<>=\[]", each)[0].lower().replace("_", "-") for each in extra} - {"rwalk"}
    pinned = {line.partition("==")[0].lower().replace("_", "-") for line in (ROOT / "constraints.txt").open()}
    assert len(wanted) >= 5 and wanted <= pinned


def test_every_method_and_parameter_has_a_page_that_is_up_to_date(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(DOCS / "_tools")
    from method_pages import PAGES as folder
    from method_pages import PARAMETERS, filled, parameters

    from rwalk.parts import parts

    assert {page.stem for page in folder.glob("*.md")} == {"index", *parts()}
    for method in (None, *parts()):
        page = folder / f"{method or 'index'}.md"
        text = page.read_text(encoding="utf-8")
        assert filled(text, method) == text, f"{name(page)} is out of date: python docs/_tools/method_pages.py"
    text = PARAMETERS.read_text(encoding="utf-8")
    assert parameters(text) == text, (
        "the classifier's parameters are out of date: python docs/_tools/method_pages.py"
    )


def test_a_methods_page_shows_its_figures_and_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every row of our tables that a method has, and none of another's; a method without any says so."""
    monkeypatch.syspath_prepend(DOCS / "_tools")
    from method_pages import NOT_YET, measured, settings

    figures = []
    for page, column in (("yardsticks.md", "ours"), ("results-appendix.md", "A ↑")):
        for line in (DOCS / page).read_text().splitlines():
            if line.startswith("| block |"):
                place = line.split(" | ").index(column)
            elif "| er |" in line and (figure := line.split(" | ")[place]) != "–":
                figures.append(figure)
    shown = [line.split(" | ")[1] for line in measured("er").splitlines() if "](" in line]
    assert sorted(shown) == sorted(figures) and len(shown) > 5
    assert measured("l2") == NOT_YET or "| l2 |" in (DOCS / "yardsticks.md").read_text()
    assert "| `lam` | 1 (proximal: 1000) | λ |" in settings("rwalk")
    assert settings("er") == "It has nothing to set."


def test_concepts_have_the_pictures_that_the_script_draws() -> None:
    script = ast.parse((DOCS / "_tools" / "pictures.py").read_text())
    (drawn,) = (
        each.value for each in script.body if isinstance(each, ast.AnnAssign) and each.target.id == "PICTURES"
    )
    names = {key.value for key in drawn.keys}
    folder = DOCS / "concepts"
    assert names == {picture.stem for picture in folder.glob("*.svg")}
    for picture in names:
        assert f"]({picture}.svg)" in (folder / f"{picture}.md").read_text()
        assert (folder / f"{picture}.svg").stat().st_size < 100_000
