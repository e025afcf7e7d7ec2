"""The report in a real browser: its figures, its controls, its exports."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from browser import LOOKS, cut_off, look_of, tab_of, violations
from reports import HEADS, HOSTILE, Row, hostile_page, made_row, made_rows, write_rows
from reproduction import packed_rows
from rwalk.data.memory import MemorySpec
from rwalk.report.html_page import write_report
from rwalk.studies.specs import RunSpec, StreamSpec

# ── the page in a browser ────────────────────────────────────────────────────────────────────────────────────────


class Opened:
    """The page in a browser tab, with its complaints and its requests."""

    def __init__(self, browser: Any, file: Path, **context: Any) -> None:
        self.tab = tab_of(browser, **context)
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
        """The result of a script on the page, with all plots drawn."""
        self.tab.evaluate("drawAll()")
        return self.tab.evaluate(script)

    def labels(self, section: int = 0) -> list[str]:
        """The first lines of the results' first column."""
        cells = self.tab.locator(f"#section-{section} .results tbody th").all_inner_texts()
        return [text.strip().split("\n")[0] for text in cells]

    def traces(self) -> set[str]:
        """The names of everything drawn in any plot."""
        drawn = self("""[...document.querySelectorAll('figure:not([hidden])')]
                        .flatMap(figure => figure.plot.panels)
                        .flatMap(panel => (panel.series ?? []).map(series => series.look.name))""")
        return set(drawn)

    def rows(self, section: int = 0) -> list[list[str]]:
        """The cells of the results."""
        return self(f"""[...document.querySelectorAll('#section-{section} .results tbody tr')]
                        .map(row => [...row.cells].map(cell => cell.innerText.trim()))""")

    def download(self, selector: str) -> str:
        with self.tab.expect_download() as caught:
            self.tab.locator(selector).click()
        return Path(caught.value.path()).read_bytes().decode()

    def table(self, selector: str) -> list[dict[str, str]]:
        return list(csv.DictReader(io.StringIO(self.download(selector), newline="")))


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    return made_rows()


@pytest.fixture(scope="module")
def page_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return hostile_page(tmp_path_factory.mktemp("report"))


@pytest.fixture(scope="module")
def tab(browser: Any, page_file: Path) -> Opened:
    return Opened(browser, page_file, viewport={"width": 1280, "height": 900})


@pytest.fixture
def opened(tab: Opened) -> Iterator[Opened]:
    """The page as it opens; afterwards the test has caused no complaint and no request."""
    tab.load()
    yield tab
    assert tab.complaints == []
    assert [url for url in tab.requests if not url.startswith(("file:", "data:", "blob:"))] == []


def test_it_opens_and_draws_everything(opened: Opened) -> None:
    kinds = "[...document.querySelectorAll('#section-0 figure:not([hidden])')].map(f => f.dataset.kind)"
    expected = ["accuracy", "matrix", "plane", "lambda", "losses"]
    assert opened(kinds) == expected
    marks = "[...document.querySelectorAll('#section-0 .panel')].map(p => p.querySelectorAll('path, rect').length)"
    assert min(opened(marks)) > 2
    assert opened("document.querySelectorAll('#section-1 figure:not([hidden])').length") == 3
    words = opened("document.querySelector('#section-0 figure[data-kind=plane] svg').textContent")
    assert "forgets the old, learns the new less well" in words and "PBT" not in words


def test_names_are_spelled_out(opened: Opened) -> None:
    """A reader does not need the paper's shorthand."""
    opened.tab.locator("#section-0 .memory select").select_option("")
    text = opened("document.querySelector('#section-0').textContent")
    assert "with exemplars" in text and "mean of features" in text
    assert "rwalk-S" not in text and "mof" not in text


def test_facts_stand_on_top(opened: Opened) -> None:
    text = opened("document.querySelector('.masthead').innerText")
    for fact in ("by more than chance", "rwalk run <img", "rwalk 0.1.0"):
        assert fact in text or (fact == "by more than chance" and "may be chance" in text), fact
    setup = opened("document.querySelector('#section-0 .facts').innerText.replaceAll('\\n', ' ')")
    for fact in (
        "dataset digits",
        "1 epoch per task",
        "batch 64",
        "optimizer adam",
        "learning rate 0.001",
        "seeds",
    ):
        assert fact in setup


