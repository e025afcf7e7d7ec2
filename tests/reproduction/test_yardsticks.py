"""Yardsticks: cells are runs, published values have sources, and a page has the verdicts."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import little
from reproduction.markdown import PAGES, filled
from reproduction.measured_cells import Measured
from reproduction.paper_experiments import runs_of
from reproduction.planned_studies import find
from reproduction.published_values import Value, yardstick
from reproduction.yardstick_page import Result, blocks, results_of, write_page
from reproduction.yardsticks import ORDERS, YARDSTICKS, Cell
from rwalk.errors import InputError
from rwalk.studies.rows import Measures, Row
from rwalk.studies.specs import RunSpec

CELLS = [cell for experiment in YARDSTICKS.values() for cell in experiment.entries() if isinstance(cell, Cell)]


def rows_of(name: str, accuracy: Any, seeds: int = 20) -> dict[str, Row]:
    """Rows of an experiment whose final accuracies are made up: (cell, seed) → A."""
    found: dict[str, Row] = {}
    nothing = Measures(None, None, None)
    for cell in YARDSTICKS[name].entries():
        for seed in range(seeds):
            run = cell.run_of(seed)
            empty = little.bare_row(run, nothing, nothing)
            measured = {cell.head: Measures(accuracy(cell, seed), 0.0, None)}
            found[run.hash()] = replace(found.get(run.hash(), empty), **measured)
    return found


@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: f"{cell.label}, {cell.block}")
def test_every_cell_is_a_run_that_its_learner_can_make(cell: Cell) -> None:
    run = cell.run_of(3)
    assert run.seed == 3 and run.learner() and cell.tuned
    assert RunSpec.from_json(run.to_json()) == run
    assert cell.head == ("multi" if cell.block.startswith("task") or "multi-head" in cell.block else "single")
    if cell.theirs is not None:
        assert 0 < cell.theirs.mean <= 100


def test_no_published_cell_is_left_out() -> None:
    named = {(cell.block, cell.label) for cell in CELLS if cell.theirs}
    for table in ("split-mnist-2022", "permuted-mnist"):
        assert named >= {(block, label) for block, cells in yardstick(table).items() for label in cells}


def test_seeds_take_the_orders_of_the_classes_in_turn() -> None:
    runs = [run for run in runs_of(YARDSTICKS["split-mnist-2022"]) if run.method == "vanilla"]
    assert len(runs) == 3 * 20
    assert {run.stream.order_seed for run in runs if run.seed < ORDERS} == set(range(ORDERS))
    assert len({run.fleet_key() for run in runs}) == 3 * ORDERS, "the seeds of an order are one fleet"


def test_heads_of_one_run_are_not_trained_twice() -> None:
    runs = runs_of(YARDSTICKS["mammoth-mnist"], 1)
    assert len(runs) == 21 == len(list(YARDSTICKS["mammoth-mnist"].entries())) // 2


def test_yardsticks_are_found_by_name_and_leave_the_papers_alone() -> None:
    assert [each.name for each in find(["yardsticks"])] == list(YARDSTICKS)
    assert [each.name for each in find(["permuted-mnist"])] == ["permuted-mnist"]
    assert not {each.name for each in find([])} & set(YARDSTICKS), "all are the paper's"
    with pytest.raises(InputError, match=r"unknown experiment 'split-mnist'.*split-mnist-2022"):
        find(["split-mnist"])


@pytest.mark.parametrize(
    ("ours", "theirs", "held"),
    [
        ([90.0, 90.2, 89.8, 90.1], Value(90.5, 0.1), "confirmed"),
        ([90.0, 90.2, 89.8, 90.1], Value(94.0, 0.1), "**refuted**"),
        ([80.0, 99.0, 85.0, 95.0], Value(85.0, None), "undecided"),
        ([80.0, 99.0, 85.0, 95.0], Value(30.0, 1.0), "**refuted**"),
        ([90.0], Value(94.0, 0.1), "undecided"),
        ([], Value(94.0, 0.1), ""),
        ([90.0, 91.0], None, ""),
    ],
)
def test_a_cell_holds_within_the_margin_with_confidence(
    ours: list[float], theirs: Value | None, held: str
) -> None:
    cell = Cell("er", RunSpec(), "single", "class", theirs=theirs)
    assert Result(cell, tuple(ours), len(ours)).held == held


def test_orders_are_the_units_of_a_deviation_not_the_seeds_that_share_one() -> None:
    rows = rows_of("split-mnist-2022", lambda cell, seed: 0.5 + 0.1 * (seed % ORDERS) + 0.001 * (seed // ORDERS))
    result = results_of(YARDSTICKS["split-mnist-2022"], rows)[0]
    assert len(result.means) == ORDERS and result.seeds == 20
    assert result.means[0] == pytest.approx(50.15) and result.ours.freedom == ORDERS - 1


def made_up(wrong: Any) -> str:
    """The computed blocks of Split MNIST, with cells that are as published, or 20 points off where `wrong`."""

    def accuracy(cell: Cell, seed: int) -> float:
        return (cell.theirs.mean / 100 if cell.theirs else 0.5) - 0.2 * wrong(cell)

    computed = blocks(rows_of("split-mnist-2022", accuracy, seeds=10))
    return "\n".join(line for name in ("count", "split-mnist-2022") for line in computed[name])


def test_the_page_counts_three_verdicts_of_cells_that_have_a_published_value() -> None:
    text = made_up(lambda cell: cell.label == "er")
    numbers = "12 cells are compared: 5 confirmed, 5 undecided, 2 refuted."
    assert text.count(numbers) == 2, "in all, and for the only experiment with rows"
    assert "| class | icarl | 92.3 | 92.3 ± 0.0 | +0.0 | confirmed | 10 |" in text
    assert re.search(r"\| class \| a-gem \|  \| 50.0 ± 0.0 \|  \|  \| 10 \|", text), "nothing to compare"
    computed = blocks(rows_of("mammoth-mnist", lambda cell, seed: 0.5, seeds=1))
    assert "Not run yet: `python -m reproduction permuted-mnist`." in computed["permuted-mnist"]
    assert (
        "| class, 200 | er | 50.0 | 1 | – | as in their code (utils/best_args.py) |" in computed["mammoth-mnist"]
    )


def test_the_page_is_written_into_the_docs_beside_the_results(tmp_path: Path) -> None:
    (tmp_path / "results").mkdir()
    assert write_page(tmp_path / "results") == tmp_path / "yardsticks.md"
    (tmp_path / "docs").mkdir()
    assert write_page(tmp_path / "results") == tmp_path / "docs" / "yardsticks.md"


def test_the_page_is_of_these_rows(every_row: Measured) -> None:
    page = (PAGES / "yardsticks.md").read_text()
    computed = blocks(every_row.rows)
    assert all(f"<!-- {name} -->" in page for name in computed)
    assert filled(page, computed) == page


def test_a_published_icarl_is_what_was_run_and_the_fixed_one_stands_beside_it() -> None:
    cells = {cell.label: cell for cell in CELLS if cell.block == "class, 500"}
    assert (
        cells["icarl-2020"].run.learner().loss.replay == "none"
        and cells["icarl"].run.learner().loss.replay != "none"
    )
    for name in ("gem", "a-gem"):
        memory = cells[name].run.memory
        assert memory is not None and memory.per_class == 50, "a fifth of the buffer per task, from the start"
