"""The paper as data: the rule that chooses budgets, what experiments are made of, the rows kept in results/."""

from __future__ import annotations

import copy
import json
import re
import shutil
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

import little
from reproduction import budgets, packed_rows, paper_figures, tuning_rounds
from reproduction import tuning_settings as tuned
from reproduction.__main__ import app
from reproduction.measured_cells import KNOWN, Measured, _by_run
from reproduction.own_questions import QUESTIONS
from reproduction.paper_claims import CLAIMS
from reproduction.paper_experiments import EXPERIMENTS, Entry, Experiment, runs_of
from reproduction.planned_studies import dry_run, find, plan
from reproduction.published_values import TABLE1, TABLE_S1
from reproduction.results_pages import blocks, blocks_of_appendix, filled
from reproduction.tuning_settings import Setting
from rwalk.atomic_files import write_atomically
from rwalk.cli import main
from rwalk.errors import InputError
from rwalk.report.welch_test import Mean
from rwalk.studies import provenance
from rwalk.studies.rows import Measures, Row
from rwalk.studies.specs import RunSpec, StreamSpec
from rwalk.training import Training

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "results"
APPENDIX = ROOT / "docs" / "results-appendix.md"


def setting(head: str = "single", seeds: int = 2) -> Setting:
    grid: tuned.Grid = {"vanilla": ({},), "rwalk": ({"lam": 1.0}, {"lam": 10.0})}
    trainings = (Training(steps=5), Training(steps=9))
    return Setting(RunSpec(StreamSpec("digits")), head, trainings, grid, seeds)


def row(run: RunSpec, single: float | None = None, multi: float | None = None) -> Row:
    """A row with nothing but A."""
    return little.bare_row(run, Measures(single, None, None), Measures(multi, None, None))


def rows(of: Setting, score: Any) -> list[Row]:
    """Rows whose accuracies `score` makes up: (steps, method, λ, seed) → (single, multi), with all seeds."""
    found: list[Row] = []
    for run in (replace(scout, seed=seed) for scout in of.scouts() for seed in range(of.seeds)):
        single, multi = score(run.training.steps, run.method, run.numbers.get("lam"), run.seed)
        found.append(row(run, single, multi))
    return found


def raced(of: Setting, score: Any) -> tuple[list[list[RunSpec]], dict[str, Any]]:
    """All rounds of a tuning whose accuracies `score` makes up, run → A, and what it chose."""
    rounds, found = [list(of.scouts())], list[Row]()
    for number in range(tuning_rounds.ROUNDS + 1):
        found += [row(run, **{of.head: score(run)}) for run in rounds[number]]
        rounds.append(tuning_rounds.next_runs(of, found, scouting=number < tuning_rounds.SCOUTING))
        if not rounds[-1]:
            break
    return rounds, budgets.choose(of, found)


def test_scouts_are_the_coarse_grid_with_one_seed_on_held_out_data() -> None:
    grid: tuned.Grid = {
        "rwalk": tuned.numbers(lam=(1.0, 10.0), alpha=tuned.ALPHAS, eps=tuned.EPSILONS),
        "pi": ({},),
    }
    runs = list(replace(setting(), grid=grid).scouts())
    assert len({run.hash() for run in runs}) == len(runs) == 2 * (2 * 2 * 2 + 1)
    assert {run.numbers["alpha"] for run in runs if run.numbers} == {0.9, 0.01}
    assert {(run.stream.validation, run.seed) for run in runs} == {(tuned.HELD_OUT, 0)}


def distance(run: RunSpec, **best: float) -> float:
    """In steps of the grid, from the best combination."""
    strides = {name: np.log10(stride) for name, stride in tuning_rounds.STRIDES.items()}
    return sum(abs(np.log10(run.numbers[name] / value)) / strides[name] for name, value in best.items())


def test_a_race_finds_the_best_of_a_grid_that_it_does_not_train_in_full() -> None:
    """A smooth hill whose top is between the coarse grid's points, and beyond its edge in λ; seeds add noise."""
    grid: tuned.Grid = {
        "rwalk": tuned.numbers(
            lam=(1.0, 10.0, 100.0), penalty=("gradient",), alpha=tuned.ALPHAS, eps=tuned.EPSILONS
        )
    }
    of = replace(setting(seeds=3), grid=grid, trainings=(Training(steps=4000),))
    noise = np.random.default_rng(0)

    def score(run: RunSpec) -> float:
        return 0.8 - 0.02 * distance(run, lam=1e4, alpha=0.1, eps=1e-6) + 0.002 * noise.standard_normal()

    rounds, chosen = raced(of, score)
    assert chosen["numbers"]["rwalk"] == {"lam": 1e4, "penalty": "gradient", "alpha": 0.1, "eps": 1e-6}
    trained = [run for runs in rounds for run in runs]
    assert len({run.hash() for run in trained}) == len(trained) < 0.6 * 3 * len(grid["rwalk"])
    assert {run.seed for runs in rounds[: tuning_rounds.SCOUTING] for run in runs} == {0}
    counts = {json.dumps(numbers): count for _, _, numbers, _, count in chosen["tried"]}
    assert counts[json.dumps(chosen["numbers"]["rwalk"], sort_keys=True)] == 3


