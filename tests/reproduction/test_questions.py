"""Our own questions about the paper: what their runs share, and all of it once, at a tiny size."""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import permutations, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from reproduction import budgets, own_questions, paper_claims, paper_figures, question_tables
from reproduction.__main__ import app
from reproduction.measured_cells import Measured
from reproduction.own_questions import FACTORS_OF, QUESTIONS
from reproduction.paper_experiments import EXPERIMENTS, Entry, runs_of
from reproduction.question_tables import Surface
from reproduction.results_pages import blocks_of_appendix
from rwalk.cli import main
from rwalk.data.memory import MemorySpec
from rwalk.studies import Study
from rwalk.studies.specs import RunSpec, StreamSpec
from rwalk.studies.study_folder import Store
from rwalk.training import Training


def hashes(name: str) -> set[str]:
    return {run.hash() for run in runs_of({**EXPERIMENTS, **QUESTIONS}[name])}


def test_what_other_experiments_have_run_is_not_run_again() -> None:
    assert len(hashes("precision-cifar100") & hashes("table1-cifar100")) == 2 * 2 * 3, "half of it"
    assert len(hashes("authors-mnist") & hashes("table1-mnist")) == 2 * 5, "vanilla and RWalk, as in the paper"
    trials = {run.hash() for run in budgets.SETTINGS["mnist-samples"].scouts()}
    assert len(hashes("surface-mnist") & trials) == 2 * 6, "what scouts have run: 100 and 200 steps"


@pytest.mark.parametrize("name", FACTORS_OF)
def test_a_factorial_has_eight_combinations_in_which_factors_are_balanced(name: str) -> None:
    """Full for three factors, half for four: any two of them are on and off together equally often."""
    assert len(hashes(name)) == 3 * 8 * QUESTIONS[name].seeds
    tried = own_questions.combinations(FACTORS_OF[name])
    assert () in tried and FACTORS_OF[name] in tried
    for one, other in permutations(FACTORS_OF[name], 2):
        assert Counter((one in on, other in on) for on in tried) == dict.fromkeys(
            product((True, False), repeat=2), 2
        )


def test_everything_at_once_is_the_authors_code() -> None:
    (all_on,) = (
        entry.run
        for entry in QUESTIONS["authors-cifar100"].entries()
        if (entry.block, entry.label) == ("rwalk-2018", "init + conv5 + debias + length")
    )
    assert all_on.network == "cnn-5-normal" and all_on.training == Training(steps=2000, keep_debias=True)


def table_s2_of(dataset: str, run: Any) -> Iterator[Entry]:
    """Two cells of table S2."""
    for lam in (0.1, 10.0):
        one = replace(run(dataset, "rwalk", "samples", 2), numbers={"lam": lam, "penalty": "gradient"})
        yield Entry(f"rwalk λ={lam:g}", one, "single", "gradient")


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """MNIST's questions on digits, with a handful of steps; their budgets given."""

    def run(dataset: str, method: str, block: str, exemplars: int | None = None, sampler: str = "mof") -> RunSpec:
        numbers = {} if method == "vanilla" else {"lam": 1.0, "penalty": "gradient"}
        memory = None if exemplars is None else MemorySpec(2)
        training = Training(steps=3)
        stream = StreamSpec("digits" if dataset == "mnist" else dataset)
        return RunSpec(stream, method=method, numbers=numbers, memory=memory, training=training)

    def given(setting: str, of: RunSpec) -> RunSpec:
        return replace(of, numbers={"lam": 2.0}, training=Training(steps=3))

    smaller = {
        "SURFACE_STEPS": (2, 3),
        "LAMBDA_DECADES": (0.1, 10.0),
        "SURFACE_LAMBDAS": (0.1, 10.0),
        "FISHER_STEPS": {**own_questions.FISHER_STEPS, "mnist": (2, 3)},
        "FISHER_LAMBDAS": dict.fromkeys(own_questions.FISHER_LAMBDAS, (10.0, 100.0)),
        "NORMAL_STEPS": 2,
        "AUTHORS_STEPS": {"mnist": 2, "cifar100": 2},
        "AROUND": (0, 1),
        "FACTORS_OF": {**FACTORS_OF, "authors-mnist": ("length",), "authors-mnist-samples": ("concat",)},
    }
    for module, (name, value) in product(
        (own_questions, paper_figures, paper_claims, question_tables), smaller.items()
    ):
        if hasattr(module, name):
            monkeypatch.setattr(module, name, value)
    panels = {name: own_questions.SURFACES[name] for name in ("concat, reset", "no exemplars, reset")}
    for module in (own_questions, question_tables):
        monkeypatch.setattr(module, "SURFACES", panels)
    monkeypatch.setattr(own_questions, "table_s2", lambda dataset: table_s2_of(dataset, run))
    monkeypatch.setattr(own_questions, "budgeted", run)
    monkeypatch.setattr(own_questions, "under_budget", given)
    monkeypatch.setattr(own_questions, "base", lambda dataset, exemplars: run(dataset, "vanilla", "", exemplars))
    budget: dict[str, Any] = {"training": {"steps": 3}, "numbers": {}, "validation": {}, "tried": []}
    names = [name for name in budgets.SETTINGS if name.startswith("mnist") and name not in budgets.load()]
    monkeypatch.chdir(tmp_path)
    Path("own.json").write_text(budgets.written(dict.fromkeys(names, budget)))
    with budgets.taken_from(Path("own.json")):
        yield tmp_path


