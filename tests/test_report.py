"""The report: reading, grouping, verdicts, and the page as text."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from html.parser import HTMLParser
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from command_line import Rwalk
from reports import HOSTILE, Row, hostile_page, made_row, made_rows, records, write_rows, write_study
from rwalk.cli import app
from rwalk.data.memory import MemorySpec
from rwalk.errors import InputError
from rwalk.report import method_colours, page_data, result_folders
from rwalk.report.html_page import render, write_report
from rwalk.report.seed_summaries import summarise
from rwalk.report.welch_test import Mean, holm
from rwalk.studies import Study
from rwalk.studies.specs import RunSpec, StreamSpec
from rwalk.studies.study_folder import Store
from rwalk.training import Training
from test_escaping import HOSTILE as HOSTILE_NAMES

# ── reading ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_real_study_is_read_whole(tmp_path: Path) -> None:
    runs = tuple(RunSpec(method=name, training=Training(steps=2)) for name in ("vanilla", "rwalk"))
    study = Study(runs, reference="none", workers=1)
    with Store(tmp_path / "study").opened(study.describe()) as store:
        rows = study.execute(store)
    found = result_folders.read(tmp_path / "study")
    assert [row.hash for row in found.rows] == [row.hash for row in rows]
    assert found.environments[0]["torch"]
    page = write_report([tmp_path / "study"]).read_text()
    assert page.count("<title>No protection and RWalk on digits · rwalk</title>") == 1
    assert found.environments[0]["torch"] in page
    assert "2 runs · 2 configurations · 1 seed<" in page
    write_rows(tmp_path / "study" / "runs.jsonl", [rows[0].to_json()])
    assert (
        "1 run · 1 configuration · 1 seed · unfinished: 1 more to run<"
        in write_report([tmp_path / "study"]).read_text()
    )


def test_a_folder_may_hold_many_files_or_many_studies(tmp_path: Path) -> None:
    rows = made_rows()
    write_rows(tmp_path / "files" / "mnist.jsonl", rows[:6])
    write_rows(tmp_path / "files" / "cifar.jsonl", rows[4:])
    write_rows(tmp_path / "studies" / "a" / "runs.jsonl", rows[:6])
    write_rows(tmp_path / "studies" / "b" / "runs.jsonl", rows[6:])
    (tmp_path / "studies" / "notes").mkdir()
    (tmp_path / "studies" / "notes" / "rows.jsonl").write_text("{}\n")  # not a study's
    wanted = {row["hash"] for row in rows}
    for folder in ("files", "studies"):
        found = result_folders.read(tmp_path / folder).rows
        assert {row.hash for row in found} == wanted and len(found) == len(wanted)  # no run counts twice


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (None, "no finished run"),
        ("", "no finished run"),
        ("{broken\n{}\n", "not a JSON"),
        ('{"hash": "a"}\n', "is not a result of a run"),
        ("[1, 2]\n", "is not a result of a run"),
    ],
)
def test_what_cannot_be_read_is_said(tmp_path: Path, content: str | None, complaint: str) -> None:
    if content is not None:
        (tmp_path / "runs.jsonl").write_text(content)
    with pytest.raises(InputError, match=complaint) as caught:
        result_folders.read(tmp_path)
    assert "\n" not in str(caught.value)


def test_a_row_of_the_wrong_form_is_refused(tmp_path: Path) -> None:
    for spoil in (
        lambda row: row["accuracy"].update(single=[[0.5, 0.5]]),
        lambda row: row["accuracy"].update(single=[[0.5], [0.5, 0.6]]),
        lambda row: row["accuracy"].update(single=[[0.5]]),
        lambda row: row.update(method=7),
        lambda row: row["spec"].update(strange=1),
        lambda row: row["multi"].update(I="high"),
    ):
        row = made_rows()[0]
        spoil(row)
        write_rows(tmp_path / "runs.jsonl", [row])
        with pytest.raises(InputError, match="not a result of a run"):
            result_folders.read(tmp_path)


@pytest.mark.parametrize(("name", "cure"), [("runs", "`rwalk resume {}` trains that run again"), ("mine", "")])
def test_a_torn_last_line_is_left_out_and_said_so(
    name: str, cure: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows = made_rows()[:2]
    file = tmp_path / f"{name}.jsonl"
    write_rows(file, rows[:1])
    file.write_text(file.read_text() + json.dumps(rows[1])[:50])
    assert [row.hash for row in result_folders.read(tmp_path).rows] == [rows[0]["hash"]]
    (said,) = caplog.messages
    assert said.startswith(f"{file} ends in the middle of a row, which is left out")
    assert said.endswith(cure.format(tmp_path))
    caplog.clear()
    write_rows(file, rows)
    assert len(result_folders.read(tmp_path).rows) == 2 and not caplog.messages


def test_a_stopped_run_without_a_strength_shows_none() -> None:
    page = render([result_folders.Results(records([row for row in made_rows() if row["stopped"]]))], "title")
    assert re.search(r"<td>no protection</td><td class=\"number\">–</td>", page)


# ── grouping ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_section_holds_what_can_be_compared() -> None:
    rows = made_rows()
    one, other = page_data.sections(summarise(records(rows)))
    assert one["title"] == "digits" and other["title"] == HOSTILE
    assert len(one["configurations"]) == 12
    vanilla = one["configurations"][0]
    assert vanilla["label"] == "no protection" and vanilla["memory"] == "none" and vanilla["seeds"] == [0, 1, 2]
    assert vanilla["single"]["A"][2] is None  # it was stopped
    sizes = {f"{m} per class, {sampler}" for m in (5, 10) for sampler in ("mean of features", "at random")}
    assert {each["memory"] for each in one["configurations"]} == {"none", *sizes}


def test_networks_and_numbers_of_tasks_are_not_mixed() -> None:
    base = RunSpec()
    rows = [made_row(base), made_row(replace(base, network="cnn")), made_row(replace(base, seed=1), tasks=4)]
    rows[2]["spec"]["seed"] = 1
    found = page_data.sections([*summarise(records(rows[:2])), *summarise(records(rows[2:]))])
    assert [(section["facts"][1], section["tasks"]) for section in found] == [
        ("network mlp", 3), ("network cnn", 3), ("network mlp", 4)]  # fmt: skip


def test_settings_are_told_where_they_differ() -> None:
    base = RunSpec(training=Training(epochs=2))
    longer = replace(base, training=Training(steps=100))
    tuned = replace(base, method="rwalk", numbers={"lam": 1.0, "alpha": 0.5})
    default = replace(base, method="rwalk", numbers={"lam": 1.0})
    kept = replace(base, method="rwalk", numbers={"lam": 1.0}, memory=MemorySpec(per_class=5))

    def told(*runs: RunSpec) -> list[str]:
        (section,) = page_data.sections(summarise(records([made_row(run) for run in runs])))
        return [each["settings"] for each in section["configurations"]]

    assert told(base, default, kept) == ["", "", ""]
    assert told(base, longer) == ["2 epochs", "100 steps"]
    assert told(base, tuned, default) == ["", "alpha 0.5", ""]


def test_no_two_configurations_have_the_same_name() -> None:
    beside = MemorySpec(total=20, sampler="reservoir", replay="beside")
    base = RunSpec(method="er", memory=beside)
    others = [replace(base, memory=replace(beside, beside=3)), replace(base, calibration=True)]
    others += [replace(base, measure_every=1), replace(base, autocast=True), replace(base, dtype="float64")]
    (section,) = page_data.sections(summarise(records([made_row(run) for run in (base, *others)])))
    names = [(each["label"], each["memory"], each["settings"]) for each in section["configurations"]]
    assert len(set(names)) == len(names)


def test_a_method_has_one_colour_whatever_it_is_shown_with() -> None:
    rows = made_rows()
    everywhere = {each["id"]: each["colour"] for each in page_data.methods(summarise(records(rows)))}
    alone = page_data.methods(summarise(records([row for row in rows if row["method"] == "rwalk"])))
    assert alone == [{"id": "rwalk", "name": "RWalk", "colour": everywhere["rwalk"], "symbol": alone[0]["symbol"]}]
    assert len(set(everywhere.values())) == len(everywhere)
    usual = method_colours.palette_places(method_colours.OWNERS)
    assert len(set(usual.values())) == len(usual) == len(method_colours.PALETTE), "among them closed form and PI"
    assert (
        len(set(method_colours.palette_places(["mas", "l2", "own:Part", *method_colours.OWNERS[:9]]).values()))
        == 12
    )


# ── verdicts ────────────────────────────────────────────────────────────────────────────────────────────────────


def scored(accuracies: dict[str, list[float]], memory: MemorySpec | None = None) -> list[Row]:
    """Rows of methods with one accuracy on all tasks, seed by seed."""
    rows = []
    for method, values in accuracies.items():
        for seed, value in enumerate(values):
            row = made_row(RunSpec(StreamSpec("digits"), method=method, memory=memory, seed=seed))
            flat = [[value if j <= k else None for j in range(3)] for k in range(3)]
            measures = {"A": value, "F": 0.0, "I": None}
            measured = {"single": measures, "multi": measures}
            row["reference"] = {"single": [None] * 3, "multi": [None] * 3}
            rows.append({**row, "accuracy": {"single": flat, "multi": flat}, **measured})
    return rows


def said(rows: list[Row]) -> str:
    (section,) = page_data.sections(summarise(records(rows)))
    verdict = section["verdicts"]["single"]
    return " ".join([verdict["headline"], *verdict["details"]]).replace("\u00a0", " ")


SPREAD = [-0.01, 0.0, 0.01, 0.005, -0.005]


def around(middle: float, scale: float = 1.0) -> list[float]:
    return [middle + scale * each for each in SPREAD]


def test_the_verdict_names_who_is_ahead_by_more_than_chance() -> None:
    found = said(scored({"vanilla": around(0.6), "pi": around(0.7), "rwalk": around(0.8, 2)}))
    assert found.startswith("RWalk is ahead of both others by more than chance: 80.0 % on average over 3 tasks, ")
    assert "10.0 points more than PI." in found and "corrected for 2 comparisons" in found
    assert "Training without protection reaches 60.0 %, 20.0 points less (p < 0.001)." in found
    interval = stats.ttest_ind(np.array(around(80, 200)), np.array(around(70, 100)), equal_var=False)
    low, high = interval.confidence_interval(0.95)
    assert f"10.0 points ± {(high - low) / 2:.1f} with 95 % confidence" in found


LEVEL, CLEAR = around(0.702), around(0.4)


@pytest.mark.parametrize(
    ("accuracies", "words"),
    [
        ({"pi": around(0.7), "rwalk": LEVEL}, "but its lead over PI (70.0 %) may be chance. No difference"),
        ({"vanilla": CLEAR, "pi": around(0.7), "rwalk": LEVEL}, "The others are behind by more than"),
        (
            {"vanilla": [0.5], "rwalk": [0.9]},
            "40.0 points more than no protection: with a single seed",
        ),
        ({"rwalk": LEVEL}, "there is nothing to compare it with"),
        ({"rwalk": LEVEL, "pi": CLEAR, "joint": around(0.9)}, "RWalk is ahead of the other by more than"),
        ({"rwalk": LEVEL, "pi": CLEAR, "joint": around(0.9)}, "(joint training) reaches 90.0 %: the ceiling"),
        ({"joint": around(0.9)}, "Only joint training was run."),
    ],
)
def test_the_verdict_claims_no_more_than_the_seeds_show(accuracies: dict[str, list[float]], words: str) -> None:
    assert words in said(scored(accuracies))


def test_the_verdict_compares_like_with_like() -> None:
    """A method with ten times the memory is not ahead by merit: the memory that most methods had is compared."""
    rows = scored({"rwalk": around(0.9)}, MemorySpec(100)) + scored({"rwalk": around(0.6)}, MemorySpec(50))
    rows += scored({"vanilla": around(0.5), "rwalk": around(0.7)}, MemorySpec(10))
    found = said(rows)
    assert found.startswith("RWalk with exemplars is ahead of the other by more than chance: 70.0 %")
    assert "(all with exemplars, 10 per class, mean of features)" in found
    assert "Training without protection, with as many exemplars, reaches 50.0 %" in found


def test_chance_is_welchs_and_the_correction_is_holms() -> None:
    draw = np.random.default_rng(0)
    for _ in range(20):
        one, other = draw.normal(0, 1, 5), draw.normal(1, draw.uniform(0.1, 5), 7)
        expected = stats.ttest_ind(one, other, equal_var=False).pvalue
        assert (Mean.over(one) - Mean.over(other)).chance == pytest.approx(expected, rel=1e-9)
    assert (Mean.over(np.array([1.0])) - Mean.over(one)).chance == 1.0  # a single seed decides nothing
    samples = [draw.normal(0, draw.uniform(0.1, 9), size) for size in (2, 3, 5, 30)] + [np.ones(3), np.zeros(1)]
    for one, other in combinations(samples, 2):
        difference = Mean.over(one) - Mean.over(other)
        assert difference.value == pytest.approx(one.mean() - other.mean())
        if len(other) == 1:
            assert difference.chance == 1.0 and np.isnan(difference.reach)
            continue
        welch = stats.ttest_ind(one, other, equal_var=False)
        low, high = welch.confidence_interval(0.95)
        assert difference.chance == pytest.approx(welch.pvalue, rel=1e-9)
        assert difference.reach == pytest.approx((high - low) / 2, rel=1e-9)
    p = sorted(draw.uniform(0, 0.2, 6))
    running = [min(1.0, each * (6 - rank)) for rank, each in enumerate(p)]
    assert holm(p) == pytest.approx([max(running[: rank + 1]) for rank in range(6)])


# ── files beside the rows ────────────────────────────────────────────────────────────────────────────────────────


def test_losses_and_commands_are_kept_and_shown(
    tmp_path: Path, rwalk: Rwalk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows do not contain them, and are the same without them."""
    options = [
        "--methods=vanilla,rwalk",
        "--seeds=1",
        "--steps=8",
        "--memory=2",
        "--reference=none",
        "--workers=1",
    ]
    monkeypatch.chdir(tmp_path)
    assert rwalk("run", *options, "--quiet", "--out", "one").code == 0
    found = result_folders.read(tmp_path / "one")
    _, walked = (row.hash for row in found.rows)
    assert [step for step, _ in found.losses(walked)] == list(range(1, 41))  # eight steps, five tasks
    assert found.commands == (f"rwalk run {' '.join(options)} --quiet --out one",)
    page = render([found], "title").replace("&#34;", '"')
    assert found.commands[0] in page and '"losses":{"step":[1,' in page
    study = Study(tuple(row.spec for row in found.rows), reference="none", workers=1)
    assert study.execute() == found.rows