def test_no_scouts_luck_is_chosen() -> None:
    """A combination that is excellent with the scouts' seed alone."""
    lams: tuned.Grid = {"rwalk": tuned.numbers(lam=tuned.decades(-2, 3))}
    of = replace(setting(seeds=3), grid=lams, trainings=(Training(steps=5),))

    def score(run: RunSpec) -> float:
        lucky = run.numbers["lam"] == 1e3
        return (0.9 if run.seed == 0 else 0.1) if lucky else 0.5 - 0.01 * distance(run, lam=1.0)

    rounds, chosen = raced(of, score)
    assert chosen["numbers"]["rwalk"]["lam"] == 1.0
    final = [run for runs in rounds[1:] for run in runs if run.seed]
    assert {run.seed for run in final} == {1, 2}, "the scouts' seed is not trained again"
    assert 10.0 not in {run.numbers["lam"] for run in final}, "behind the choice with the scouts' seed: given up"


def test_a_neighbour_that_is_not_behind_gets_all_seeds() -> None:
    """α = 0.1 is between the scouts, which are equal; with its first seed it is no worse than they are."""
    alphas: tuned.Grid = {"ewc++": tuned.numbers(lam=(1.0,), alpha=(0.9, 0.1, 0.01, 0.001))}
    of = replace(setting(seeds=3), grid=alphas, trainings=(Training(steps=5),), finalists=1)
    _, chosen = raced(of, lambda run: 0.5 + 0.1 * run.seed * (run.numbers["alpha"] == 0.1))
    assert chosen["numbers"]["ewc++"]["alpha"] == 0.1
    seeds = {numbers["alpha"]: count for _, _, numbers, _, count in chosen["tried"]}
    assert seeds[0.1] == 3 and seeds[0.01] == 3


def test_both_forms_of_a_penalty_are_scouted() -> None:
    """Each has λ's of its own: the one that is behind on the coarse grid may win beyond its edge."""
    both: tuned.Grid = {
        "rwalk": tuned.numbers(lam=(1.0, 10.0), penalty=("gradient",))
        + tuned.numbers(lam=(100.0, 1e3), penalty=("proximal",))
    }
    of = replace(setting(), grid=both, trainings=(Training(steps=5),))

    def score(run: RunSpec) -> float:
        if run.numbers["penalty"] == "gradient":
            return 0.5 - 0.01 * distance(run, lam=1.0)
        return 0.6 - 0.05 * distance(run, lam=1e5)

    assert raced(of, score)[1]["numbers"]["rwalk"] == {"lam": 1e5, "penalty": "proximal"}


def test_a_network_is_chosen_that_suits_all_methods() -> None:
    of = replace(setting(seeds=3), networks=("mlp", "mlp-normal"), trainings=(Training(steps=5),))

    of = replace(of, grid={**of.grid, "pi": of.grid["rwalk"]})

    def score(run: RunSpec) -> float:
        better = {"vanilla": -0.3, "pi": 0.2, "rwalk": -0.1}[run.method] * (run.network == "mlp-normal")
        return 0.5 + better - 0.01 * (distance(run, lam=100.0) if run.numbers else 0)

    rounds, chosen = raced(of, score)
    assert chosen["network"] == "mlp-normal", "PI gains more than RWalk loses; vanilla has no say"
    assert chosen["numbers"]["rwalk"] == {"lam": 100.0}, "found with that network"
    first = [run.method for run in rounds[1] if run.network == "mlp-normal"]
    assert sorted(first) == ["pi", "pi", "rwalk", "rwalk", "vanilla"], (
        "the best few of each method: all, of so few"
    )
    trained = {each[0] for each in chosen["tried"]}
    assert trained == {"5 steps", "5 steps, mlp-normal"}


def test_no_network_is_dropped_for_what_one_seed_says() -> None:
    """Nor for a length that does not suit it."""
    of = replace(setting(seeds=3), networks=("mlp", "mlp-normal"), trainings=(Training(steps=8),), longest=16)

    def score(run: RunSpec) -> float:
        if run.network == "mlp":
            return 0.6 if run.seed == 0 else 0.3
        return 0.5 if run.training.steps == 16 else 0.4

    _, chosen = raced(of, score)
    assert (chosen["network"], chosen["training"]["steps"]) == ("mlp-normal", 16)
    seeds = {(how, numbers.get("lam")): count for how, method, numbers, _, count in chosen["tried"]}
    assert seeds["16 steps, mlp-normal", 10.0] == seeds["8 steps", 10.0] == 3


