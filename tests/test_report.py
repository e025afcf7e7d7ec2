"""The report: what it reads, what it groups, and the page itself in a real browser."""

from __future__ import annotations

import csv
import io
import json
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rwalk import metrics
from rwalk.cli import app
from rwalk.data.memory import MemorySpec
from rwalk.errors import InputError
from rwalk.paper.experiments import published_values
from rwalk.report import results, sections
from rwalk.report.html import render, write_report
from rwalk.report.summary import summarise
from rwalk.studies import Study
from rwalk.studies.specs import RunSpec, StreamSpec
from rwalk.studies.store import SCHEMA, Row, Store
from rwalk.training import Training

HOSTILE = "<img src=x onerror='window.boom=1'></script><script>window.boom=1</script>&amp;<b>bold</b>"
HEADS = ("single", "multi")


def made_row(spec: RunSpec, tasks: int = 3, stopped: str | None = None) -> Row:
    """A row as a study writes it, with accuracies drawn instead of trained."""
    draw = np.random.default_rng(int(spec.hash()[:8], 16))
    row: Row = {"schema": SCHEMA, "hash": spec.hash(), "method": spec.method, "seed": spec.seed}
    row["lam"] = spec.numbers.get("lam", 0.0)
    row["accuracy"] = {}
    for head in HEADS:
        a = np.where(np.tri(tasks, dtype=bool), draw.integers(500, 1000, (tasks, tasks)) / 1000, np.nan)
        if stopped:
            a[1:] = np.nan
        measures = {"A": metrics.average_accuracy(a), "F": metrics.forgetting(a), "I": a[-1, -1] - 0.7}
        row[head] = {name: None if np.isnan(value) else float(value) for name, value in measures.items()}
        row["accuracy"][head] = [[None if np.isnan(value) else value for value in line] for line in a.tolist()]
    row["stopped"] = stopped
    row["spec"] = spec.to_json()
    row["made"] = {"rwalk": "0.1.0", "numerics": 1}
    return row


def made_rows() -> list[Row]:
    """λ's, memory sizes, samplers, two datasets, a stopped run, and text that would like to be markup."""
    runs = []
    for seed in range(2):
        base = RunSpec(stream=StreamSpec("digits"), seed=seed)
        runs.append(base)
        runs += [replace(base, method="rwalk", numbers={"lam": lam}) for lam in (0.1, 1.0, 10.0)]
        runs += [
            replace(base, method=method, numbers={"lam": 1.0} if method == "rwalk" else {}, memory=memory)
            for method in ("vanilla", "rwalk")
            for memory in (MemorySpec(per_class=m, sampler=s) for m in (5, 10) for s in ("mof", "uniform"))
        ]
        named = tuple((f"{HOSTILE}{k}", "plain") for k in range(3))
        runs.append(RunSpec(stream=StreamSpec(HOSTILE, tasks=named), method=HOSTILE, network=HOSTILE, seed=seed))
    stopped = RunSpec(stream=StreamSpec("digits"), seed=2)
    return [*map(made_row, runs), made_row(stopped, stopped=f"the loss is not finite {HOSTILE}")]