# ── several studies ──────────────────────────────────────────────────────────────────────────────────────────────


def test_several_studies_are_compared_row_by_row(tmp_path: Path) -> None:
    for name, middle in (("before", 0.6), ("after", 0.8)):
        write_rows(tmp_path / name / "runs.jsonl", scored({"vanilla": around(0.5), "rwalk": around(middle)}))
    page = write_report([tmp_path / "before", tmp_path / "after"], tmp_path / "both.html").read_text()
    assert "<title>No protection and RWalk on digits · rwalk</title>" in page
    assert "20 runs · 4 configurations" in page
    assert "RWalk (after) is ahead of all 3 others by more than chance" in page
    with pytest.raises(InputError, match="given twice"):
        write_report([tmp_path / "after", tmp_path / "before" / ".." / "after"], tmp_path / "no.html")
    assert not (tmp_path / "no.html").exists()


def test_report_of_hostile_texts_has_none_as_it_was(tmp_path: Path) -> None:
    folder = tmp_path / "caf\udce9\x1b[2J"
    rows = [
        {
            **made_row(RunSpec(stream=StreamSpec(f"data {name}", tasks=((name, "b"),)), network=name)),
            "stopped": name,
        }
        for name in HOSTILE_NAMES
    ]
    for row in rows:
        row["made"] |= {"rwalk": row["stopped"], "torch": row["stopped"], "code": {row["stopped"]: row["stopped"]}}
    write_rows(folder / "runs.jsonl", rows)
    write_study(folder, environment={"torch": "".join(HOSTILE_NAMES)})
    text = write_report([folder]).read_bytes().decode()
    for character in set("".join(HOSTILE_NAMES)) - set("\n"):
        assert character.isprintable() or character not in text, repr(character)