def test_every_question_about_mnist_is_answered_at_a_tiny_size(
    tiny: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = [name for name in QUESTIONS if "mnist" in name]
    flags = ["--seeds=2", "--device=cpu", "--workers=1", "--quiet", "--budgets=own.json"]
    monkeypatch.setattr(sys, "argv", ["reproduction", *asked, *flags])
    with pytest.raises(SystemExit):
        main(app)
    page = Path("results-appendix.md").read_text()
    for name in asked:
        assert f"`python -m reproduction {name}`" not in page, "answered, not asked for"
    assert re.search(r"\| multi \| [+-]\d+\.\d ± \d+\.\d \| [+-]\d+\.\d ± \d+\.\d \|", page), "the ablation"
    assert re.search(r"\| concat, reset \| \d+\.\d \| \d, (0.1|10) \| \d+\.\d \| \d, 0.1 to 10 \|", page), (
        "the surface"
    )
    assert page.count("| none of them |") - page.count("| rwalk | none of them |") >= 2, "the factorials"
    assert page.count("| all of them |") == page.count("| published |") == 2
    for name in ("surface-mnist", "surface-mnist-multi"):
        assert Path(f"results/figures/{name}.png").stat().st_size > 10_000
    held = re.findall(r"^\| the Fisher vanishes .*", Path("RESULTS.md").read_text(), re.MULTILINE)
    assert len(held) == 1 and held[0].count("not run") == 1, "judged on MNIST, not on CIFAR-100"
    before = list(question_tables.factorial("authors-mnist", Measured(Path("results"))))
    first = next(iter(QUESTIONS["authors-mnist"].entries()))
    Path("results/table1-mnist").mkdir()
    other = Study((first.run_of(2),), "none", workers=1)
    with Store(Path("results/table1-mnist")).opened(other.describe()) as store:
        other.execute(store)

    def seeds() -> list[int]:
        return sorted(Measured(Path("results")).cell("authors-mnist", first.block, first.label)[1].seeds)

    assert seeds() == [0, 1], "a table has one seed more, which is not the question's"
    assert list(question_tables.factorial("authors-mnist", Measured(Path("results")))) == before
    Path("results/table1-mnist").rename("results/authors-mnist-1-seeds")
    assert seeds() == [0, 1, 2], "the same question, asked of another seed"
    for folder in Path("results").glob("authors-mnist-?-seeds"):
        folder.rename(f"results/others-{folder.name}")
    assert seeds() == [0, 1, 2], "shared, where the question has no rows of its own"


def test_main_effects_are_means_over_all_other_combinations() -> None:
    """Of tables made up of known effects, one of them an interaction."""
    truth = {"a": 1.0, "b": -2.0}

    def of(on: tuple[str, ...]) -> Any:
        return np.array([10.0, 20.0]) + sum(truth[each] for each in on) + 4.0 * (set(on) == {"a", "b"})

    for factor, expected in (("a", 1.0 + 2.0), ("b", -2.0 + 2.0)):
        effect = question_tables.main_effect(of, ("a", "b"), factor)
        assert effect.value == pytest.approx(expected) and effect.error == pytest.approx(0)


def test_half_a_factorial_tells_main_effects_from_what_two_factors_do_together() -> None:
    truth = {"a": 1.0, "b": -2.0, "c": 3.0, "d": 0.0}

    def of(on: tuple[str, ...]) -> Any:
        signs = {each: 0.5 if each in on else -0.5 for each in truth}
        together = 7.0 * signs["a"] * signs["b"] - 5.0 * signs["c"] * signs["d"]
        return np.array([10.0, 20.0]) + sum(truth[each] * signs[each] for each in truth) + together

    for factor, expected in truth.items():
        assert question_tables.main_effect(of, tuple(truth), factor).value == pytest.approx(expected)


def test_the_surface_is_read_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """The best cell, and the six decades of λ whose worst is best; rows are those of the longest trainings."""
    rows = [[40.0, 60.0, 82.0, 80.0, 70.0, 60.0, 60.0, 60.0], [70.0, 74.0, 76.0, 75.0, 74.5, 74.0, 74.0, 74.0]]
    made = Surface("balanced, reset", np.array([[50.0] * 8] * 5 + rows))
    assert made.spread[-2:] == pytest.approx([42.0, 6.0])
    assert (made.safest.steps, made.safest.lambdas[0], made.safest.lambdas[-1]) == (5000, 1.0, 1e6)
    monkeypatch.setattr(Surface, "all_of", lambda measured: [made])
    *_, panel = question_tables.surface(Measured(Path("nowhere")))
    assert panel == "| balanced, reset | 82.0 | 2000, 10 | 42.0 | 5000, 1 to 10⁶ | 74.0 to 76.0 |"


def test_nothing_is_answered_without_rows(tmp_path: Path) -> None:
    computed = blocks_of_appendix(Measured(tmp_path), [])
    said = {name: "\n".join(computed[name]) for name in QUESTIONS}
    assert all(text.startswith(f"Not run yet: `python -m reproduction {name}`") for name, text in said.items())


def test_how_many_seeds_a_choice_rests_on() -> None:
    """As counted by hand in the file: finalists have three seeds, a tuning that was cut short one."""
    seeds = {name: budgets.seeds_behind(name, "rwalk") for name in ("cifar100-multi", "cifar100-resnet")}
    assert seeds == {"cifar100-multi": 3, "cifar100-resnet": None}, "nobody counted them at first"
    assert budgets.seeds_behind("cifar100-multi-ablation", "rwalk-euclidean") == 1
