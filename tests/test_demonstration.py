"""The demonstration: its runs, the choice of its settings, and its sentences for any result."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any
from xml.etree import ElementTree

import numpy as np
import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st

from reproduction import packed_rows
from rwalk import cli
from rwalk.cli import print_results, run_study
from rwalk.cli.command_options import how, says_what_to_learn
from rwalk.demonstration import guarded, story
from rwalk.demonstration import story as demonstration
from rwalk.demonstration.picture import LINE, _apart, picture
from rwalk.demonstration.story import Way
from rwalk.report.seed_summaries import summarise
from rwalk.studies.study_folder import Store

ROOT = Path(__file__).parent.parent
GUARDED = ROOT / "results" / "demonstration-guard.json"
LEFT = {"vanilla": 26.0, "ewc": 52.0, "ewc++": 61.0, "pi": 59.0, "rwalk": 55.0, "ridge": 97.0}


def made_up(left: Mapping[str, float], seeds: int = 3) -> list[Way]:
    """Methods that fall from 98 % to these percentages; NaN where every run stopped."""
    return [
        Way(method, np.tile(np.linspace(98, each, 5), (seeds, 1)), np.full(seeds, each))
        for method, each in left.items()
    ]


# ── files of the repository ───────────────────────────────────────────────────────────────────────────────


def test_every_strength_is_the_best_on_validation_data() -> None:
    """The rows of the choice are kept; all else in them is as in the demonstration."""
    scores: dict[str, dict[float, list[float]]] = {}
    ours = demonstration.runs()[0]
    for row in packed_rows.rows_of(ROOT / "results" / "demonstration-validation"):
        run = row.spec
        assert run.stream.validation == 0.2 and run.stream.permuted == ours.stream.permuted
        assert (run.training, run.network, run.stream.dataset) == (ours.training, ours.network, "digits")
        scores.setdefault(run.method, {}).setdefault(run.lam, []).append(row.single.A)
    assert scores.keys() == demonstration.LAMBDAS.keys()
    for method, tried in scores.items():
        means = {lam: fmean(each) for lam, each in tried.items()}
        best = max(means, key=lambda lam: means[lam])
        assert demonstration.LAMBDAS[method] == best
        assert min(tried) < best < max(tried), f"{method}: the best λ is at the edge of those tried"


@pytest.mark.slow
def test_the_guard_of_the_demonstration_ends_where_the_file_kept_says() -> None:
    """Another machine rounds otherwise, so the accuracies after the last task agree roughly."""
    kept = np.asarray(guarded.read(GUARDED)["accuracies"])
    again = guarded.accuracies(demonstration.runs()[0].stream.build(), seed=0)
    assert np.abs(again - kept[0])[-1].mean() < 0.05


@pytest.mark.parametrize("content", [b"", b"[]", b'{"accuracies": [1]}'])
def test_a_damaged_file_of_the_guard_is_measured_again(small: Path, content: bytes) -> None:
    told: list[str] = []
    (small / guarded.FILE).write_bytes(content)
    first = guarded.way(small, told.append)
    assert told and first.first.shape == (1, 5)
    assert np.array_equal(guarded.way(small, lambda line: pytest.fail(line)).first, first.first)


def test_the_readme_says_and_shows_what_the_rows_kept_say() -> None:
    rows = packed_rows.rows_of(ROOT / "results" / "demonstration")
    assert demonstration.are_all_in(rows)
    ways = story.ways(summarise(rows))
    ways.insert(-1, guarded.way_of(guarded.read(GUARDED)["accuracies"]))
    readme = " ".join((ROOT / "README.md").read_text().split())
    assert story.sentence(ways) in readme
    assert (ROOT / "docs" / "demonstration.svg").read_text() == picture(ways)


# ── the sentence ──────────────────────────────────────────────────────────────────────────────────────────

NAN = float("nan")
PROTECTED = ("ewc", "ewc++", "pi", "rwalk")
SENTENCES = {
    "26 % of the time without protection, 52 to 61 % with EWC, EWC++, PI or RWalk, and 97 % in closed form": {},
    "26 % of the time without protection, 14 to 20 % with EWC, EWC++, PI or RWalk, and 9 % in closed form": {
        **dict.fromkeys(PROTECTED, 20.0),
        "pi": 14.0,
        "ridge": 9.0,
    },
    "26 % of the time without protection, 40 % with EWC, EWC++, PI or RWalk, and 97 % in closed form": {
        **dict.fromkeys(PROTECTED, 40.2)
    },
    "26 % of the time without protection, 55 to 61 % with EWC++ or RWalk, and 97 % in closed form": {
        "ewc": NAN,
        "pi": NAN,
    },
    "26 % of the time without protection and 97 % in closed form": dict.fromkeys(PROTECTED, NAN),
    "52 to 61 % with EWC, EWC++, PI or RWalk": {"vanilla": NAN, "ridge": NAN},
}


@pytest.mark.parametrize("said", SENTENCES)
def test_the_sentence_is_made_of_the_numbers(said: str) -> None:
    ways = made_up(LEFT | SENTENCES[said])
    assert story.sentence(ways) == f"After five tasks the first is recognised {said}."


def test_when_nothing_came_to_its_end_the_sentence_says_so() -> None:
    ways = made_up(dict.fromkeys(LEFT, NAN))
    assert story.sentence(ways) == "No run finished, so there is no result."
    ElementTree.fromstring(picture(ways))


# ── the picture ───────────────────────────────────────────────────────────────────────────────────────────


def test_every_line_bears_its_name_and_none_covers_another() -> None:
    drawn = ElementTree.fromstring(picture(made_up(LEFT | {"pi": NAN})))
    texts = {each.text: each for each in drawn.findall(".//{*}text")}
    names = ["no protection 26 %", "EWC 52 %", "EWC++ 61 %", "RWalk 55 %", "closed form 97 %"]
    assert set(names) <= set(texts) and not any(text and text.startswith("PI") for text in texts)
    heights = sorted(float(texts[name].attrib["y"]) for name in names)
    assert min(np.diff(heights)) >= LINE - 0.2  # heights are written with one decimal
    assert len(drawn.findall(".//{*}polyline")) == len(drawn.findall(".//{*}polygon")) == len(names)
    best = min(names, key=lambda name: float(texts[name].attrib["y"]))
    assert best == "closed form 97 %", "the higher, the better"


@given(st.lists(st.floats(0, 400), max_size=8).map(sorted))
def test_names_are_moved_apart_and_stay_in_order(heights: list[float]) -> None:
    moved = _apart(heights)
    assert all(below - above >= LINE - 1e-9 for above, below in pairwise(moved))
    assert sum(moved) == pytest.approx(sum(heights))
    if all(below - above >= LINE for above, below in pairwise(heights)):
        assert moved == pytest.approx(heights), "nothing is moved without need"


# ── the command ───────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same demonstration, of one epoch and one seed, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(demonstration, "EPOCHS", 1)
    monkeypatch.setattr(demonstration, "SEEDS", 1)
    monkeypatch.setitem(demonstration.SETTINGS, "ridge", {"features": "vectors", "size": 20})
    return tmp_path


def rwalk(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[str, str]:
    monkeypatch.setattr(sys, "argv", ["rwalk", *words])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    said = capsys.readouterr()
    assert not ended.value.code, said.err
    return said.out, said.err


def test_run_without_options_demonstrates_and_what_it_proposes_works(
    small: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(print_results, "this_program", lambda: ["rwalk"])
    out, err = rwalk(monkeypatch, capsys, "run", "--workers=1")
    assert "a demonstration of 5 tasks" in err and max(map(len, err.splitlines())) <= 80
    (study,) = Path("rwalk-studies").iterdir()
    ways = story.ways(summarise(Store(study).rows()))
    ways.insert(-1, guarded.way(study, lambda line: pytest.fail(f"it is in the folder, but: {line}")))
    flat = " ".join(out.split())
    assert story.sentence(ways) in flat and "chosen on held-out training data" in flat
    for way in ways:
        curve = " ".join(f"{each:.0f}" for each in way.curve)
        assert f"{way.name} {curve} " in flat
    assert (study / "demonstration.svg").read_text() == picture(ways)
    assert str(study / "demonstration.svg") in out
    proposed = [shlex.split(line, comments=True) for line in out.splitlines() if line.startswith("  rwalk ")]
    assert len(proposed) == 3 and ["rwalk", "report", str(study)] in proposed
    monkeypatch.setattr(run_study, "run_and_show", lambda study, *_, **__: study.prepare())  # minutes otherwise
    for words in proposed:
        rwalk(monkeypatch, capsys, *words[1:])
    assert (study / "report.html").exists()


def context_of(command: Any, words: list[str]) -> Any:
    return command.make_context("run", words, resilient_parsing=True)


def test_options_about_how_a_study_runs_do_not_end_the_demonstration() -> None:
    """All options of `rwalk resume` count as `how`, and so does a new option made with `how`."""
    commands = typer.main.get_command(cli.app).commands  # type: ignore[attr-defined]
    resumed = {each.name for each in commands["resume"].params}
    seen = 0
    for each in context_of(commands["run"], []).command.params:
        words = [each.opts[-1]] if each.is_flag else [each.opts[-1], "1"]
        says = says_what_to_learn(context_of(commands["run"], words))
        assert says == (each.name not in {*resumed, "join", "out"}), each.name
        seen += not says
    assert seen == 8 and not says_what_to_learn(context_of(commands["run"], []))

    app = typer.Typer()

    @app.command()
    def run(loud: Annotated[bool, how("--loud")] = False, seeds: int = 5) -> None:
        pass

    new = typer.main.get_command(app)
    assert not says_what_to_learn(context_of(new, ["--loud"]))
    assert says_what_to_learn(context_of(new, ["--loud", "--seeds", "5"]))


def test_without_the_extra_no_report_is_proposed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(print_results, "find_spec", lambda name: None)
    commands = [command for command, _ in print_results._next(Path("study"))]
    assert len(commands) == 3 and commands[0] == ["resume", "study"]


def test_the_demonstration_is_shown_again_without_training(
    small: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    first, _ = rwalk(monkeypatch, capsys, "run", "--workers=1", "--quiet", "--out=here")
    assert "After five tasks" in " ".join(first.split())
    again, _ = rwalk(monkeypatch, capsys, "resume", "here")
    assert again == first
    out, _ = rwalk(monkeypatch, capsys, "run", "--quiet", "--json", "--out=here")
    assert out.startswith('{"rows"')


@pytest.mark.parametrize("options", [["--seeds=1"], ["--dataset=digits"], ["--quiet", "--lr=0.1"]])
def test_an_option_that_says_what_to_learn_makes_a_study(
    options: list[str], small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[int] = []
    monkeypatch.setattr(run_study, "run_and_show", lambda study, *_, **__: begun.append(len(study.runs)))
    monkeypatch.setattr(sys, "argv", ["rwalk", "run", *options])
    with pytest.raises(SystemExit):
        cli.main()
    assert begun == [5 if "--seeds=1" in options else 25]


def test_the_commands_proposed_start_this_very_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / ".venv" / "bin" / "rwalk"
    script.parent.mkdir(parents=True)
    script.touch(mode=0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [str(script)])
    monkeypatch.setenv("PATH", "/nowhere")
    assert print_results.this_program() == [".venv/bin/rwalk"]
    monkeypatch.setenv("PATH", str(script.parent))
    assert print_results.this_program() == ["rwalk"]
    monkeypatch.setattr(sys, "argv", [str(ROOT / "src" / "rwalk" / "__main__.py")])
    assert print_results.this_program() == [sys.executable, "-m", "rwalk"]


def test_colours_do_not_hide_what_is_written(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without a terminal there are no escape codes."""
    from rich.console import Console

    Console().print(print_results.table_of_ways(made_up(LEFT | {"rwalk": NAN})))
    out = capsys.readouterr().out
    assert "\x1b" not in out and re.search(r"RWalk +– ", out)