def test_between_the_decades_of_lambda_is_looked_too() -> None:
    lams: tuned.Grid = {"rwalk": tuned.numbers(lam=(1.0, 10.0, 100.0))}
    of = replace(setting(seeds=3), grid=lams, trainings=(Training(steps=5),))
    _, chosen = raced(of, lambda run: 0.5 - 0.01 * distance(run, lam=25.0))
    assert chosen["numbers"]["rwalk"]["lam"] == 30.0
    assert {numbers["lam"] for _, _, numbers, *_ in chosen["tried"]} == {1.0, 3.0, 10.0, 30.0, 100.0}


def test_what_follows_another_setting_is_trained_like_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    of = replace(setting(), networks=("mlp", "mlp-normal"))
    follower = replace(of, networks=(), like="digits-single", grid={"ewc": ({"lam": 1.0},)})
    monkeypatch.setattr(budgets, "SETTINGS", {"digits-single": of, "digits-ewc": follower})
    monkeypatch.setattr(budgets, "FILE", tmp_path / "nothing.json")
    budgets.FILE.write_text("{}")
    assert budgets.setting_of("digits-ewc") == follower, "nothing has been chosen yet"
    _, chosen = raced(of, lambda run: (run.training.steps or 0) / 10 + 0.01 * (run.network == "mlp-normal"))
    own = tmp_path / "own.json"
    own.write_text(budgets.written({"digits-single": chosen}))
    monkeypatch.setattr(budgets, "FILE", own)
    (run,) = budgets.setting_of("digits-ewc").scouts()
    assert (run.network, run.training.steps, run.method) == ("mlp-normal", 9, "ewc")
    rows = [row(run, 0.5)]
    said = budgets.decide("digits-ewc", rows, own)
    assert said.startswith("chosen: 9 steps")
    with budgets.taken_from(own):
        assert budgets.under_budget("digits-ewc", follower.run).network == "mlp-normal"


def test_lengths_are_followed_to_the_longest_allowed() -> None:
    of = replace(setting(seeds=3), longest=40)
    _, chosen = raced(of, lambda run: (run.training.steps or 0) / 100)
    assert chosen["training"]["steps"] == 36, "9, 18, 36; 72 would be longer than 40"
    seeds = {how_long: count for how_long, *_, count in chosen["tried"]}
    assert (seeds["36 steps"], seeds["18 steps"], seeds["5 steps"]) == (3, 3, 1), "two lengths get all seeds"


def test_the_best_mean_over_seeds_wins() -> None:
    def score(steps: int, method: str, lam: float | None, seed: int) -> tuple[float, float]:
        return {None: 0.2, 1.0: 0.5, 10.0: (0.9, 0.2)[seed]}[lam], 0.0  # type: ignore[return-value, dict-item]

    chosen = budgets.choose(setting(), rows(setting(), score))
    assert chosen["numbers"] == {"vanilla": {}, "rwalk": {"lam": 10.0}}, "0.55 beats 0.5"
    assert chosen["validation"] == {"vanilla": 20.0, "rwalk": 55.0}
    assert len(chosen["tried"]) == 2 * 3


def test_a_setting_is_decided_by_its_own_head() -> None:
    def score(steps: int, method: str, lam: float | None, seed: int) -> tuple[float, float]:
        return (0.6, 0.8) if lam == 1.0 else (0.5, 0.9)

    for head, best in (("single", 1.0), ("multi", 10.0)):
        chosen = budgets.choose(setting(head), rows(setting(head), score))
        assert chosen["numbers"]["rwalk"] == {"lam": best}


def test_all_methods_train_as_long_as_suits_them_on_average() -> None:
    def score(steps: int, method: str, lam: float | None, seed: int) -> tuple[float, float]:
        return {"vanilla": (0.1, 0.9), "pi": (0.9, 0.2), "rwalk": (0.5, 0.7)}[method][steps != 5], 0.0

    of = setting()
    of = replace(of, grid={**of.grid, "pi": of.grid["rwalk"]})
    chosen = budgets.choose(of, rows(of, score))
    assert chosen["training"]["steps"] == 5, "0.9 and 0.5 against 0.2 and 0.7; vanilla has no say"
    assert chosen["validation"]["rwalk"] == 50.0


def test_a_run_that_did_not_train_counts_as_nothing() -> None:
    def score(steps: int, method: str, lam: float | None, seed: int) -> tuple[float | None, float]:
        return (None if lam == 10.0 and seed == 1 else 0.4), 0.0

    assert budgets.choose(setting(), rows(setting(), score))["numbers"]["rwalk"] == {"lam": 1.0}