def test_methods_with_a_memory_each_are_shown_together(browser: Any, tmp_path: Path) -> None:
    """As in the paper's table S1: three memories, none of them shared."""
    memories = {"icarl": MemorySpec(51), "gem": MemorySpec(51, sampler="uniform"), "rwalk": MemorySpec(50)}
    base = RunSpec(stream=StreamSpec("digits"))
    write_rows(tmp_path / "runs.jsonl", [made_row(replace(base, method=m, memory=memories[m])) for m in memories])
    page = Opened(browser, write_report([tmp_path]), viewport={"width": 1280, "height": 900})
    assert set(page.labels()) == {"iCaRL", "GEM", "RWalk"}
    assert page.complaints == []
    page.tab.context.close()


def test_the_report_says_by_what_a_configuration_is_chosen(browser: Any, tmp_path: Path) -> None:
    """On test data, which flatters; on held-out training data, where all were measured on such too."""

    def row(lam: float, accuracy: float, validation: float | None = None) -> Row:
        spec = RunSpec(StreamSpec("digits", validation=validation), method="rwalk", numbers={"lam": lam})
        made = made_row(spec)
        flat = [[accuracy if j <= k else None for j in range(3)] for k in range(3)]
        measures = {"A": accuracy, "F": 0.0, "I": None}
        made["reference"] = {head: [None] * 3 for head in HEADS}
        return {**made, "accuracy": dict.fromkeys(HEADS, flat), **dict.fromkeys(HEADS, measures)}

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
        page = Opened(browser, write_report([tmp_path]), viewport={"width": 1280, "height": 900})
        shown = [cells[1] for cells in page.rows()]
        notes = page("[...document.querySelectorAll('#section-0 .choice')].map(each => each.innerText)")
        assert shown == [expected] and len(notes) == (said is not None) and page.complaints == []
        assert said is None or said in notes[0]
        page.tab.context.close()


def test_strings_from_data_are_shown_as_they_are(opened: Opened) -> None:
    assert opened("window.boom") is None
    assert opened("document.querySelectorAll('img, b:not(#tip b)').length") == 0
    assert opened.labels(1) == [HOSTILE]
    assert HOSTILE in opened("document.querySelector('#stopped').textContent")
    assert HOSTILE in opened("document.querySelector('#section-1 .legend').textContent")
    assert opened("document.querySelector('#section-1 h2').firstChild.textContent.trim()") == HOSTILE
    opened.tab.locator("#section-1 figure[data-kind=plane]").scroll_into_view_if_needed()
    mark = opened.tab.locator("#section-1 figure[data-kind=plane] svg.chart path[transform]").first
    mark.hover()
    assert HOSTILE in opened("document.querySelector('#tip').textContent")
    assert opened("document.querySelector('#section-1 figure svg title, #section-1 figure svg text').textContent")
    assert opened("document.querySelectorAll('svg script, svg a, svg image').length") == 0


def test_filters_reach_tables_and_plots_at_once(opened: Opened) -> None:
    assert any("no protection" in name for name in opened.traces())
    before = opened.tab.locator("#section-0 .results tbody").inner_text()
    opened.tab.locator("#methods label", has_text="no protection").click()
    assert set(opened.labels()) == {"RWalk"}
    assert opened.traces() and not any("no protection" in name for name in opened.traces())
    opened.tab.locator("#methods label", has_text="no protection").click()
    assert opened.tab.locator("#section-0 .results tbody").inner_text() == before
    opened.tab.locator("#heads label", has_text="multi").click()
    assert opened.tab.locator("#section-0 .results tbody").inner_text() != before
    assert "Multi-head" in opened.tab.locator("#section-0 .results h3").inner_text()


def test_nothing_chosen_is_an_empty_page_not_a_broken_one(opened: Opened) -> None:
    for label in opened.tab.locator("#methods label").all():
        label.click()
    assert opened.labels() == [] and opened.traces() == set()


def test_the_best_is_bold_and_columns_sort(opened: Opened) -> None:
    opened.tab.locator("#section-0 .memory select").select_option("")
    opened.tab.locator("#section-0 .variants select").select_option("all")
    assert len(opened.labels()) == 12
    column = (
        "[...document.querySelectorAll('#section-0 .results tbody tr')].map(r => parseFloat(r.cells[3].innerText))"
    )
    sorting = "[...document.querySelectorAll('#section-0 .results th[scope=col]')].map(th => th.ariaSort)"
    assert set(opened(sorting)) == {"none"}
    opened.tab.locator("#section-0 th button", has_text="accuracy").click()
    assert opened(sorting)[3] == "descending" and opened("document.activeElement.innerText").startswith("accuracy")
    accuracies = opened(column)
    assert accuracies == sorted(accuracies, reverse=True)
    bold = opened(
        "[...document.querySelectorAll('#section-0 td:nth-child(4) strong')].map(s => parseFloat(s.innerText))"
    )
    assert set(bold) == {max(accuracies)}
    opened.tab.locator("#section-0 th button", has_text="accuracy").click()
    assert opened(column) == sorted(accuracies)


