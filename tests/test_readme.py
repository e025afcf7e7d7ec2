"""The README is short, its links lead somewhere, and its figures are those of the results."""

from __future__ import annotations

import re
from datetime import date, datetime
from pathlib import Path

import pytest

import rwalk

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
COLUMNS = ("vanilla", "ewc++", "pi", "rwalk")
# A row's beginning → the section of RESULTS.md that it is taken from, and the block of that section's table.
ROWS = {
    "MNIST, 5 tasks": ("Table 1, MNIST", "multi", ""),
    "MNIST, which": ("Table 1, MNIST", "samples", "-S"),
    "CIFAR-100, 10 tasks": ("Table 1, CIFAR-100", "multi", ""),
    "CIFAR-100, which": ("Table 1, CIFAR-100", "samples", "-S"),
}


def test_it_can_be_read_in_one_go() -> None:
    assert len(README.splitlines()) < 100


def test_its_links_lead_somewhere() -> None:
    for link in re.findall(r"\]\(([^)#]+)[^)]*\)", README):
        assert link.startswith("http") or (ROOT / link).exists(), link


@pytest.mark.parametrize("row", ROWS)
def test_its_table_is_that_of_the_results(row: str) -> None:
    title, block, suffix = ROWS[row]
    sections = (ROOT / "RESULTS.md").read_text().split("\n## ")
    (section,) = (each for each in sections if each.startswith(title))
    (line,) = (line for line in README.splitlines() if line.startswith(f"| {row}"))
    ours = [cell.strip(" *") for cell in line.strip("|").split("|")][1:]
    found = {}
    for each in section.splitlines():
        cells = [cell.strip() for cell in each.strip("|").split("|")]
        if cells[0] == block:
            found[cells[1]] = cells[5].split(" ± ")[0]
    assert ours == [found[method + suffix] for method in COLUMNS]
    bold = [cell for cell in line.split("|") if "**" in cell]
    assert {cell.strip(" *") for cell in bold} == {max(ours, key=float)}, "the best is marked, and nothing else"


def test_the_release_has_one_version() -> None:
    assert f"\nversion: {rwalk.__version__}\n" in (ROOT / "CITATION.cff").read_text()
    released = re.search(r"^date-released: (.*)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)
    newest = re.search(r"^## (\S+), (\d+ \w+ \d+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert released and newest and newest[1] == rwalk.__version__
    assert datetime.strptime(newest[2], "%d %B %Y").date() == date.fromisoformat(released[1])


def test_what_it_says_of_the_closed_form_is_what_its_page_says() -> None:
    page = (ROOT / "docs" / "classifier.md").read_text()
    said = README[README.index("`IncrementalClassifier()` in closed form") :].split("\n\n")[0]
    for figure in re.findall(r"\d\d\.\d", said):
        assert figure in page
