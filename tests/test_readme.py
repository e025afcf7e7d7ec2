"""The README is short, its links lead somewhere, its code runs when pasted, and its figures have sources."""

from __future__ import annotations

import re
import shlex
import sys
from datetime import date, datetime
from pathlib import Path

import pytest

import rwalk
from rwalk import cli

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


def test_it_can_be_read_in_one_go() -> None:
    assert len(README.splitlines()) <= 90


def test_its_links_lead_somewhere() -> None:
    for link in re.findall(r"\]\(([^)#]+)[^)]*\)", README):
        assert link.startswith("http") or (ROOT / link).exists(), link


def test_every_kind_of_block_is_run_by_a_test() -> None:
    assert [language for language, _ in BLOCKS] == ["console", "python", "python", "bash"]


@pytest.mark.parametrize("code", [code for language, code in BLOCKS if language == "python"])
def test_a_block_of_python_runs_when_it_is_pasted(
    code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "README.md", "exec"), {"__name__": "__main__"})
    assert capsys.readouterr().out.strip()


def test_its_commands_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RWALK_CACHE", str(tmp_path / "cache"))
    for command in dict(BLOCKS)["bash"].splitlines():
        words = shlex.split(command)
        monkeypatch.setattr(sys, "argv", words + ["--workers=1"] * (words[1] == "run"))
        with pytest.raises(SystemExit) as ended:
            cli.main()
        assert not ended.value.code, command
    assert (tmp_path / "study" / "report.html").exists()


def test_its_make_targets_are_in_the_makefile() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"make (\w+)", README):
        assert f"\n{target}: " in makefile


def test_the_release_has_one_version() -> None:
    assert f"\nversion: {rwalk.__version__}\n" in (ROOT / "CITATION.cff").read_text()
    released = re.search(r"^date-released: (.*)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)
    newest = re.search(r"^## (\S+), (\d+ \w+ \d+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert released and newest and newest[1] == rwalk.__version__
    assert datetime.strptime(newest[2], "%d %B %Y").date() == date.fromisoformat(released[1])


# The second cell of a row of its table → the pages that its figures are taken from, in the row's last cell.
ROWS = [line for line in README.splitlines() if line.startswith("| ") and "](" in line]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[2:30])
def test_the_figures_of_its_table_stand_on_the_pages_that_it_names(row: str) -> None:
    _, what, where = row.strip("| ").split(" | ")
    pages = [(ROOT / link).read_text(encoding="utf-8") for link in re.findall(r"\]\(([^)#]+)", where)]
    figures = re.findall(r"(?<![\w.])\d+(?:\.\d+|e-\d+)?", what)
    for figure in figures:
        assert any(re.search(rf"(?<![\d.]){re.escape(figure)}(?!\.?\d)", page) for page in pages), figure


# Sentences with figures that are measured for another page: the page, the sentence, the other page.
LANGUAGE_PAGE = "docs/howto/fine-tune-a-language-model.md"
TIED = [
    ("docs/guard.md", "on an H200 takes 1.11 times", "docs/guard-parameters.md"),
    ("docs/class-incremental.md", "the default of 800 ends at 54.2 %", "docs/classifier.md"),
    ("docs/class-incremental.md", "after 329 s of processor time", "docs/closed-form.md"),
    ("docs/methods/gem.md", "it reached 67.1, iCaRL 62.2 and RWalk 60.7", "docs/results-appendix.md"),
    ("docs/methods/gem.md", "in the batches (74.6, with RWalk or without)", "docs/results-appendix.md"),
    ("docs/howto/lost-which-skills.md", "loss is 0.26 nats higher than with a guard", "docs/language-models.md"),
    (LANGUAGE_PAGE, "drift is 0.039 nats instead of 0.302", "docs/language-models.md"),
    (LANGUAGE_PAGE, "loss 2.530 instead of 2.523", "docs/language-models.md"),
    (LANGUAGE_PAGE, "takes 1.06 to 1.17 times", "docs/language-models.md"),
    ("docs/closed-form.md", "The 60.1 % of CIFAR-100 with 4,000 patches", "docs/classifier.md"),
]


@pytest.mark.parametrize(("page", "sentence", "source"), TIED)
def test_figures_of_a_sentence_stand_where_they_were_measured(page: str, sentence: str, source: str) -> None:
    assert sentence in " ".join((ROOT / page).read_text(encoding="utf-8").split())
    measured = (ROOT / source).read_text(encoding="utf-8")
    for figure in re.findall(r"\d+\.\d+|\d+(?= s )", sentence):
        assert re.search(rf"(?<![\d.]){re.escape(figure)}(?!\.?\d)", measured), figure


def test_its_table_has_rows() -> None:
    assert len(ROWS) == 4