def test_what_was_chosen_reads_back_and_is_a_line_a_try() -> None:
    chosen = {"digits-single": budgets.choose(setting(), rows(setting(), lambda *_: (0.5, 0.5)))}
    text = budgets.written(chosen)
    assert json.loads(text) == chosen
    assert sum(line.lstrip().startswith('["') for line in text.splitlines()) == 6


def followed(of: Setting, score: Any) -> set[tuple[int, float]]:
    """(steps, λ) of what would be tried next."""
    return {(run.training.steps or 0, run.numbers["lam"]) for run in tuning_rounds.next_runs(of, rows(of, score))}


def test_a_best_value_at_an_edge_is_followed_and_one_inside_is_not() -> None:
    lams: tuned.Grid = {"rwalk": tuned.numbers(lam=(1.0, 10.0, 100.0), penalty=("gradient",))}
    inside = replace(setting(), grid=lams, trainings=(Training(steps=5),))

    def peak(at: float) -> Any:
        return lambda steps, method, lam, seed: (1 - abs(np.log10(lam / at)) / 10, 0.0)

    assert followed(inside, peak(10.0)) == {(5, 3.0), (5, 30.0)}, "half a decade away, and no further"
    assert followed(inside, peak(1e4)) == {(5, 1000.0)}
    assert followed(inside, peak(1e-4)) == {(5, 0.1)}
    free = replace(inside, longest=100)
    assert followed(free, peak(10.0)) == {(2, 10.0), (10, 10.0)}, "half and twice as long, at the best λ"
    assert {run.stream.validation for run in tuning_rounds.next_runs(free, rows(free, peak(10.0)))} == {
        tuned.HELD_OUT
    }


def test_a_row_that_leaves_out_a_default_counts_with_those_that_name_it() -> None:
    """The same run by its hash: a study takes it over as it was written."""
    alphas: tuned.Grid = {"rwalk": tuned.numbers(lam=(1.0,), alpha=(0.9, 0.1), eps=(1e-3,))}
    of = replace(setting(), grid=alphas, trainings=(Training(steps=5),))
    found = [
        row(run, 0.5 + 0.1 * run.seed)
        for run in (replace(scout, seed=seed) for scout in of.scouts() for seed in (0, 1))
    ]
    assert found[0].spec.numbers == {"lam": 1.0, "alpha": 0.9, "eps": 1e-3}
    found[0] = replace(found[0], spec=replace(found[0].spec, numbers={"lam": 1.0}))
    assert [tuple(each[-2:]) for each in budgets.choose(of, found)["tried"]] == [(55.0, 2)]
    assert {run.numbers["alpha"] for run in tuning_rounds.next_runs(of, found)} == {0.1}


def test_values_that_are_not_allowed_are_not_tried() -> None:
    alphas: tuned.Grid = {"ewc++": tuned.numbers(lam=(1.0,), alpha=(0.9, 0.1))}
    of = replace(setting(), grid=alphas)
    found = [
        row(run, run.numbers["alpha"])
        for run in (replace(scout, seed=seed) for scout in of.scouts() for seed in (0, 1))
    ]
    tried = {run.numbers["alpha"] for run in tuning_rounds.next_runs(of, found)}
    assert tried == {0.1}, "α = 9 is no weight, and λ had no grid to be at the edge of"