# ── the page as text ─────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    return made_rows()


@pytest.fixture(scope="module")
def page_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return hostile_page(tmp_path_factory.mktemp("report"))


def test_the_page_is_one_file_of_reasonable_weight(page_file: Path) -> None:
    links: list[str | None] = []

    class Links(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            links.extend(value for name, value in attrs if name in {"src", "href", "action", "srcset", "data"})

    Links().feed(page_file.read_text())
    assert links and all(link and link.startswith("#") for link in links)
    assert page_file.stat().st_size < 2.5e5


def test_no_data_becomes_markup(page_file: Path) -> None:
    page = page_file.read_text()
    for piece in ("<img", "<script>window.boom", "<b>bold", "<i>results"):
        assert piece not in page
    block = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert block and json.loads(block[1])["sections"][1]["title"] == HOSTILE


def test_without_its_extra_the_report_says_what_to_install(
    rows: list[Row], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(InputError, match=r"pip install 'rwalk\[report\]'"):
        render([result_folders.Results(records(rows))], "title")


def test_report_overwrites_nothing_but_a_page(tmp_path: Path) -> None:
    row = made_row(RunSpec())
    write_rows(tmp_path / "runs.jsonl", [row])
    write_study(tmp_path, [row["spec"]])
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    for path in before:
        with pytest.raises(InputError, match=f"{path.name} exists and is no page: choose another --out"):
            write_report([tmp_path], path)
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before
    page = write_report([tmp_path], tmp_path / "page")
    assert write_report([tmp_path], page).read_text().startswith("<!doctype html")


def test_results_that_contradict_each_other_are_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    one, other = (made_row(RunSpec(method=name)) for name in ("vanilla", "rwalk"))
    for folder, row in (("a", one), ("b", one)):
        write_rows(tmp_path / "equal" / folder / "runs.jsonl", [row])
    assert len(result_folders.read(tmp_path / "equal").rows) == 1 and not caplog.messages
    write_rows(tmp_path / "both" / "a" / "runs.jsonl", [one, other])
    changed = {**one, **{name: other[name] for name in ("single", "multi", "accuracy")}}
    write_rows(tmp_path / "both" / "b" / "runs.jsonl", [changed])
    result_folders.read(tmp_path / "both")
    assert caplog.messages == [
        f"of 1 runs {tmp_path}/both/b/runs.jsonl has other results than earlier files: its own are shown"
    ]


def test_the_command_writes_the_page(rows: list[Row], tmp_path: Path) -> None:
    from typer.testing import CliRunner

    write_rows(tmp_path / "results" / "all.jsonl", rows)
    out = tmp_path / "elsewhere" / "page.html"
    answer = CliRunner().invoke(app, ["report", str(tmp_path / "results"), "--out", str(out)])
    assert answer.exit_code == 0 and str(out) in answer.output and "</html>" in out.read_text()
    assert not (tmp_path / "results" / "report.html").exists()
