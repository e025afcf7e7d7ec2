"""Figures in prose that is written by hand: each is computed from the rows and looked for in the text."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path

import pytest

from reproduction import question_tables
from reproduction.measured_cells import Measured
from reproduction.own_questions import FACTORS_OF
from reproduction.paper_claims import REGULARISED, spread
from reproduction.paper_experiments import LAMBDA_DECADES
from reproduction.published_values import TABLE_S2
from reproduction.question_tables import ABLATED, Surface, gaps, main_effect, outcomes
from reproduction.results_pages import NEAR_PUBLISHED, count, headlines, judged_by
from reproduction.yardstick_page import results_of
from reproduction.yardsticks import YARDSTICKS

ROOT = Path(__file__).parents[2]


def text(page: str) -> str:
    """A page as one line, without emphasis."""
    return re.sub(r"\s+", " ", (ROOT / page).read_text(encoding="utf-8").replace("**", "").replace("−", "-"))


def stands(page: str, *said: str) -> None:
    words = text(page)
    for each in said:
        assert each in words, f"{page} does not say: {each}"


def test_how_accurate_rwalk_is(every_row: Measured) -> None:
    gaps = {what: ours.mean() - paper for what, (paper, ours) in headlines(every_row).items() if ours is not None}
    short = [what for what, gap in gaps.items() if gap < -NEAR_PUBLISHED]
    assert len(gaps) == 5 and short == ["CIFAR-100, multi-head"]
    gap = gaps["CIFAR-100, multi-head"]
    stands("RESULTS.md", "in four of five places", f"in multi-head evaluation is {-gap:.1f} points short")
    stands("RESULTS.md", "RWalk has 72.5 where the paper has 74.2. Its gap to PI (73.4)")


def test_how_far_rwalk_is_from_others(every_row: Measured) -> None:
    mean = partial(every_row.mean, "A")
    for dataset in ("mnist", "cifar100"):
        for block, suffix in (("multi", ""), ("single", ""), ("samples", "-S")):
            assert spread(mean(f"table1-{dataset}", block, m + suffix) for m in REGULARISED).value < 2.05
    behind = mean("table1-cifar100", "multi", "pi") - mean("table1-cifar100", "multi", "rwalk")
    stands("RESULTS.md", f"RWalk is {behind.value:.1f} points behind PI")
    own = mean("tableS1", "5000 samples", "rwalk") - mean("tableS1", "5120 samples", "gem")
    one = mean("resnet", "one budget", "gem") - mean("resnet", "one budget", "rwalk")
    alone = mean("resnet", "own budget", "vanilla")
    stands("RESULTS.md", f"with ResNet-18 by {own.value:.1f} points", f"it is {one.value:.1f} points behind")
    stands("RESULTS.md", f"without any penalty are as good as RWalk ({alone.value:.1f})")
    f, i = (
        {m: every_row.mean(x, "table1-cifar100", "multi", m).value for m in ("rwalk", "pi")} for x in ("F", "I")
    )
    stands("RESULTS.md", f"({f['rwalk']:.3f} against {f['pi']:.3f})", f"({i['rwalk']:.3f} against {i['pi']:.3f})")


@pytest.mark.parametrize(
    ("dataset", "said"), [("mnist", "by {} points on MNIST"), ("cifar100", "by {} on CIFAR-100")]
)
def test_how_sensitive_rwalk_is_to_lambda(dataset: str, said: str, every_row: Measured) -> None:
    spreads = sorted(
        spread(every_row.mean("A", f"tableS2-{dataset}", form, f"rwalk λ={lam:g}") for lam in LAMBDA_DECADES).value
        for form in ("gradient", "proximal")
    )
    stands("RESULTS.md", said.format(f"{spreads[0]:.1f} to {spreads[1]:.1f}"))
    published = [each.A for each in TABLE_S2[dataset, "rwalk"].values()]
    assert f"{max(published) - min(published):.1f}" == {"mnist": "1.0", "cifar100": "1.3"}[dataset]


def test_what_the_distance_is_worth(every_row: Measured) -> None:
    for dataset, said in (("mnist", "less than {} points on MNIST"), ("cifar100", "and {} on CIFAR-100")):
        most = max(gap.value + gap.reach for gap in gaps(f"ablation-{dataset}", ABLATED, every_row).values())
        stands("RESULTS.md", said.format(f"{most:.1f}"))
    gap = gaps("ablation-cifar100", ABLATED, every_row)["multi", "Δθ² instead of ½FΔθ²"]
    other = every_row.mean("A", "ablation-cifar100", "multi", "rwalk-euclidean")
    ahead = [
        -gaps("ablation-cifar100", ABLATED, every_row)[block, "Δθ² instead of ½FΔθ²"].value
        for block in ("multi", "samples")
    ]
    stands("docs/methods/rwalk.md", f"the Euclidean distance was {ahead[0]:.1f} and {ahead[1]:.1f} points ahead")
    stands(
        "RESULTS.md",
        f"{other.value:.1f}, the only change above 73; not decided (+{-gap.value:.1f} ± {gap.reach:.1f})",
    )


def test_what_the_authors_code_changes(every_row: Measured) -> None:
    def effect(name: str, what: str, factor: str) -> tuple[float, float]:
        mean = main_effect(outcomes(name, every_row)[what], FACTORS_OF[name], factor)
        return mean.value, mean.reach

    mnist, cifar = (effect(f"authors-{d}", "vanilla's F", "debias")[0] for d in ("mnist", "cifar100"))
    initial = effect("authors-cifar100", "vanilla's F", "init")[0]
    stands("RESULTS.md", f"F rises by {mnist:.3f} on MNIST and {cifar:.3f} on CIFAR-100")
    stands("RESULTS.md", f"where their initial weights add {initial:.3f}")
    for factor, said in (
        ("init", "initial weights of the authors' code (used in table 1)"),
        ("conv5", "their fifth convolution"),
        ("length", "half as many steps, as their code has"),
        ("debias", "Adam's bias correction not reset, as in their code"),
    ):
        value, reach = effect("authors-cifar100", "A of rwalk", factor)
        stands("RESULTS.md", f"| {said} | {value:+.1f} ± {reach:.1f} |")
    value, _ = effect("authors-mnist-samples", "A of rwalk", "concat")
    stands("RESULTS.md", f"costs RWalk {-value:.1f} points on MNIST")


def test_how_long_and_how_strongly(every_row: Measured) -> None:
    surfaces = {each.panel: each for each in Surface.all_of(every_row)}
    safe = surfaces["balanced, reset, normal"].safest
    assert (safe.steps, safe.lambdas[0], safe.lambdas[-1]) == (1000, 1.0, 1e6)
    stands(
        "RESULTS.md", f"A is then {min(safe.accuracy):.1f} to {max(safe.accuracy):.1f} for every λ from 1 to 10⁶"
    )
    best = surfaces["balanced, reset"]
    spreads = best.spread[list(question_tables.SURFACE_STEPS).index(200)]
    stands("RESULTS.md", f"The best is {best.accuracy.max():.1f}, at 200 steps", f"a bad λ costs {spreads:.1f}")
    plain = surfaces["no exemplars, reset"].safest
    flat = max(plain.accuracy) - min(plain.accuracy)
    stands("RESULTS.md", f"six decades of λ differ by {flat:.1f} points at {plain.steps} steps")


def test_how_lambda_matters_from_the_authors_weights_and_longer(every_row: Measured) -> None:
    def of(name: str, method: str) -> dict[float, float]:
        """A by λ, in the gradient form."""
        cells = {
            e.run.lam: e for e, _ in every_row.entries(name) if (e.run.method, e.block) == (method, "gradient")
        }
        return {lam: every_row.mean("A", name, e.block, e.label).value for lam, e in cells.items()}

    rwalk, pi, before = (
        of("tableS2-mnist-normal", "rwalk"),
        of("tableS2-mnist-normal", "pi"),
        of("tableS2-mnist", "pi"),
    )
    held = [a for lam, a in rwalk.items() if lam >= 1]
    stands("RESULTS.md", f"it varies by {max(rwalk.values()) - min(rwalk.values()):.1f} on MNIST")
    stands("RESULTS.md", f"and by {max(held) - min(held):.1f} from λ = 1 on")
    stands("RESULTS.md", f"RWalk at {min(held):.1f} to {max(held):.1f} for every λ from 1 to 10⁴")
    spread_before = max(before.values()) - min(before.values())
    stands("RESULTS.md", f"spread was {spread_before:.1f}, at {min(pi.values()):.1f} to {max(pi.values()):.1f}")


def test_pages_that_repeat_a_figure_have_it_from_the_rows(every_row: Measured) -> None:
    """One place for figures that stand on several pages: this test."""
    mean = every_row.mean
    label = {block: "rwalk-S" if block == "samples" else "rwalk" for block in ("multi", "single", "samples")}
    multi, single = (mean("A", "table1-mnist", block, label[block]).value for block in ("multi", "single"))
    stands("docs/concepts/single-head.md", f"has {multi:.1f} in the one and {single:.1f} in the other")
    stands("docs/howto/compare-methods.md", f"can have {multi:.0f} % in one and {single:.0f} % in the other")
    before = mean("I", "table1-mnist", "single", "rwalk").value
    learned = [
        every_row.cell("table1-mnist", block, label[block])[1].accuracy["single"][:, -1, -1].mean()
        for block in ("single", "samples")
    ]
    after = before - (learned[1] - learned[0])
    stands("docs/concepts/intransigence.md", f"took RWalk's intransigence from {before:.2f} to {after:.2f}")
    cells = results_of(YARDSTICKS["cifar100-methods"], every_row.rows)
    (joint,) = (each.ours.value for each in cells if (each.cell.label, each.cell.head) == ("joint", "single"))
    closed_form = re.findall(r"17 s on an H200 \| (\d+\.\d)", text("docs/classifier.md"))
    stands("README.md", f"{closed_form[0]} % in 17 s", f"trained on all data at once has {joint:.1f} %")
    stands("docs/methods/ridge.md", f"closed form has {closed_form[0]} %", f"all data at once {joint:.1f} %")
    stands(
        "docs/closed-form.md",
        f"it has {closed_form[0]} % after ten",
        f"trained on all data at once, has {joint:.1f} %",
    )
    claims = count(judged_by(every_row)).replace("**", "")
    stands(
        "README.md",
        re.sub(r"(\d+) claims of the paper, (\d+) verdicts: (.*?)\. .*", r"\1 claims, \2 verdicts: \3", claims),
    )
