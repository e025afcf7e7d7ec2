"""What the rows of `language_model` say: tables, a picture, and which settings are on the frontier.

python -m benchmarks.language_page rows.jsonl [--seed 0] [--names German French] [--picture frontier.svg]
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from benchmarks.language_rows import HOLDING, Way, way_of

LOWEST, HIGHEST = 0.8, 1.2  # of the budget: where drift is to end
NAMES = {
    "plain": "without a guard",
    "rwalk": "RWalk",
    "ewc": "EWC",
    "l2": "L2-SP",
    "anchor": "Anchor",
    "lora": "LoRA",
    "lora+anchor": "LoRA, Anchor",
    "lora+ewc": "LoRA, EWC",
    "lora+l2": "LoRA, L2-SP",
    "replay": "replay of own samples",
}
MARKS = {"rise": "123456789", "held_out": "abcdefghi"}  # what points on either frontier are called in the picture
Row = Mapping[str, Any]


@dataclass(frozen=True)
class Found:
    """What came of a way, over its seeds."""

    way: Way
    rows: tuple[Row, ...]

    @property
    def rise(self) -> float:
        """Of the first text's loss: what was forgotten."""
        return mean(row["after"]["first"] - row["before"]["first"] for row in self.rows)

    @property
    def learned(self) -> float:
        """The second text's loss."""
        return mean(row["after"]["second"] for row in self.rows)

    @property
    def held_out(self) -> float:
        """Drift, on own samples that no guard has seen."""
        return mean(row["held_out_drift"] for row in self.rows)

    @property
    def shares(self) -> list[float]:
        """Drift at the end, in units of the budget, from the smallest to the largest."""
        return sorted(row["drift"] / row["budget"] for row in self.rows)

    def __str__(self) -> str:
        way = self.way
        strength = "" if way.strength is None else f", λ = {way.strength:g}"
        budget = "" if way.budget is None else f", budget {way.budget:g}"
        return f"{NAMES.get(way.method, way.method)}{strength}{budget}, at {short(way.rate)}"


def short(rate: float) -> str:
    """As people write learning rates.

    >>> short(0.0003)
    '3e-4'
    """
    return f"{rate:.0e}".replace("e-0", "e-")


def found(rows: Sequence[Row]) -> list[Found]:
    each: dict[Way, list[Row]] = {}
    for row in rows:
        each.setdefault(way_of(row), []).append(row)
    return [Found(way, tuple(of_way)) for way, of_way in each.items()]


def with_all_seeds(ways: Sequence[Found]) -> list[Found]:
    """Those that were walked from every seed: the only ones whose means can be compared."""
    most = max(len(each.rows) for each in ways)
    return [each for each in ways if len(each.rows) == most]


# ── budgets ───────────────────────────────────────────────────────────────────────────────────────────────────


def is_binding(row: Row, rows: Sequence[Row]) -> bool:
    """Whether training without a guard, from the same seed, would exceed the budget."""
    free = [each["drift"] for each in rows if _is_beside(each, row)]
    return not free or free[0] > row["budget"]


def is_held(row: Row, rows: Sequence[Row]) -> bool:
    share = row["drift"] / row["budget"]
    return share <= HIGHEST and (share >= LOWEST or not is_binding(row, rows))


def _is_beside(plain: Row, row: Row) -> bool:
    return bool(plain["method"] == "plain" and (plain["seed"], plain["rate"]) == (row["seed"], row["rate"]))


