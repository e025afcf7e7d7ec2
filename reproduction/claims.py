"""The claims of the paper's text, each judged by our rows: confirmed, refuted, or undecided with these seeds.

A claim is a few margins that must be above zero (`verdicts`). Where the paper gives no number (how near is
"nearly"?), the threshold is ours and is given with the numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from reproduction import judges, strength_judges
from reproduction.experiments import SAMPLE_SIZES
from reproduction.measured import Measured, NotRun
from reproduction.verdicts import Evidence
from reproduction.words import NEAR

DATASETS = {"mnist": "MNIST", "cifar100": "CIFAR-100"}
CATCHES_UP = {"mnist": 20, "cifar100": 200}  # samples per class, by the paper's text

Judge = Callable[[Measured, str], Evidence]


@dataclass(frozen=True)
class Claim:
    text: str
    by: Judge
    datasets: tuple[str, ...] = tuple(DATASETS)
    needs: str = ""  # an experiment beyond the paper's tables, less its dataset
    caveat: str = ""  # what a reader of the verdict must know

    @property
    def is_about_rwalk(self) -> bool:
        """Whether it says that RWalk is good, not what the problem or other methods are like."""
        return "RWalk" in self.text

    def judge(self, measured: Measured, dataset: str) -> Evidence | None:
        """None, unless everything needed to judge it has been run."""
        try:
            return self.by(measured, dataset)
        except NotRun:
            return None


MNIST, CIFAR = ("mnist",), ("cifar100",)
SCALE = "EWC++'s λ's have another scale here (see table S2)"
LESS = strength_judges.less_sensitive_than
AS_GOOD = partial(judges.best_of_block, "multi", within=NEAR)
CLAIMS = (
    Claim("RWalk is best in single-head evaluation with samples", partial(judges.best_of_block, "samples")),
    Claim("RWalk is as good as any in multi-head evaluation", AS_GOOD, MNIST),
    Claim("RWalk is best in multi-head evaluation", partial(judges.best_of_block, "multi"), CIFAR),
    Claim("RWalk beats GEM and iCaRL with ResNet-18", judges.beats_gem, CIFAR),
    Claim("EWC++ is at least as good as EWC", strength_judges.ewcpp_is_as_good, needs="ewc"),
    Claim("multi-head evaluation hides the problem", judges.multi_head_hides),
    Claim("… because there regularised methods hardly forget or refuse to learn", judges.hardly_anything_is_lost),
    Claim("in single-head evaluation forgetting and intransigence grow", judges.single_head_is_worse, MNIST),
    Claim("… and accuracy falls, whatever the method", judges.single_head_loses_accuracy),
    Claim("a few samples mitigate intransigence", judges.samples_mitigate),
    Claim("… and regularised methods then transfer forward (I < 0)", judges.samples_give_forward_transfer, CIFAR),
    Claim("forgetting and intransigence are negatively correlated", strength_judges.negative_correlation),
    Claim("RWalk with samples is nearest to F = I = 0: the best trade-off", judges.nearest_to_zero, MNIST),
    Claim("all but iCaRL-hb1 are top right in figure 3 (F > 0, I > 0)", judges.top_right_but_hybrid, MNIST),
    Claim("all are in the top quadrants of figure 3, on both sides of I = 0", judges.both_top_quadrants, CIFAR),
    Claim("MoF is the best sampler", judges.mof_is_best),
    Claim("uniform sampling is as good as MoF", judges.uniform_is_as_good),
    Claim("regularised methods are insensitive to the sampler", judges.samplers_are_alike),
    Claim("… less sensitive than vanilla", judges.only_vanilla_minds_samplers),
    Claim("RWalk is insensitive to λ", strength_judges.insensitive),
    Claim("RWalk is less sensitive to λ than EWC++", partial(LESS, "ewc++"), caveat=SCALE),
    Claim("RWalk is less sensitive to λ than PI", partial(LESS, "pi")),
    Claim("… and RWalk's λ depends less on the number of tasks", strength_judges.one_lambda, needs="tasks"),
    Claim(
        "the Fisher vanishes at a minimum: the longer EWC trains, the less it holds",
        strength_judges.fisher_vanishes,
        needs="fisher",
    ),
    Claim("where vanilla is poor, RWalk is best", judges.best_where_vanilla_is_poor),
    Claim(
        "vanilla catches up with enough samples",
        partial(judges.vanilla_catches_up, {dataset: sizes[-1] for dataset, sizes in SAMPLE_SIZES.items()}),
    ),
    Claim("… which is 20 per class (MNIST), 200 (CIFAR-100)", partial(judges.vanilla_catches_up, CATCHES_UP)),
)  # fmt: skip
