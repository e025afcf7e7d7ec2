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

from reproduction import answers, budgets, factorial, figures, questions, strength_judges, surface
from reproduction.__main__ import app
from reproduction.experiments import EXPERIMENTS, runs_of
from reproduction.measured import Measured
from reproduction.questions import FACTORS_OF, QUESTIONS
from reproduction.surface import Surface
from rwalk.cli import main
from rwalk.data.memory import MemorySpec
from rwalk.report.statistics import Mean
from rwalk.studies import Study
from rwalk.studies.specs import RunSpec, StreamSpec
from rwalk.studies.store import Store
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
    tried = questions.combinations(FACTORS_OF[name])
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
        "FISHER_STEPS": {**questions.FISHER_STEPS, "mnist": (2, 3)},
        "FISHER_LAMBDAS": (10.0, 100.0),
        "AUTHORS_STEPS": {"mnist": 2, "cifar100": 2},
        "AROUND": (0, 1),
        "FACTORS_OF": {**FACTORS_OF, "authors-mnist": ("length",), "authors-mnist-samples": ("concat",)},
    }
    for module, (name, value) in product(
        (questions, surface, figures, strength_judges, answers, factorial), smaller.items()
    ):
        if hasattr(module, name):
            monkeypatch.setattr(module, name, value)
    panels = {name: questions.SURFACES[name] for name in ("concat, reset", "no exemplars, reset")}
    for module in (questions, surface):
        monkeypatch.setattr(module, "SURFACES", panels)
    monkeypatch.setattr(questions, "budgeted", run)
    monkeypatch.setattr(questions, "under_budget", given)
    monkeypatch.setattr(questions, "base", lambda dataset, exemplars: run(dataset, "vanilla", "", exemplars))
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
    page = Path("RESULTS.md").read_text()
    own = page.partition("## Questions of our own")[2].partition("## The numbers behind")[0]
    for name in asked:
        if not name.startswith(answers.JUDGED):
            assert f"`python -m reproduction {name}`" not in own, "answered, not asked for"
    assert re.search(r"\| multi \| [+-]\d+\.\d ± \d+\.\d \| [+-]\d+\.\d ± \d+\.\d \|", own), "the ablation"
    assert re.search(r"where A is \d+\.\d( at λ|, where| to )|A is \d+\.\d to \d+\.\d", own), "the surface"
    assert own.count("| none of them |") == own.count("| all of them |") == own.count("| published |") == 2, (
        "the factorials"
    )
    assert "Without exemplars, in multi-head evaluation: " in own
    for name in ("surface-mnist", "surface-mnist-multi"):
        assert Path(f"results/figures/{name}.png").stat().st_size > 10_000
    assert "| the Fisher vanishes at a minimum, and EWC's hold too | not run yet |" not in page
    before = list(factorial.lines_of("authors-mnist", Measured(Path("results"))))
    first = next(iter(QUESTIONS["authors-mnist"].entries()))
    Path("results/table1-mnist").mkdir()
    Study((first.run_of(2),), "none", workers=1).execute(Store(Path("results/table1-mnist")))

    def seeds() -> list[int]:
        return sorted(Measured(Path("results")).cell("authors-mnist", first.block, first.label)[1].seeds)

    assert seeds() == [0, 1], "a table has one seed more, which is not the question's"
    assert list(factorial.lines_of("authors-mnist", Measured(Path("results")))) == before
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
        effect = factorial.main_effect(of, ("a", "b"), factor)
        assert effect.value == pytest.approx(expected) and effect.error == pytest.approx(0)


def test_what_moves_is_what_its_interval_says() -> None:
    def effect(value: float) -> Mean:
        return Mean.over(np.array([value - 0.1, value, value + 0.1]))

    effects = {"a": effect(1.0), "b": effect(0.1), "c": effect(-1.0), "d": effect(2.0)}
    assert (
        factorial.moved("vanilla's F", effects)
        == "Vanilla's F rises with a (+1.000), d (+2.000) and falls with c (-1.000)."
    )
    assert factorial.moved("A of rwalk", {"b": effect(0.1)}) == "A of rwalk is moved by none."


def test_a_factor_that_does_the_opposite_with_another_is_told() -> None:
    def of(on: tuple[str, ...]) -> Any:
        long, mixed = "length" in on, "concat" in on
        return np.array([80.0, 82.0]) - 40.0 * mixed + (12.0 if mixed else -11.0) * long

    (said,) = factorial.dependence(of, ("length", "concat"))
    assert said == "What length does to A of rwalk depends on concat (-11.0 without, +12.0 with it)."
    (said,) = factorial.dependence(of, ("init", "debias", "length", "concat"))
    assert (
        "What length does to A of rwalk depends on concat (-11.0 without, +12.0 with it; or init and debias"
        in said
    )
    assert not factorial.dependence(lambda on: np.array([1.0, 2.0]) * len(on), ("length", "concat"))