def test_values_that_print_as_zero_are_equally_good(opened: Opened) -> None:
    forgetting = "{measure: MEASURES[1], value: (value) => value}"
    assert opened(f"winner({forgetting}, [-0.0002, 0.0003])") == "0.000"
    assert opened(f"winner({forgetting}, [-0.02, 0.0003])") == "\N{MINUS SIGN}0.020"


SAMPLERS = {"": "", "mof": "mean of features", "uniform": "at random"}


def matching(rows: list[Row], line: dict[str, str]) -> Row:
    """The row a line of a download speaks of."""
    (row,) = [
        row
        for row in rows
        if row["spec"]["stream"]["dataset"] == "digits"
        and (row["method"], row["lam"], row["seed"]) == (line["method"], float(line["lam"]), int(line["seed"]))
        and SAMPLERS[(row["spec"]["memory"] or {}).get("sampler", "")] == line["sampler"]
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
    for kind, runs in {"plane": 25, "lambda": 6}.items():
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


def test_the_latex_of_a_table_has_its_rows_and_escapes_what_latex_reads(opened: Opened) -> None:
    text = opened.download("#section-0 .results .latex")
    begin, *lines = text[text.index("\\begin{tabular}") :].splitlines()
    kinds = begin.removeprefix("\\begin{tabular}{").removesuffix("}")
    body = [line.removesuffix(" \\\\").split(" & ") for line in lines if " & " in line]
    on_page = opened.rows()
    assert len(body) == len(on_page) + 1 and {len(line) for line in body} == {len(kinds)} == {len(on_page[0])}
    for line, cells in zip(body[1:], on_page, strict=True):
        means = [cell.partition("±")[0].strip() for cell in cells if "±" in cell]
        assert means and all(mean.replace("−", "-") in " ".join(line) for mean in means)
    assert text.count("\\mathbf{") >= 3 and lines[-1] == "\\end{tabular}"
    hostile = opened.download("#section-1 .results .latex")
    cells = re.sub(r"^%.*| & |_\{\d+\}", "", hostile, flags=re.M)
    assert not re.search(r"(?<!\\)[&%#_]", cells)


FIGURES = ["accuracy", "matrix", "plane", "lambda", "losses"]


@pytest.mark.parametrize("kind", FIGURES)
def test_every_figure_can_be_taken_away(opened: Opened, kind: str) -> None:
    """As data, and as a picture that other programs can read."""
    figure = f"#section-0 figure[data-kind={kind}]"
    assert len(opened.table(f"{figure} .csv")) > 1
    picture = opened.download(f"{figure} .svg")
    drawn = ElementTree.fromstring(picture)
    title = opened(f"document.querySelector('{figure} h3').textContent")
    assert drawn.tag.endswith("svg") and title in "".join(drawn.itertext())
    assert "var(" not in picture and "light-dark" not in picture and "NaN" not in picture


# ── figures ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_matrix_is_that_of_the_configuration_chosen(opened: Opened, rows: list[Row]) -> None:
    opened.tab.locator("#section-0 .which select").select_option(label="no protection")
    cells = opened(
        "document.querySelector('#section-0 figure[data-kind=matrix]').plot.panels[0].cells.map(c => c.value)"
    )
    own = [row for row in rows if row["method"] == "vanilla" and not row["spec"]["memory"]]
    assert len(own) == 3 and len(cells) == 6
    for number, (k, j) in enumerate([(0, 0), (1, 0), (1, 1), (2, 0), (2, 1), (2, 2)]):
        values = [row["accuracy"]["single"][k][j] for row in own]
        assert cells[number] == pytest.approx(np.mean([value for value in values if value is not None]), abs=1e-6)
    after = "document.querySelector('#section-0 figure[data-kind=matrix]').plot.panels[1].cells"
    assert opened(f"new Set({after}.map(cell => cell.column)).size") == 3


def test_forgetting_is_shown_task_by_task(opened: Opened, rows: list[Row]) -> None:
    opened.tab.locator("#section-0 .over select").select_option("forgetting")
    panels = opened("""document.querySelector('#section-0 figure[data-kind=accuracy]').plot.panels
                       .map(p => ({title: p.title, ...p.series.find(s => s.look.name === 'no protection')}))""")
    assert [panel["title"] for panel in panels] == ["task 1", "task 2", "average F of all earlier tasks"]
    own = [row["accuracy"]["single"] for row in rows
           if row["method"] == "vanilla" and not row["spec"]["memory"] and not row["stopped"]]  # fmt: skip
    first = [[max(a[i][0] for i in range(k)) - a[k][0] for a in own] for k in (1, 2)]
    assert [point["y"] for point in panels[0]["points"]] == pytest.approx(
        [100 * np.mean(each) for each in first], abs=1e-3
    )
    whole = [row["single"]["F"] for row in rows
             if row["method"] == "vanilla" and not row["spec"]["memory"] and not row["stopped"]]  # fmt: skip
    assert panels[-1]["points"][-1]["y"] == pytest.approx(100 * np.mean(whole), abs=1e-3)


def test_no_control_is_shown_that_changes_nothing(browser: Any, tmp_path: Path) -> None:
    """One method, one task, both heads alike, no reference for intransigence."""
    row = made_row(RunSpec(stream=StreamSpec("digits", permuted=1)), tasks=1)
    alike = {"A": row["single"]["A"], "F": None, "I": None}
    row["reference"] = {head: [None] for head in HEADS}
    row |= {"accuracy": dict.fromkeys(HEADS, row["accuracy"]["single"]), **dict.fromkeys(HEADS, alike)}
    write_rows(tmp_path / "runs.jsonl", [row])
    page = Opened(browser, write_report([tmp_path]))
    controls = "[...document.querySelectorAll('input, select')]"
    assert page(f"{controls}.filter(each => each.checkVisibility()).length") == 0
    assert page.labels() == ["no protection"] and page.complaints == []
    assert "which are the same here" in page.tab.locator(".results h3").inner_text()
    assert page("[...document.querySelectorAll('.results thead th')].map(th => th.innerText)")[1:] == [
        "accuracy A1 % ↑", "seeds"]  # fmt: skip
    page.tab.context.close()


def test_figures_are_drawn_before_they_are_scrolled_to(opened: Opened) -> None:
    opened.tab.wait_for_function("queue.size === 0")
    empty = "document.querySelectorAll('figure:not([hidden]) .panel:empty').length"
    assert opened.tab.evaluate(empty) == 0 and opened.tab.evaluate("scrollY") == 0


def test_hyper_parameters_and_their_choice_are_shown(opened: Opened) -> None:
    opened.tab.locator("#section-0 .variants select").select_option("all")
    opened.tab.locator("#section-0 .memory select").select_option("none")
    lines = opened("""[...document.querySelectorAll('#section-0 .hyper tbody tr')]
                      .map(row => [...row.cells].map(cell => cell.innerText))""")
    assert [line[:2] for line in lines] == [["RWalk", "λ 0.1"], ["RWalk", "λ 1"], ["RWalk", "λ 10"]]
    assert all("alpha 0.9" in usual for _, _, usual, _ in lines)
    assert sorted(choice for *_, choice in lines) == ["best of 3 on this test data", *2 * ["one of 3 tried"]]


def test_the_numbers_of_a_figure_can_be_read(opened: Opened) -> None:
    opened.tab.locator("#section-0 figure[data-kind=plane] summary").press("Enter")
    numbers = opened.tab.locator("#section-0 figure[data-kind=plane] details")
    numbers.locator("table").wait_for()  # it is filled a moment later
    text = numbers.inner_text()
    assert "no protection" in text and "forgetting" in text and "±" in text
    charts = opened("[...document.querySelectorAll('svg.chart')].map(c => c.role + c.ariaLabel)")
    assert charts and all(each.startswith("img") and len(each) > 8 for each in charts)


def test_dark_mode_follows_the_system(opened: Opened) -> None:
    def colours() -> tuple[Any, Any]:
        mark = "document.querySelector('svg.chart path[transform]')"
        return opened("getComputedStyle(document.body).backgroundColor"), opened(f"getComputedStyle({mark}).fill")

    opened.tab.emulate_media(color_scheme="light")
    light = colours()
    opened.tab.emulate_media(color_scheme="dark")
    dark = colours()
    assert light[0] != dark[0] and light[1] != dark[1]


def test_paper_is_light_and_without_controls(opened: Opened) -> None:
    background = "getComputedStyle(document.querySelector('.card')).backgroundColor"
    opened.tab.emulate_media(color_scheme="dark")
    opened("dispatchEvent(new Event('beforeprint'))")
    opened.tab.emulate_media(media="print")
    assert opened(background) == "rgb(255, 255, 255)"
    for control in (".csv", ".choices", "details"):
        assert not opened.tab.locator(control).first.is_visible()
    boxes = [box for each in opened.tab.locator(".panel, table").all() if (box := each.bounding_box())]
    assert max(box["x"] + box["width"] for box in boxes) <= 186 / 25.4 * 96 + 1  # A4 less its margins
    opened.tab.emulate_media(media="screen")
    opened("dispatchEvent(new Event('afterprint'))")
    assert opened(background) != "rgb(255, 255, 255)"


def test_a_phone_gets_one_column(browser: Any, page_file: Path) -> None:
    phone = Opened(browser, page_file, viewport={"width": 390, "height": 844}, is_mobile=True, has_touch=True)
    assert phone("document.documentElement.scrollWidth") == 390
    boxes = [box for panel in phone.tab.locator(".panel").all() if (box := panel.bounding_box())]
    assert boxes and len({box["x"] for box in boxes}) == 1
    right = """[...document.querySelectorAll('#section-0 .results td')].filter(cell => cell.checkVisibility())
               .map(cell => cell.getBoundingClientRect().right)"""
    assert len(phone(right)) >= 3 * len(phone.labels()) and max(phone(right)) <= 390, "results are in sight"
    assert phone.complaints == []
    phone.tab.context.close()


# ── fast enough, and usable by everybody ─────────────────────────────────────────────────────────────────────────

CHANGE = "(at, name, value, event) => { at[name] = value; at.dispatchEvent(new Event(event)); }"
ACTIONS = {
    "show all": f"({CHANGE})(document.querySelector('.variants select'), 'value', 'all', 'change')",
    "sort": "document.querySelectorAll('thead button')[2].click()",
    "other head": "document.querySelector('#heads input[value=multi]').click()",
    "hide a method": "document.querySelector('#methods input').click()",
    "another plot": f"({CHANGE})(document.querySelector('.over select'), 'value', 'forgetting', 'input')",
    "more rows": "document.querySelector('.more').click()",
}
UNTIL_PAINTED = "new Promise(done => requestAnimationFrame(() => setTimeout(done)))"


def clock_of(tab: Any) -> Callable[[], float]:
    """The processor time of the page's main thread in seconds, so that a busy machine does not count."""
    session = tab.context.new_cdp_session(tab)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})

    def spent() -> float:
        measured = session.send("Performance.getMetrics")["metrics"]
        return next(float(each["value"]) for each in measured if each["name"] == "TaskDuration")

    return spent