def write_rows(path: Path, rows: list[Row]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


# ── reading ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_real_study_is_read_whole(tmp_path: Path) -> None:
    runs = tuple(RunSpec(method=name, training=Training(steps=2)) for name in ("vanilla", "rwalk"))
    study = Study(runs, reference="none", workers=1)
    with Store(tmp_path / "study").opened(study.describe()) as store:
        rows = study.execute(store)
    found = results.read(tmp_path / "study")
    assert [row["hash"] for row in found.rows] == [row["hash"] for row in rows]
    assert found.environments[0]["torch"]
    page = write_report(tmp_path / "study").read_text()
    assert page.count("<title>study · rwalk</title>") == 1 and found.environments[0]["torch"] in page
    assert "2 runs · 2 configurations · 1 seed<" in page
    write_rows(tmp_path / "study" / "runs.jsonl", rows[:1])
    assert (
        "1 run · 1 configuration · 1 seed · unfinished: 1 more to run<"
        in write_report(tmp_path / "study").read_text()
    )


def test_a_folder_may_hold_many_files_or_many_studies(tmp_path: Path) -> None:
    rows = made_rows()
    write_rows(tmp_path / "files" / "mnist.jsonl", rows[:6])
    write_rows(tmp_path / "files" / "cifar.jsonl", rows[4:])
    write_rows(tmp_path / "studies" / "a" / "runs.jsonl", rows[:6])
    write_rows(tmp_path / "studies" / "b" / "runs.jsonl", rows[6:])
    wanted = {row["hash"] for row in rows}
    for folder in ("files", "studies"):
        found = results.read(tmp_path / folder).rows
        assert {row["hash"] for row in found} == wanted and len(found) == len(wanted)  # no run counts twice


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
        results.read(tmp_path)
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
            results.read(tmp_path)


@pytest.mark.parametrize(("name", "cure"), [("runs", "`rwalk resume {}` trains that run again"), ("mine", "")])
def test_a_torn_last_line_is_left_out_and_said_so(
    name: str, cure: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows = made_rows()[:2]
    file = tmp_path / f"{name}.jsonl"
    file.write_text(json.dumps(rows[0]) + "\n" + json.dumps(rows[1])[:50])
    assert [row["hash"] for row in results.read(tmp_path).rows] == [rows[0]["hash"]]
    (said,) = caplog.messages
    assert said.startswith(f"{file} ends in the middle of a row, which is left out")
    assert said.endswith(cure.format(tmp_path))
    caplog.clear()
    write_rows(file, rows)
    assert len(results.read(tmp_path).rows) == 2 and not caplog.messages


def test_a_stopped_run_without_a_strength_shows_none() -> None:
    page = render(results.Results([row for row in made_rows() if row["stopped"]], []), "title")
    assert re.search(r"<td>vanilla</td><td class=\"number\">–</td>", page)


# ── grouping ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_section_holds_what_can_be_compared() -> None:
    rows = made_rows()
    one, other = sections.sections(summarise(rows))
    assert one["title"] == "digits" and other["title"] == HOSTILE
    assert len(one["configurations"]) == 12
    vanilla = one["configurations"][0]
    assert vanilla["label"] == "vanilla" and vanilla["memory"] == "none" and vanilla["seeds"] == [0, 1, 2]
    assert vanilla["single"]["A"][2] is None  # it was stopped
    sizes = {f"{m} per class, {sampler}" for m in (5, 10) for sampler in ("mof", "uniform")}
    assert {each["memory"] for each in one["configurations"]} == {"none", *sizes}


def test_networks_and_numbers_of_tasks_are_not_mixed() -> None:
    base = RunSpec()
    rows = [made_row(base), made_row(replace(base, network="cnn")), made_row(replace(base, seed=1), tasks=4)]
    rows[2]["spec"]["seed"] = 1
    found = sections.sections([*summarise(rows[:2]), *summarise(rows[2:])])
    assert [(section["facts"][1], section["tasks"]) for section in found] == [
        ("network mlp", 3), ("network cnn", 3), ("network mlp", 4)]  # fmt: skip


def test_settings_are_told_where_they_differ() -> None:
    base = RunSpec(training=Training(epochs=2))
    longer = replace(base, training=Training(steps=100))
    tuned = replace(base, method="rwalk", numbers={"lam": 1.0, "alpha": 0.5})
    default = replace(base, method="rwalk", numbers={"lam": 1.0})
    kept = replace(base, method="rwalk", numbers={"lam": 1.0}, memory=MemorySpec(per_class=5))

    def told(*runs: RunSpec) -> list[str]:
        (section,) = sections.sections(summarise([made_row(run) for run in runs]))
        return [each["settings"] for each in section["configurations"]]

    assert told(base, default, kept) == ["", "", ""]
    assert told(base, longer) == ["2 epochs", "100 steps"]
    assert told(base, tuned, default) == ["", "alpha 0.5", ""]


def test_a_method_has_one_colour_whatever_it_is_shown_with() -> None:
    rows = made_rows()
    everywhere = {each["name"]: each["colour"] for each in sections.methods(summarise(rows))}
    alone = sections.methods(summarise([row for row in rows if row["method"] == "rwalk"]))
    assert alone == [{"name": "rwalk", "colour": everywhere["rwalk"], "symbol": alone[0]["symbol"]}]
    assert len(set(everywhere.values())) == len(everywhere)


# ── the page as text ─────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    return made_rows()


@pytest.fixture(scope="module")
def page_file(rows: list[Row], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report") / "<i>results"
    write_rows(folder / "runs.jsonl", rows)
    environment = {"python": "3.11", "torch": HOSTILE}
    (folder / "study.json").write_text(json.dumps({"hash": "", "runs": [], "environment": environment}))
    return write_report(folder)


def test_the_page_is_one_file_of_reasonable_weight(page_file: Path) -> None:
    page = page_file.read_text()
    markup = re.sub(r"<(script|style)\b.*?</\1>", "", page, flags=re.DOTALL)
    links = re.findall(r"""<[a-z][^>]*?\s(?:src|href)\s*=\s*["']?([^"'>]*)""", markup)
    assert links and all(link.startswith("#") for link in links)
    assert page.count('id="plotly"') == 1 and page.count("plotly.js") >= 1
    assert page_file.stat().st_size < 2.5e6


def test_no_data_becomes_markup(page_file: Path) -> None:
    page = page_file.read_text()
    for piece in ("<img", "<script>window.boom", "<b>bold", "<i>results"):
        assert piece not in page
    block = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert block and json.loads(block[1])["sections"][1]["title"] == HOSTILE


def test_without_its_extra_the_report_says_what_to_install(
    rows: list[Row], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "plotly.offline", None)
    with pytest.raises(InputError, match=r"pip install 'rwalk\[report\]'"):
        render(results.Results(rows, []), "title")


def test_the_command_writes_the_page(rows: list[Row], tmp_path: Path) -> None:
    from typer.testing import CliRunner

    write_rows(tmp_path / "results" / "all.jsonl", rows)
    out = tmp_path / "elsewhere" / "page.html"
    answer = CliRunner().invoke(app, ["report", str(tmp_path / "results"), "--out", str(out)])
    assert answer.exit_code == 0 and str(out) in answer.output and out.stat().st_size > 1e6
    assert not (tmp_path / "results" / "report.html").exists()


# ── the page in a browser ────────────────────────────────────────────────────────────────────────────────────────

CHROMIUM = shutil.which("chromium")
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"]
FLAGS += ["--disable-background-networking", "--disable-component-update"]


class Opened:
    """The page in a browser tab, with everything it complained of or asked the network for."""

    def __init__(self, browser: Any, file: Path, **context: Any) -> None:
        self.tab = browser.new_context(**context).new_page()
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.tab.on("console", lambda message: self.complaints.append(f"{message.type}: {message.text}"))
        self.tab.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.tab.on("request", lambda request: self.requests.append(request.url))
        self.address = file.as_uri()
        self.load()

    def load(self) -> None:
        self.tab.goto(self.address)
        self.tab.wait_for_selector("html[data-ready]")

    def __call__(self, script: str) -> Any:
        """What a script says of the page, plots out of sight drawn too."""
        self.tab.evaluate("drawAll()")
        return self.tab.evaluate(script)

    def labels(self, section: int = 0) -> list[str]:
        return [text.strip() for text in self.tab.locator(f"#section-{section} td:first-child").all_inner_texts()]

    def traces(self) -> set[str]:
        """The names of everything drawn in any plot in sight."""
        drawn = self("""[...document.querySelectorAll('figure:not([hidden]) .panel')]
                        .flatMap(panel => panel.data.map(trace => trace.name)).filter(Boolean)""")
        return set(drawn)

    def download(self, selector: str) -> str:
        with self.tab.expect_download() as caught:
            self.tab.locator(selector).click()
        return Path(caught.value.path()).read_bytes().decode()

    def table(self, selector: str) -> list[dict[str, str]]:
        return list(csv.DictReader(io.StringIO(self.download(selector), newline="")))


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
def tab(browser: Any, page_file: Path) -> Opened:
    return Opened(browser, page_file, viewport={"width": 1280, "height": 900})


@pytest.fixture
def opened(tab: Opened) -> Iterator[Opened]:
    """The page as it opens; whatever a test does with it, nothing is complained of and nothing sent."""
    tab.load()
    yield tab
    assert tab.complaints == []
    assert [url for url in tab.requests if not url.startswith(("file:", "data:", "blob:"))] == []


def test_it_opens_and_draws_everything(opened: Opened) -> None:
    kinds = "[...document.querySelectorAll('#section-0 figure:not([hidden])')].map(f => f.dataset.kind)"
    assert opened(kinds) == ["accuracy", "plane", "lambda", "samples", "samplers"]
    panels = (
        "[...document.querySelectorAll('#section-0 figure')].map(f => f.querySelectorAll('.main-svg').length > 0)"
    )
    assert all(opened(panels))
    assert opened("document.querySelectorAll('#section-1 figure:not([hidden])').length") == 2
    assert opened("[...document.querySelectorAll('#section-0 .annotation-text')].map(t => t.textContent)") == [
        "PBT, PFT", "PBT, NFT", "NBT, PFT", "NBT, NFT", "(0, 0)"]  # fmt: skip


def test_methods_with_a_memory_each_are_shown_together(browser: Any, tmp_path: Path) -> None:
    """As in the paper's table S1: three memories, none of them shared, and no two samplers to compare."""
    memories = {"icarl": MemorySpec(51), "gem": MemorySpec(51, sampler="uniform"), "rwalk": MemorySpec(50)}
    base = RunSpec(stream=StreamSpec("digits"))
    write_rows(tmp_path / "runs.jsonl", [made_row(replace(base, method=m, memory=memories[m])) for m in memories])
    page = Opened(browser, write_report(tmp_path), viewport={"width": 1280, "height": 900})
    assert {label.removesuffix("-S") for label in page.labels()} == set(memories)
    kinds = "[...document.querySelectorAll('figure:not([hidden])')].map(f => f.dataset.kind)"
    assert "samplers" not in page(kinds) and page.complaints == []
    page.tab.context.close()


def test_published_values_stand_beside_the_papers_runs(browser: Any, tmp_path: Path) -> None:
    shutil.copy(Path(__file__).parent.parent / "results" / "table1-mnist" / "runs.jsonl", tmp_path)
    file = write_report(tmp_path, published=published_values())
    page = Opened(browser, file, viewport={"width": 1280, "height": 900})

    def shown(label: str) -> list[str]:
        rows = page("[...document.querySelectorAll('tbody tr')].map(row => row.innerText.split('\\t'))")
        return next([str(cells[n]) for n in (4, 6, 8)] for cells in rows if cells[0] == label)

    assert shown("rwalk-S") == ["82.5", "0.150", "0.140"]
    assert shown("rwalk") == ["–"] * 3, "the paper has none of RWalk in single-head evaluation without samples"
    page.tab.get_by_text("multi-head", exact=True).click()
    assert shown("rwalk")[0] == "99.3"
    downloaded = {row["label"]: row["A_paper"] for row in page.table(".results .csv")}
    assert downloaded["vanilla"] == "0.903" and downloaded["vanilla-S"] == ""
    assert page.complaints == []
    page.tab.context.close()


def test_what_leads_by_the_paper_is_shown_before_what_scored_best(browser: Any, tmp_path: Path) -> None:
    base = RunSpec(stream=StreamSpec("digits"), method="rwalk")
    rows = [made_row(replace(base, numbers={"lam": lam})) for lam in (0.1, 1.0, 10.0)]
    worst, *_, best = sorted(rows, key=lambda row: row["single"]["A"])
    write_rows(tmp_path / "runs.jsonl", rows)
    for published, expected in (({}, best), ({(worst["hash"], "single"): {"leads": True}}, worst)):
        page = Opened(
            browser, write_report(tmp_path, published=published), viewport={"width": 1280, "height": 900}
        )
        shown = page("[...document.querySelectorAll('tbody tr')].map(row => row.innerText.split('\\t')[1])")
        assert shown == [f"{expected['lam']:g}"] and page.complaints == []
        page.tab.context.close()


def test_the_report_says_by_what_a_configuration_is_chosen(browser: Any, tmp_path: Path) -> None:
    """On test data, which flatters; on held-out training data, where all were measured on such too."""

    def row(lam: float, accuracy: float, validation: float | None = None) -> Row:
        spec = RunSpec(StreamSpec("digits", validation=validation), method="rwalk", numbers={"lam": lam})
        made = made_row(spec)
        flat = [[accuracy if j <= k else None for j in range(3)] for k in range(3)]
        return {**made, "accuracy": dict.fromkeys(HEADS, flat)}

    tested = [row(0.1, 0.9), row(10.0, 0.8)]
    held_out = [row(0.1, 0.5, validation=0.1), row(10.0, 0.7, validation=0.1)]
    for rows, expected, said in (
        (tested, "0.1", "on this same test data"),
        ([*tested, held_out[0]], "0.1", "on this same test data"),
        ([*tested, *held_out], "10", "not on this test data"),
        (held_out, "10", "on held-out training data"),
        (tested[:1], "0.1", None),
    ):
        write_rows(tmp_path / "runs.jsonl", rows)
        page = Opened(browser, write_report(tmp_path), viewport={"width": 1280, "height": 900})
        shown = page("[...document.querySelectorAll('#section-0 tbody tr')].map(r => r.innerText.split('\\t')[1])")
        notes = page("[...document.querySelectorAll('#section-0 .choice')].map(each => each.innerText)")
        assert shown == [expected] and len(notes) == (said is not None) and page.complaints == []
        assert said is None or said in notes[0]
        page.tab.context.close()


def test_strings_from_data_are_shown_as_they_are(opened: Opened) -> None:
    assert opened("window.boom") is None
    assert opened("document.querySelectorAll('img, b').length") == 0
    assert opened.labels(1) == [HOSTILE]
    assert HOSTILE in opened("document.querySelector('#stopped').textContent")
    assert HOSTILE in opened("document.querySelector('#section-1 .legend').textContent")
    assert opened("document.querySelector('#section-1 h2').firstChild.textContent.trim()") == HOSTILE
    # plotly writes titles and hover boxes itself, as SVG
    plane = "document.querySelector('#section-1 figure[data-kind=plane] .panel')"
    opened(f"Plotly.Fx.hover({plane}, [{{curveNumber: 0, pointNumber: 0}}])")
    assert HOSTILE in opened("document.querySelector('#section-1 .hovertext').textContent")
    assert opened("document.querySelector('#section-1 .gtitle').textContent").startswith("Task 1: <img src=x")
    assert opened("document.querySelectorAll('svg script, svg a, svg image').length") == 0


def test_filters_reach_tables_and_plots_at_once(opened: Opened) -> None:
    assert any("vanilla" in name for name in opened.traces())
    before = opened.tab.locator("#section-0 tbody").inner_text()
    opened.tab.locator("#methods label", has_text="vanilla").click()
    assert set(opened.labels()) <= {"rwalk", "rwalk-S"} and opened.labels()
    assert opened.traces() and not any("vanilla" in name for name in opened.traces())
    opened.tab.locator("#methods label", has_text="vanilla").click()
    assert opened.tab.locator("#section-0 tbody").inner_text() == before
    opened.tab.locator("#heads label", has_text="multi").click()
    assert opened.tab.locator("#section-0 tbody").inner_text() != before
    assert "Multi-head" in opened.tab.locator("#section-0 .results h3").inner_text()


def test_nothing_chosen_is_an_empty_page_not_a_broken_one(opened: Opened) -> None:
    for label in opened.tab.locator("#methods label").all():
        label.click()
    assert opened.labels() == [] and opened.traces() == set()


def test_the_best_is_bold_and_columns_sort(opened: Opened) -> None:
    opened.tab.locator("#section-0 .memory select").select_option("")
    opened.tab.locator("#section-0 .variants select").select_option("all")
    assert len(opened.labels()) == 12
    column = "[...document.querySelectorAll('#section-0 tbody tr')].map(r => parseFloat(r.cells[3].innerText))"
    opened.tab.locator("#section-0 th button", has_text="accuracy").click()
    accuracies = opened(column)
    assert accuracies == sorted(accuracies, reverse=True)
    bold = opened(
        "[...document.querySelectorAll('#section-0 td:nth-child(4) strong')].map(s => parseFloat(s.innerText))"
    )
    assert set(bold) == {max(accuracies)}
    opened.tab.locator("#section-0 th button", has_text="accuracy").click()
    assert opened(column) == sorted(accuracies)


def matching(rows: list[Row], line: dict[str, str]) -> Row:
    """The row a line of a download speaks of."""
    (row,) = [
        row
        for row in rows
        if row["spec"]["stream"]["dataset"] == "digits"
        and (row["method"], row["lam"], row["seed"]) == (line["method"], float(line["lam"]), int(line["seed"]))
        and (row["spec"]["memory"] or {}).get("sampler", "") == line["sampler"]
        and str((row["spec"]["memory"] or {}).get("per_class", "")) == line["size"]
    ]
    return row


def test_downloads_hold_the_rows(opened: Opened, rows: list[Row]) -> None:
    opened.tab.locator("#section-0 .memory select").select_option("")
    opened.tab.locator("#section-0 .variants select").select_option("all")
    lines = opened.table("#section-0 figure[data-kind=accuracy] .csv")
    assert len(lines) == (24 + 1) * 6  # every run, stopped one included, and its lower triangle
    for line in lines:
        value = matching(rows, line)["accuracy"]["single"][int(line["after_task"]) - 1][int(line["task"]) - 1]
        assert line["head"] == "single"
        assert line["accuracy"] == "" if value is None else float(line["accuracy"]) == value
    opened.tab.locator("#heads label", has_text="multi").click()
    for kind, runs in {"plane": 25, "lambda": 6, "samples": 16, "samplers": 16}.items():
        lines = opened.table(f"#section-0 figure[data-kind={kind}] .csv")
        assert len(lines) == runs, kind
        for line in lines:
            for name, value in matching(rows, line)["multi"].items():
                assert line[name] == "" if value is None else float(line[name]) == pytest.approx(value, abs=1e-6)


def test_the_tables_download_has_means_and_quotes_what_needs_it(opened: Opened, rows: list[Row]) -> None:
    (line,) = opened.table("#section-1 .results .csv")
    accuracies = [row["single"]["A"] for row in rows if row["method"] == HOSTILE]
    assert line["method"] == HOSTILE and line["seeds"] == "2"
    assert float(line["A_mean"]) == pytest.approx(np.mean(accuracies), abs=1e-6)
    assert float(line["A_sd"]) == pytest.approx(np.std(accuracies, ddof=1), abs=2e-6)


def test_a_plot_can_be_saved_and_not_uploaded(opened: Opened) -> None:
    buttons = "[...document.querySelector('.modebar').querySelectorAll('[data-title]')].map(b => b.dataset.title)"
    assert opened(buttons) == ["Download plot as a PNG", "Zoom", "Pan", "Reset axes"]
    opened.tab.locator("#section-0 figure[data-kind=plane] .panel").hover()
    with opened.tab.expect_download() as caught:
        opened.tab.locator("#section-0 figure[data-kind=plane] [data-title^=Download]").click()
    assert Path(caught.value.path()).read_bytes().startswith(b"\x89PNG")


def test_tasks_can_be_switched_on_and_off(opened: Opened) -> None:
    count = "document.querySelectorAll('#section-0 figure[data-kind=accuracy] .panel').length"
    assert opened(count) == 4
    opened.tab.locator("#section-0 .chips button", has_text="task 2").click()
    assert opened(count) == 3


PAPER = "document.querySelector('.panel').layout.paper_bgcolor"


def test_dark_mode_follows_the_system_and_the_button(opened: Opened) -> None:
    def colours(settled: Callable[[str], bool]) -> tuple[Any, Any]:
        for _ in range(100):  # plots follow a moment after the page
            if settled(opened(PAPER)):
                break
            opened.tab.wait_for_timeout(50)
        return opened("getComputedStyle(document.body).backgroundColor"), opened(PAPER)

    opened.tab.emulate_media(color_scheme="light")
    light = colours(lambda paper: paper == "rgb(255, 255, 255)")
    opened.tab.emulate_media(color_scheme="dark")
    dark = colours(lambda paper: paper != light[1])
    assert light[0] != dark[0] and light[1] != dark[1]
    opened.tab.locator("#theme").click()
    assert colours(lambda paper: paper == light[1]) == light
    opened.tab.locator("#theme").click()
    assert colours(lambda paper: paper == dark[1]) == dark


def test_paper_is_light_and_without_controls(opened: Opened) -> None:
    opened.tab.emulate_media(color_scheme="dark")
    opened("dispatchEvent(new Event('beforeprint'))")
    opened.tab.emulate_media(media="print")
    assert opened(PAPER) == "rgb(255, 255, 255)"
    for control in ("#theme", ".csv", ".chips", ".choices"):
        assert not opened.tab.locator(control).first.is_visible()
    boxes = [box for each in opened.tab.locator(".panel, table").all() if (box := each.bounding_box())]
    assert max(box["x"] + box["width"] for box in boxes) <= 186 / 25.4 * 96 + 1  # A4 less its margins
    opened.tab.emulate_media(media="screen")
    opened("dispatchEvent(new Event('afterprint'))")
    assert opened(PAPER) != "rgb(255, 255, 255)"


def test_a_phone_gets_one_column(browser: Any, page_file: Path) -> None:
    phone = Opened(browser, page_file, viewport={"width": 390, "height": 844}, is_mobile=True, has_touch=True)
    assert phone("document.documentElement.scrollWidth") == 390
    boxes = [box for panel in phone.tab.locator(".panel").all() if (box := panel.bounding_box())]
    assert boxes and min(box["height"] for box in boxes) >= 300 and len({box["x"] for box in boxes}) == 1
    assert phone.complaints == []
    phone.tab.context.close()