def test_tuning_follows_the_best_beyond_its_grid(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Real runs, whose best λ is where it is: in the end it is inside, or no round is left."""
    monkeypatch.chdir(tmp_path)
    little = replace(setting(seeds=1), trainings=(Training(steps=5),))
    for module in (budgets, tuned):
        monkeypatch.setattr(module, "SETTINGS", {"digits-single": little})
    assert reproduce(monkeypatch, "--tune=digits") == 0
    (chosen,) = budgets.read(Path("results/tuning/budgets.json")).values()
    tried = sorted(numbers["lam"] for _, method, numbers, *_ in chosen["tried"] if method == "rwalk")
    assert len(tried) >= 3, "of two, one is at an edge"
    decades = np.log10([lam for lam in tried if f"{lam:e}".startswith("1.0")])
    assert np.allclose(np.diff(decades), 1), "decade by decade"
    inside = tried[0] < chosen["numbers"]["rwalk"]["lam"] < tried[-1]
    assert inside or len(decades) == 2 + tuning_rounds.ROUNDS
    before = sorted(Path("results/tuning").glob("*/runs.jsonl"))
    assert reproduce(monkeypatch, "--tune=digits") == 0, "again: nothing is left to do"
    assert sorted(Path("results/tuning").glob("*/runs.jsonl")) == before


def test_an_unknown_setting_is_named() -> None:
    with pytest.raises(InputError, match="minst"):
        tuned.find("minst")


def test_the_budgets_are_what_the_rule_chooses_of_what_was_tried() -> None:
    """Its numbers follow from its scores; that a grid has grown since is said on the page, not here."""

    def training(known: tuned.Setting, how_long: str) -> Training:
        count, unit = how_long.split()
        in_steps = [each for each in known.trainings if each.steps]
        return replace(in_steps[0], steps=int(count)) if unit == "steps" else tuned.GEMS_TRAINING

    for name, chosen in budgets.load().items():
        known = tuned.SETTINGS[name]
        rows = [
            row(
                RunSpec(
                    network="".join(network) or known.run.network,
                    method=method,
                    training=training(known, length),
                    numbers=numbers,
                    seed=seed,
                ),
                **{known.head: a / 100},
            )
            for how, method, numbers, a, *seeds in chosen["tried"]
            for length, *network in [how.split(", ")]
            for seed in range(*seeds or (1,))
        ]
        again = budgets.choose(known, rows)
        assert Training(**again["training"]) == Training(**chosen["training"])
        assert again["validation"] == chosen["validation"]
        for method, numbers in chosen["numbers"].items():
            ties = [n for _, m, n, a, *_ in chosen["tried"] if m == method and a == chosen["validation"][method]]
            assert numbers == again["numbers"][method] or numbers in ties, "scores are kept with two decimals"


@pytest.fixture(scope="module")
def all_tuned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Budgets for every setting that has none yet: the first of each grid."""
    chosen = {
        name: {
            "training": asdict(setting.trainings[0]),
            "numbers": {method: dict(grid[0]) for method, grid in setting.grid.items()},
            "validation": {},
            "tried": [],
        }
        for name, setting in tuned.SETTINGS.items()
        if name not in budgets.load()
    }
    file = tmp_path_factory.mktemp("budgets") / "all.json"
    file.write_text(budgets.written(chosen))
    return file


@pytest.mark.parametrize("name", [*EXPERIMENTS, *QUESTIONS])
def test_an_experiment_is_runs_that_can_be_made(name: str, all_tuned: Path) -> None:
    experiment = KNOWN[name]
    with budgets.taken_from(all_tuned):
        runs = runs_of(experiment)
    assert {run.seed for run in runs} == set(range(experiment.seeds))
    for run in runs:
        run.learner()
        chosen = name.startswith(
            ("surface", "tasks", "fisher", "ewc-fishers", "multihead")
        )  # where the best λ or length is looked for
        expected = tuned.HELD_OUT if chosen else None
        assert run.stream.validation == expected, "what is chosen is chosen on held-out data, results are not"


def test_every_published_value_has_its_cell() -> None:
    for (dataset, block), cells in TABLE1.items():
        entries = [entry for entry in EXPERIMENTS[f"table1-{dataset}"].entries() if entry.block == block]
        assert {entry.run.method for entry in entries if entry.published} == set(cells)
    assert {entry.run.method for entry in EXPERIMENTS["tableS1"].entries()} == set(TABLE_S1)


@pytest.fixture
def measured(every_row: Measured) -> Measured:
    """All rows of the repository; a copy, so that a test may change it."""
    return copy.deepcopy(every_row)


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_the_rows_kept_are_those_of_their_experiment(name: str, every_row: Measured) -> None:
    wanted = {run.hash(): run for run in runs_of(EXPERIMENTS[name])}
    rows = every_row.own_rows(name)
    assert {row.hash for row in rows} == set(wanted)
    for row in rows:
        assert wanted[row.hash] == row.spec


def test_a_table_names_the_versions_that_trained_its_rows(measured: Measured, tmp_path: Path) -> None:
    rows = measured._rows_in["tableS1"]
    rows[0] = replace(rows[0], made=replace(rows[0].made, commit="0123456789"))
    assert not measured.one_machine(EXPERIMENTS)
    assert "1 of 9 rows: rwalk 0.2.0 (0123456789)" in "\n".join(blocks_of_appendix(measured, [])["tableS1"])
    assert measured.one_machine(["table1-mnist"]) == measured.machine("table1-mnist") != ""
    assert not Measured(tmp_path).one_machine(EXPERIMENTS), "nothing was trained"


def test_the_pages_are_of_these_rows(every_row: Measured) -> None:
    page, appendix = (ROOT / "RESULTS.md").read_text(), APPENDIX.read_text()
    assert all(f"<!-- {name} -->" in page for name in blocks(every_row))
    assert filled(page, blocks(every_row)) == page
    pictures = re.findall(r"\]\(([^)]*results/figures/[^)]*)\)", appendix)
    assert len(pictures) == 10 and all((APPENDIX.parent / picture).exists() for picture in pictures)
    computed = blocks_of_appendix(every_row, pictures)
    trained = {name for name in QUESTIONS if every_row.own_rows(name)}
    assert all(f"<!-- {name} -->" in appendix for name in (computed.keys() - QUESTIONS.keys()) | trained)
    assert "ot run" not in appendix and "ot run" not in (ROOT / "RESULTS.md").read_text()
    assert filled(appendix, computed) == appendix


def test_a_claim_is_not_judged_on_half_of_its_rows(every_row: Measured, tmp_path: Path) -> None:
    folder = tmp_path / "table1-mnist"
    folder.mkdir()
    rows = packed_rows.text(RESULTS, "table1-mnist").decode().splitlines(keepends=True)
    (folder / "runs.jsonl").write_text("".join(row for row in rows if json.loads(row)["method"] != "pi"))
    half = Measured(tmp_path)
    for claim in CLAIMS:
        for dataset in claim.datasets:
            assert claim.judge(half, dataset) is None
            assert claim.judge(every_row, dataset) is not None


def test_seeds_of_one_run_count_together_however_studies_spell_it(measured: Measured) -> None:
    rows = [row for row in measured.own_rows("table1-mnist") if row.method == "rwalk" and row.spec.memory]
    numbers = {**rows[0].spec.numbers, "dt": 10, "fisher": "batch"}
    rows[0] = replace(rows[0], spec=replace(rows[0].spec, numbers=numbers))
    (summary,) = _by_run(rows).values()
    assert sorted(summary.seeds) == list(range(20))


def test_means_are_compared_by_welchs_t_test() -> None:
    draw = np.random.default_rng(0)
    for sizes in ((5, 5), (3, 5), (3, 3), (2, 9), (20, 30)):
        a, b = (draw.normal(size=size) * scale for size, scale in zip(sizes, (1.0, 3.0), strict=True))
        gap, exact = Mean.over(a) - Mean.over(b), stats.ttest_ind(a, b, equal_var=False)
        interval = exact.confidence_interval(0.95)
        assert gap.freedom == pytest.approx(exact.df)
        assert gap.reach == pytest.approx((interval.high - interval.low) / 2)
    spread = Mean.over(np.array([1.0, 3.0, np.nan]))
    assert (spread.value, spread.error) == (2.0, 1.0), "a deviation of √2 over two seeds"
    assert spread - Mean(5.0) == Mean(-3.0, 1.0, freedom=1.0, seeds=2)


# ── the command ───────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Experiment:
    """Two methods and two seeds on digits, in the place of a table."""
    run = RunSpec(StreamSpec("digits"), training=Training(steps=3))
    entries = [Entry(name, replace(run, method=name), "single", "tiny") for name in ("vanilla", "rwalk")]
    experiment = Experiment("tableS1", "Tiny", "seconds", lambda: iter(entries), seeds=2, reference="none")
    monkeypatch.setitem(EXPERIMENTS, "tableS1", experiment)
    monkeypatch.chdir(tmp_path)
    return experiment


def reproduce(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    alone = [] if "--join" in arguments else ["--workers=1"]
    monkeypatch.setattr(sys, "argv", ["reproduction", *arguments, *alone, "--device=cpu", "--quiet"])
    try:
        main(app)
    except SystemExit as error:
        return int(error.code or 0)
    return 0


def test_reproduce_runs_what_is_missing_and_writes_the_page(
    tiny: Experiment, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert reproduce(monkeypatch, "tableS1") == 0
    rows = Path("results/tableS1/runs.jsonl").read_bytes()
    assert rows.count(b"\n") == 4
    with monkeypatch.context() as patch:
        patch.setattr(StreamSpec, "build", None)
        assert reproduce(monkeypatch, "tableS1") == 0, "what is drawn again needs no data"
    assert Path("results/tableS1/runs.jsonl").read_bytes() == rows, "rows that are there stay as they are"
    page = Path("results-appendix.md").read_text()
    assert re.search(r"\| tiny \| rwalk \| 3 steps \| – \| 2 \| [0-9.]+ ± [0-9.]+ \|", page)
    capsys.readouterr()
    assert reproduce(monkeypatch, "tableS1", "--dry-run") == 0
    assert capsys.readouterr().out == "tableS1: 0 of 4 runs to do\n"
    assert reproduce(monkeypatch, "tableS1", "--seeds=3", "--dry-run") == 0
    said = capsys.readouterr().out
    assert said == "tableS1: 2 of 6 runs to do (seconds)\n", "seeds 0 and 1 are known"


def test_outdated_rows_are_to_be_trained_again(
    tiny: Experiment, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert reproduce(monkeypatch, "tableS1") == 0
    changes = lambda number, run: ["a change"] if run.method == "rwalk" else []  # noqa: E731
    monkeypatch.setattr(provenance.numerics_history, "changes_since", changes)
    for pack in (False, True):
        assert not pack or reproduce(monkeypatch, "--pack") == 0
        capsys.readouterr()
        assert reproduce(monkeypatch, "tableS1", "--dry-run") == 0
        assert capsys.readouterr().out.startswith("tableS1: 2 of 4 runs to do")


def test_packed_rows_are_not_trained_again_and_grow_with_more_seeds(
    tiny: Experiment, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert reproduce(monkeypatch, "tableS1") == 0
    page, rows = Path("results-appendix.md").read_text(), Path("results/tableS1/runs.jsonl").read_bytes()
    capsys.readouterr()
    assert reproduce(monkeypatch, "--pack") == 0
    assert capsys.readouterr().out == "results/tableS1.jsonl.xz\n" and not Path("results/tableS1").exists()
    with monkeypatch.context() as patch:
        patch.setattr(StreamSpec, "build", None)
        assert reproduce(monkeypatch, "tableS1") == 0, "what is packed needs no data"
    assert Path("results-appendix.md").read_text() == page and not Path("results/tableS1").exists()
    assert reproduce(monkeypatch, "tableS1", "--seeds=3") == 0
    assert "tableS1: 2 runs trained" in capsys.readouterr().out, "the other four are known"
    assert set(rows.splitlines()) < set(Path("results/tableS1-3-seeds/runs.jsonl").read_bytes().splitlines())
    assert reproduce(monkeypatch, "--report") == 0 and Path("results/report.html").stat().st_size > 10_000


@pytest.mark.parametrize("place", ["RESULTS.md", "results/figures/figure2-mnist.png"])
def test_a_page_that_cannot_be_written_is_named_and_costs_no_row(
    place: str, tiny: Experiment, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if place != "RESULTS.md":
        monkeypatch.setattr(paper_figures, "draw_all", lambda *_: write_atomically(Path(place), "a picture"))
    Path(place).mkdir(parents=True)  # a folder is in the way
    assert reproduce(monkeypatch, "tableS1") == 2
    said = capsys.readouterr().err
    assert said.startswith("rwalk: cannot write ") and "all rows are kept in results" in said
    assert said.count("\n") == 1 and place.rpartition("/")[2] in said
    assert len(Path("results/tableS1/runs.jsonl").read_text().splitlines()) == 4
    assert not [each for each in Path(place).parent.iterdir() if each.name.startswith(".")], "nothing half-written"


def test_what_an_experiment_was_before_is_set_aside_and_its_rows_are_reused(
    tiny: Experiment, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As when one of its methods was tuned since."""
    assert reproduce(monkeypatch, "tableS1") == 0
    rows = Path("results/tableS1/runs.jsonl").read_text().splitlines()
    vanilla, rwalk = tiny.entries()
    stronger = replace(rwalk, run=replace(rwalk.run, numbers={"lam": 5.0}))
    changed = replace(tiny, entries=lambda: iter([vanilla, stronger]))
    monkeypatch.setitem(EXPERIMENTS, "tableS1", changed)
    capsys.readouterr()
    assert reproduce(monkeypatch, "tableS1") == 0
    (before,) = Path("results").glob("tableS1-*")
    assert f"{before} now, and rows of it are reused" in capsys.readouterr().out
    assert (before / "runs.jsonl").read_text().splitlines() == rows
    now = Path("results/tableS1/runs.jsonl").read_text().splitlines()
    assert len(now) == 4 and len(set(now) & set(rows)) == 2
    assert reproduce(monkeypatch, "tableS1") == 0
    assert len(list(Path("results").glob("tableS1*"))) == 2, "nothing is set aside that has not changed"


def test_an_experiment_can_be_joined(tiny: Experiment, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RWALK_CACHE", "cache")
    assert reproduce(monkeypatch, "tableS1", "--out=alone/results") == 0
    assert reproduce(monkeypatch, "tableS1", "--join") == 0
    rows, expected = Path("results/tableS1/runs.jsonl"), Path("alone/results/tableS1/runs.jsonl").read_bytes()
    assert rows.read_bytes() == expected


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("tabelS1",), "did you mean 'tableS1'"),
        (("--seeds=0",), "--seeds must be at least 1, not 0"),
        (("yardstick",), "did you mean 'yardsticks'"),
        (("--join", "--workers=2"), "--join trains one run at a time per process: drop --workers"),
        (("--tune=mnits",), "did you mean 'mnist'"),
        (("--tune=mnist", "--seeds=2"), "--tune only chooses budgets"),
        (("--tune=mnist-multi,mnist-sampels",), "did you mean 'mnist-samples'"),
        (("--tune=mnist-multi,",), "unknown setting ''"),
    ],
)
def test_what_cannot_be_reproduced_is_said_in_one_line(
    tiny: Experiment,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    message: str,
) -> None:
    assert reproduce(monkeypatch, *arguments) == 2
    said = capsys.readouterr()
    assert message in said.err and said.err.count("\n") == 1 and not said.out
    assert not Path("results").exists()


def test_tuning_writes_what_the_rule_chose_and_goes_on_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Real runs; two settings that differ in their head share them."""

    def to_do() -> list[str]:
        capsys.readouterr()
        assert reproduce(monkeypatch, "--tune=digits", "--dry-run") == 0
        return re.findall(r"(.*) runs to do", capsys.readouterr().out)

    monkeypatch.chdir(tmp_path)
    own, packaged = Path("results/tuning/budgets.json"), budgets.FILE.read_bytes()
    settings = {"digits-single": setting("single", seeds=1), "digits-multi": setting("multi", seeds=1)}
    for module in (budgets, tuned):
        monkeypatch.setattr(module, "SETTINGS", settings)
    monkeypatch.setattr(tuning_rounds, "ROUNDS", 0)
    assert to_do() == ["digits-single: 6 of 6", "digits-multi: 0 of 6"]
    assert not Path("results").exists()
    assert reproduce(monkeypatch, "--tune=digits") == 0
    said = capsys.readouterr().out
    assert re.search(r"^digits-single: 6 runs trained in [\d.]+ s on .+, torch ", said, re.MULTILINE)
    assert to_do() == ["digits-single: 0 of 6", "digits-multi: 0 of 6"]
    chosen = budgets.read(own)
    assert set(chosen) == set(settings)
    for each in chosen.values():
        best = max(a for steps, _, _, a, _ in each["tried"] if steps == f"{each['training']['steps']} steps")
        assert best == max(each["validation"].values())

    (kept,) = Path("results/tuning").glob("digits-single-*/runs.jsonl")
    kept.write_text("".join(kept.read_text().splitlines(keepends=True)[:4]))
    shutil.rmtree(next(Path("results/tuning").glob("digits-multi-*")))
    assert to_do()[0] == "digits-single: 2 of 6", "as after an interruption"
    assert reproduce(monkeypatch, "--tune=digits") == 0 and budgets.read(own) == chosen
    assert reproduce(monkeypatch, "--tune=digits-multi", "--budgets=of my own.json") == 0
    assert budgets.read(Path("of my own.json")) == {"digits-multi": chosen["digits-multi"]}
    assert "python -m reproduction --budgets 'of my own.json'" in capsys.readouterr().out
    assert budgets.FILE.read_bytes() == packaged, "what is installed is not the user's to change"
    monkeypatch.setitem(settings, "digits-single", setting("single", seeds=2))
    assert to_do()[0] == "digits-single: 0 of 6", "scouts have one seed, whatever finalists have"


def test_budgets_of_ones_own_are_preferred_to_those_installed(tmp_path: Path) -> None:
    own, installed = tmp_path / "own.json", budgets.load()
    changed = {**installed["mnist-multi"], "training": asdict(Training(steps=3))}
    own.write_text(budgets.written({"mnist-multi": changed}))
    with budgets.taken_from(own):
        assert budgets.budgeted("mnist", "rwalk", "multi").training == Training(steps=3)
        assert budgets.load() == {**installed, "mnist-multi": changed}, "what it does not name stays"
    assert budgets.load() == installed


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (None, "No such file"),
        ("[]", "no attribute 'items'"),
        ("{", "Expecting property name"),
        ('{"minst": {}}', "'minst' does not describe a setting"),
        ('{"mnist-multi": {"training": {}}}', "'mnist-multi' does not describe a setting"),
        ('{"mnist-multi": {"training": {"step": 3}, "numbers": {}, "validation": {}, "tried": []}}', "'step'"),
    ],
)
def test_a_file_that_holds_no_budgets_is_refused_in_one_line(
    text: str | None,
    reason: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    if text is not None:
        Path("own.json").write_text(text)
    assert reproduce(monkeypatch, "table1-mnist", "--budgets=own.json", "--dry-run") == 2
    said = capsys.readouterr().err
    assert said.startswith("rwalk: own.json ") and reason in said and said.count("\n") == 1


def test_a_dry_run_needs_no_data_and_downloads_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(StreamSpec, "build", lambda *_: pytest.fail("a dry run loads no data"))
    assert reproduce(monkeypatch, "all", "--dry-run") == 0
    experiments = capsys.readouterr().out.splitlines()
    assert experiments[0] == "table1-mnist: 200 of 200 runs to do (20 s on an H200, 20 min on two CPU cores)"
    assert len(experiments) == len(EXPERIMENTS) and not any(tmp_path.iterdir())


def test_a_dry_run_counts_shared_runs_once(tiny: Experiment, tmp_path: Path) -> None:
    (planned,) = plan(["tableS1"], tmp_path / "none")
    assert list(dry_run([planned, planned], {})) == [
        "tableS1: 4 of 4 runs to do (seconds)",
        "tableS1: 0 of 4 runs to do",
    ]


@pytest.mark.parametrize("asked", ["table1", "figure2", "table1-mnist", "figure3-mnist", "mnist", "all"])
def test_experiments_are_found_by_all_their_names(asked: str) -> None:
    assert "table1-mnist" in [experiment.name for experiment in find([asked])]
