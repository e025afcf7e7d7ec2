"""From margins to verdicts: Holm's correction by hand, power against simulation."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from reproduction.verdicts import LEVEL, decided, seeds_to_decide, verdict
from rwalk.report.welch_test import Mean


@pytest.mark.parametrize(
    ("margins", "expected"),
    [
        ([Mean(2.0, 1.0), Mean(0.1)], "confirmed"),
        ([Mean(2.0, 1.0), Mean(1.9, 1.0)], "undecided"),
        ([Mean(2.7, 1.0, freedom=4)], "undecided"),
        ([Mean(2.8, 1.0, freedom=4)], "confirmed"),
        ([Mean(-1.9, 1.0)], "undecided"),
        ([Mean(2.1, 1.0), Mean(-2.1, 1.0)], "undecided"),  # two chances of an error: 2.1 is not enough
        ([Mean(2.3, 1.0), Mean(-2.3, 1.0)], "**refuted**"),
        ([Mean(0.0)], "undecided"),
        ([Mean.over(np.array([9.0]))], "undecided"),  # one seed decides nothing
        ([], "undecided"),
    ],
)
def test_a_claim_is_decided_by_all_its_margins_together(margins: list[Mean], expected: str) -> None:
    assert verdict(margins) == expected


def test_holms_steps() -> None:
    """Sorted, the i-th of m chances must be at most α / (m − i); the first that is not stops the rest."""

    def margin(chance: float) -> Mean:
        return Mean(float(stats.norm.isf(chance / 2)), 1.0)

    for chances, expected in (
        ((0.01, 0.02, 0.03), (True, True, True)),
        ((0.03, 0.01, 0.02), (True, True, True)),
        ((0.02, 0.02, 0.02), (False, False, False)),  # 0.05 / 3 comes first
        ((0.01, 0.03, 0.04), (True, False, False)),
        ((0.001, 0.024, 0.06), (True, True, False)),
    ):
        margins = [margin(chance) for chance in chances]
        assert [each.chance for each in margins] == pytest.approx(chances)
        assert tuple(decided(margins)) == expected


def test_true_margins_of_zero_are_seldom_decided() -> None:
    """Over ten margins at once, an error in at most about one of twenty claims."""
    draw = np.random.default_rng(0)
    wrong = sum(
        any(decided([Mean.over(draw.normal(size=5)) - Mean.over(draw.normal(size=5)) for _ in range(10)]))
        for _ in range(400)
    )
    assert wrong / 400 < LEVEL + 3 * np.sqrt(LEVEL * (1 - LEVEL) / 400)


def test_the_seeds_it_takes_do_decide_it_most_of_the_time() -> None:
    """If what was seen were true: as many seeds decide in four of five trials."""
    draw = np.random.default_rng(1)
    a, b = np.array([1.0, 2.0, 0.0, 1.5, 0.5]), np.array([0.1, -1.4, 1.6, 0.6, -0.9])
    margin = Mean.over(a) - Mean.over(b)
    assert verdict([margin]) == "undecided"
    seeds = int(seeds_to_decide([margin]))
    assert 5 < seeds < 100

    def another() -> bool:
        ours, theirs = (draw.normal(x.mean(), x.std(ddof=1), seeds) for x in (a, b))
        return verdict([Mean.over(ours) - Mean.over(theirs)]) == "confirmed"

    assert np.mean([another() for _ in range(1000)]) == pytest.approx(0.8, abs=0.05)


def test_what_seeds_are_for_depends_on_the_direction() -> None:
    near, far = Mean(0.5, 1.0, 8.0, 5), Mean(2.0, 1.0, 8.0, 5)
    against = Mean(-1.5, 1.0, 8.0, 5)
    assert seeds_to_decide([near, far]) == seeds_to_decide([near, near]), (
        "all must be confirmed: the hardest counts"
    )
    assert seeds_to_decide([near, against]) < seeds_to_decide([near, far]), "one refutation is enough"
    assert seeds_to_decide([Mean(1e-6, 1.0, 8.0, 5)]) == np.inf
    assert seeds_to_decide([Mean.over(np.array([9.0]))]) == np.inf, "one seed has no scatter"