def held_table(rows: Sequence[Row]) -> str:
    """Drift at the end ÷ budget: in bold outside of what is allowed, in brackets where nothing had to be held."""
    with_budget = [row for row in rows if row["budget"] is not None and row["method"] in HOLDING]
    budgets = sorted({row["budget"] for row in with_budget})
    heads = " | ".join(f"budget {budget:g}" for budget in budgets)
    lines = [f"| | learning rate | {heads} |", "|---" * 2 + "|---:" * len(budgets) + "|"]
    for method in HOLDING:
        for rate in sorted({row["rate"] for row in with_budget}):
            ways = [Way(method, rate, None, budget) for budget in budgets]
            cells = [_cell([row for row in with_budget if way_of(row) == way], rows) for way in ways]
            lines.append(f"| {NAMES[method]} | {short(rate)} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(of_way: Sequence[Row], rows: Sequence[Row]) -> str:
    """The share of one seed, or the smallest and the largest."""
    if not of_way:
        return ""
    shares = [f"{share:.2f}" for share in Found(way_of(of_way[0]), tuple(of_way)).shares]
    said = "–".join(dict.fromkeys((shares[0], shares[-1])))
    if not all(is_held(row, rows) for row in of_way):
        return f"**{said}**"
    return said if any(is_binding(row, rows) for row in of_way) else f"({said})"


def verdict(rows: Sequence[Row]) -> str:
    """How many budgets were held."""
    budgets = [row for row in rows if row["budget"] is not None and row["method"] in HOLDING]
    missed = [row for row in budgets if not is_held(row, rows)]
    free = sum(not is_binding(row, rows) for row in budgets)
    said = f"budgets held: {len(budgets) - len(missed)} of {len(budgets)}; {free} would be without a guard"
    names = [f"{Found(way_of(row), (row,))} ({row['drift'] / row['budget']:.2f})" for row in missed]
    return "; not: ".join([said, "; ".join(names)]) if missed else said


# ── the frontier ──────────────────────────────────────────────────────────────────────────────────────────────


def on_frontier(ways: Sequence[Found], cost: str = "rise") -> list[Found]:
    """Those of which no other both keeps and learns at least as much; the most keeping first."""
    best: list[Found] = []
    for each in sorted(ways, key=lambda each: (getattr(each, cost), each.learned)):
        if not best or each.learned < best[-1].learned:
            best.append(each)
    return best


def scatter(ways: Sequence[Found]) -> tuple[float, float] | None:
    """The standard deviations between seeds of what is forgotten and learned, pooled over all ways."""
    several = [each for each in ways if len(each.rows) > 1]
    if not several:
        return None
    rises = [stdev(row["after"]["first"] - row["before"]["first"] for row in each.rows) ** 2 for each in several]
    losses = [stdev(row["after"]["second"] for row in each.rows) ** 2 for each in several]
    return mean(rises) ** 0.5, mean(losses) ** 0.5


def frontier_table(rows: Sequence[Row], names: Sequence[str] = ("first text", "second text")) -> str:
    """One line per way, means over its seeds; those on the frontier in bold."""
    ways = found(rows)
    whole = with_all_seeds(ways)
    best = on_frontier(whole)
    heads = ("", "seeds", f"{names[0]} forgotten", f"{names[1]}, after", "drift")
    lines = [f"| {' | '.join(heads)} |", "|---" + "|---:" * 4 + "|"]
    for each in sorted(ways, key=lambda each: (list(NAMES).index(each.way.method), each.rise)):
        mark = "**" if each in best else ""
        numbers = f"{each.rise:+.3f} | {each.learned:.3f} | {each.held_out:.3f}"
        lines.append(f"| {mark}{each}{mark} | {len(each.rows)} | {numbers} |")
    return "\n".join(lines)


def frontier_words(rows: Sequence[Row]) -> str:
    """The ways on either frontier, under the marks they have in the picture."""
    whole = with_all_seeds(found(rows))
    said = [f"on the frontier, {len(whole[0].rows)} seeds, from what keeps most to what learns most:"]
    for cost, marks in MARKS.items():
        said += [f"by {cost}:"]
        for mark, each in zip(marks, on_frontier(whole, cost), strict=False):
            said.append(f"- {mark}: {each} ({getattr(each, cost):+.3f}, {each.learned:.3f})")
    spread = scatter(whole)
    if spread is not None:
        said.append(f"between seeds: ± {spread[0]:.3f} of what is forgotten, ± {spread[1]:.3f} of what is learned")
    return "\n".join(said)


def summary(rows: Sequence[Row], names: Sequence[str] = ("first text", "second text")) -> str:
    if not rows:
        return "no rows yet"
    return "\n\n".join([held_table(rows), verdict(rows), frontier_table(rows, names), frontier_words(rows)])


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", type=Path, nargs="+", help="files of rows")
    parser.add_argument("--names", nargs=2, default=("first text", "second text"), help="of the two texts")
    parser.add_argument("--picture", type=Path, help="where to draw the frontiers, an SVG")
    parser.add_argument("--seed", type=int, help="rows of this seed alone")
    options = parser.parse_args(arguments)
    rows = [json.loads(line) for file in options.rows for line in file.read_text().splitlines()]
    if options.seed is not None:
        rows = [row for row in rows if row["seed"] == options.seed]
    print(summary(rows, options.names))
    if options.picture is not None:
        from benchmarks.language_picture import draw

        draw(with_all_seeds(found(rows)), options.names, options.picture)


if __name__ == "__main__":
    main()