def test_two_thousand_rows_stay_fluid(browser: Any, tmp_path: Path) -> None:
    methods = ("ewc", "ewc++", "mas", "pi", "rwalk")
    base = RunSpec(StreamSpec("digits"))
    specs = [replace(base, method=methods[n % 5], numbers={"lam": round(1e-3 * 1.01**n, 8)}) for n in range(2000)]
    write_rows(tmp_path / "runs.jsonl", [made_row(spec, tasks=5) for spec in specs])
    page = Opened(browser, write_report([tmp_path]), viewport={"width": 1280, "height": 900})
    spent = clock_of(page.tab)

    def took(script: str) -> float:
        before = spent()
        page.tab.evaluate(f"(() => {{ {script} }})()")
        page.tab.evaluate(UNTIL_PAINTED)
        return spent() - before

    page("booked = true")  # what an action leaves for later is done here, piece by piece
    for name, action in ACTIONS.items():
        assert took(action) < 0.3, name  # about 0.03 where nothing else runs
        while page.tab.evaluate("queue.size"):
            assert took("finish(queue.keys().next().value)") < 0.3, f"what follows {name}"
    assert page.complaints == []
    page.tab.context.close()


@pytest.mark.parametrize("look", LOOKS, ids="{0[0]}-{0[1]}".format)
def test_report_is_whole_and_accessible(browser: Any, page_file: Path, look: tuple[int, str], axe: str) -> None:
    """`make test-report` brings axe-core; without it this is skipped."""
    for file in (page_file, write_results(page_file.parent)):
        page = Opened(browser, file, **look_of(*look))
        page("document.querySelectorAll('details').forEach(each => { each.open = true })")
        assert [*cut_off(page.tab, "main *"), *violations(page.tab, axe)] == []
        page.tab.context.close()


def write_results(folder: Path) -> Path:
    """The report of all our own results."""
    with packed_rows.opened(Path(__file__).parent.parent / "results") as results:
        return write_report([results], folder / "all.html", title="results")


def test_it_loads_at_once(opened: Opened) -> None:
    spent = clock_of(opened.tab)
    before = spent()
    opened.load()
    assert spent() - before < 2.0  # about 0.1 where nothing else runs