def test_half_a_factorial_tells_main_effects_from_what_two_factors_do_together() -> None:
    truth = {"a": 1.0, "b": -2.0, "c": 3.0, "d": 0.0}

    def of(on: tuple[str, ...]) -> Any:
        signs = {each: 0.5 if each in on else -0.5 for each in truth}
        together = 7.0 * signs["a"] * signs["b"] - 5.0 * signs["c"] * signs["d"]
        return np.array([10.0, 20.0]) + sum(truth[each] * signs[each] for each in truth) + together

    for factor, expected in truth.items():
        assert factorial.main_effect(of, tuple(truth), factor).value == pytest.approx(expected)


def test_the_surface_is_read_as_it_is() -> None:
    def made(*rows: list[float]) -> Surface:
        """One value per λ, from 0.1 to 10⁶; the rows are those of the longest trainings."""
        return Surface("balanced, reset", np.array([[50.0] * 8] * (7 - len(rows)) + list(rows)), seeds=5)

    steep = made(
        [40.0, 60.0, 82.0, 80.0, 70.0, 60.0, 60.0, 60.0], [74.0, 74.0, 76.0, 75.0, 74.5, 74.0, 74.0, 70.0]
    )
    said, *table = surface.lines_of([steep])
    assert "take 2000 steps per task (balanced batches, optimizer reset), where A is 82.0 at λ = 10" in said
    assert "a bad λ costs 42.0 points; if not, 5000 steps per task (balanced batches, optimizer reset)" in said
    assert "where A is 74.0 to 76.0 whatever λ is from 0.1 to 10⁵." in said, "the best of the worst"
    assert "Nothing tried is within 1 point of the best and flat to 3 points over six decades." in said
    flattest = made(
        [50.0, 60.0, 70.0, 60.0, 50.0, 50.0, 50.0, 50.0], [70.0, 75.0, 76.0, 75.0, 74.5, 74.0, 74.0, 74.0]
    )
    (panel,) = (line for line in surface.lines_of([flattest]) if line.startswith("| balanced, reset"))
    assert panel == "| balanced, reset | 76.0 | 5000, 10 | 6.0 | 5000, 1 to 10⁶ | 74.0 to 76.0 | 2.0 |"
    missing = [panel for panel in questions.SURFACES if panel != "balanced, reset"]
    assert len(missing) == 5 and f"Not run yet: {'; '.join(missing)}." in table[-1]
    flat = made([80.0, 81.0, 82.0, 81.0, 80.5, 80.0, 80.0, 60.0])
    said = next(surface.lines_of([flat]))
    assert (
        "take 5000 steps per task (balanced batches, optimizer reset); whatever λ is then from 0.1 to 10⁵" in said
    )
    assert "A is 80.0 to 82.0. That is within" in said and "So are" not in said
    assert "The best is 82.0: 5000 steps per task" in said and "where a bad λ costs 22.0." in said
    kept = replace(made([60.0] + [81.5] * 7), panel="balanced, kept")
    said = next(surface.lines_of([flat, kept]))
    assert "take 5000 steps per task (balanced batches, optimizer kept); whatever λ is then from 1 to 10⁶" in said
    assert "So are 5000 steps per task (balanced batches, optimizer reset)." in said
    assert flat.spread[-1] == pytest.approx(22.0) and flat.best[-1] == 82.0


@pytest.mark.usefixtures("ablations_not_tuned")
def test_nothing_is_answered_without_rows(tmp_path: Path) -> None:
    said = "\n".join(answers.lines_of(Measured(tmp_path)))
    assert said.count("Not run yet") == len(answers.ANSWERS)
    assert "--tune mnist-multi-ablation,mnist-samples-ablation`, then `python" in said


def test_an_ablation_that_was_tuned_less_is_said_to_be(monkeypatch: pytest.MonkeyPatch) -> None:
    """With RWalk behind one of the two in both blocks, and not by rounding alone."""
    scores = {"rwalk": 70.0, "rwalk-euclidean": 71.0, "rwalk-undivided": 70.01}
    measured = Measured(Path("nowhere"))
    monkeypatch.setattr(
        measured, "mean", lambda measure, name, block, label: Mean.over(scores[label] + np.arange(5.0))
    )
    counts = {"rwalk": 3, "rwalk-euclidean": 1, "rwalk-undivided": 3}
    monkeypatch.setattr(budgets, "seeds_behind", lambda name, method: counts[method])
    said = next(answers.ablation("cifar100", measured))
    assert "RWalk was more accurate with Δθ² in place of ½FΔθ², in every block." in said
    assert "The others' tuning was cut short (a choice by 1 seed, RWalk's by 3)" in said
    counts["rwalk-euclidean"], scores["rwalk-euclidean"] = 3, 70.0
    said = next(answers.ablation("cifar100", measured))
    assert "cut short" not in said and "more accurate" not in said


def test_how_many_seeds_a_choice_rests_on() -> None:
    """As counted by hand in the file: finalists have three seeds, a tuning that was cut short one."""
    seeds = {name: budgets.seeds_behind(name, "rwalk") for name in ("cifar100-multi", "cifar100-resnet")}
    assert seeds == {"cifar100-multi": 3, "cifar100-resnet": None}, "nobody counted them at first"
    assert budgets.seeds_behind("cifar100-multi-ablation", "rwalk-euclidean") == 1
