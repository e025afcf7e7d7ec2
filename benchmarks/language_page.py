"""Tables and figure of docs/language-models.md, from the rows that `language_ways` and `scale_guard` have written.

    python -m benchmarks.language_page                     writes them into the page
    python -m benchmarks.language_page --pack FOLDER …     first takes over the rows in these folders

A learning rate is chosen by held-out new text, the strength of a penalty by held-out text plus drift on the probes
(`language_ways.Plan`). The page's sentences are written by hand.
"""

from __future__ import annotations

import argparse
import json
import lzma
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from benchmarks.language_ways import (
    BEFORE,
    BUDGETS,
    COUNTS,
    DOMAINS,
    POSTHOC,
    PROBES,
    RATES,
    SMALLER,
    STRENGTHS,
    Plan,
    cell_of,
)
from benchmarks.scale_guard import GIB

ROWS = Path(__file__).with_name("language_rows.jsonl.xz")
PAGE = Path(__file__).parents[1] / "docs" / "language-models.md"
FIGURE = PAGE.with_name("language-frontier.svg")
FILES = ("rows", "times", "scale")
Row = Mapping[str, Any]
Point = tuple[str, float | None]  # a way and its number

NAMES: dict[Point, str] = {
    ("no guard", None): "no guard",
    ("smaller", 1 / 3): "no guard, next smaller learning rate",
    ("smaller", 0.1): "no guard, the one below that",
    ("Guard", None): "**`Guard(probes)`**",
    ("Guard, every", 16): "`Anchor(every=16)`",
    ("Guard, budget", 0.05): "`Guard(probes, budget=0.05)`",
    ("LoRA", 8): "LoRA, rank 8",
    ("LoRA", 64): "LoRA, rank 64",
    ("LoRA, Guard", 8): "LoRA, rank 8, `Guard(probes)`",
    ("STM", 2.5): "unlikely tokens masked (STM)",
    ("replay", 0.05): "old text, 5 % of a batch",
    ("replay", 0.1): "old text, 10 %",
    ("replay", 0.25): "old text, 25 %",
    ("WiSE-FT", 0.5): "no guard, then interpolated halfway (WiSE-FT)",
    ("rewind", 0.05): "no guard, then `rwalk rewind` to 0.05",
}
TIMED = {"Guard, budget": ("Guard", None), "replay": ("replay", 0.1)}  # others take as long as these


class Found:
    """All rows, and what they say of each way."""

    def __init__(self, rows: Iterable[Row]) -> None:
        kinds: dict[str, list[Row]] = {name: [] for name in FILES}
        for row in rows:
            kinds[row["kind"]].append(row)
        self.rows = {
            (row["domain"], row["way"], row["value"], row["rate"], row["seed"]): row
            for row in kinds["rows"]
            if "error" not in row
        }
        self.times = {(row["way"], row["value"]): row for row in kinds["times"]}
        self.scale = kinds["scale"]
        self.plan = Plan([dict(row) for row in kinds["rows"]])
        self.rates = {
            domain: {(cell.way, cell.value): cell.rate for cell in self.plan.chosen(domain)} for domain in DOMAINS
        }

    def points(self) -> list[Point]:
        known = [*NAMES, *((way, self.plan.strength(way)) for way in STRENGTHS)]
        return [point for point in known if all(self.of(point, domain) for domain in DOMAINS)]

    def of(self, point: Point, domain: str) -> list[Row]:
        """Its rows in a text, one per seed."""
        way, value = point
        rates = self.rates[domain]
        if way == "smaller":
            grid = [SMALLER, *RATES]
            place = grid.index(rates.get(("no guard", None), SMALLER)) - (1 if value and value > 0.2 else 2)
            if place < 0:
                return []
            way, value, rate = "no guard", None, grid[place]
        elif way in POSTHOC:
            rate = rates.get(("no guard", None), 0.0)
        else:
            rate = rates.get(point, 0.0)
        return [row for at, row in self.rows.items() if at[:4] == (domain, way, value, rate)]

    def value(self, point: Point, name: str) -> tuple[float, float, int]:
        """The mean over texts and seeds, the standard deviation over seeds, and how many seeds all texts have."""
        of_text = [{row["seed"]: row[name] for row in self.of(point, domain)} for domain in DOMAINS]
        seeds = sorted(set.intersection(*(set(each) for each in of_text)))
        by_seed = [mean(each[seed] for each in of_text) for seed in seeds]
        return mean(by_seed), stdev(by_seed) if len(by_seed) > 1 else 0.0, len(by_seed)

    def before(self, name: str) -> float | None:
        """A measure of the model before training, the mean over texts."""
        rows = [self.rows.get((domain, BEFORE, None, SMALLER, 0)) for domain in DOMAINS]
        return None if None in rows else mean(row[name] for row in rows if row is not None)

    def placed(self) -> dict[Point, tuple[float, float]]:
        """Drift and the new text's loss of each way."""
        return {each: (self.value(each, "drift")[0], self.value(each, "new")[0]) for each in self.points()}

    def name(self, point: Point) -> str:
        return NAMES[point] if point in NAMES else f"{point[0]}, λ = {point[1]:g}"


MEASURES = {
    "new": ("new text", ".3f"),
    "drift": ("drift", ".3f"),
    "other_prose": ("English prose", ".3f"),
    "skills_nats": ("questions, nats", ".3f"),
    "skills_right": ("questions, right", ".0%"),
}


def ways(found: Found) -> str:
    head = ["", *(title for title, _ in MEASURES.values()), "time of a step", "GiB"]
    lines = [_line(head), "|---|" + "---:|" * (len(head) - 1)]
    first = [(found.before(name), form) for name, (_, form) in MEASURES.items()]
    lines.append(_line(["before training", *("" if x is None else format(x, form) for x, form in first), "", ""]))
    base = found.times.get(("no guard", None))
    for point in found.points():
        cells = []
        for name, (_, form) in MEASURES.items():
            middle, spread, seeds = found.value(point, name)
            cells.append(format(middle, form) + (f" ± {spread:{form}}" if seeds > 1 and form == ".3f" else ""))
        timed = found.times.get(_timed(point))
        both = timed is not None and base is not None
        cells += [f"{timed['ms'] / base['ms']:.2f}", f"{timed['bytes'] / GIB:.1f}"] if both else ["", ""]
        lines.append(_line([found.name(point), *cells]))
    return "\n".join(lines)


def _timed(point: Point) -> Point:
    way = point[0]
    if way in ("smaller", *POSTHOC):
        return "no guard", None
    return (way, 1e-3) if way in STRENGTHS else TIMED.get(way, point)


def curve(found: Found) -> str:
    """Own samples and old text as probes, by their number."""
    measures = [(name, MEASURES[name][0]) for name in ("new", "drift", "other_prose")]
    titles = [f"{kind}: {title}" for kind in ("own samples", "old text") for _, title in measures]
    lines = [_line(["probes", *titles]), "|---:|" + "---:|" * len(titles)]
    for count in COUNTS:
        cells = []
        for way in ("Guard, own samples", "Guard, old text"):
            default = (way, count) == ("Guard, own samples", PROBES)
            at = ("Guard", None) if default else (way, count)
            row = found.rows.get((DOMAINS[0], *at, RATES[1], 0))
            cells += ["" if row is None else format(row[name], ".3f") for name, _ in measures]
        if any(cells):
            lines.append(_line([str(count), *cells]))
    return "\n".join(lines)


def budgets(found: Found) -> str:
    """Drift by budget, and the new text's loss beside that of a fixed weight which ends at the same drift."""
    lines = ["| learning rate | budget | drift | kept | new text | at the same drift by a fixed weight |"]
    lines.append("|---:|---:|---:|---:|---:|---:|")
    for rate in RATES:
        fixed = [
            (row["drift"], row["new"])
            for at, row in found.rows.items()
            if at[0] == DOMAINS[0] and at[3:] == (rate, 0) and at[1] in ("no guard", "Guard", "Guard, weight")
        ]
        for budget in BUDGETS:
            row = found.rows.get((DOMAINS[0], "Guard, budget", budget, rate, 0))
            if row is not None:
                beside = _at(sorted(fixed), row["drift"])
                cells = [f"{rate:.0e}".replace("e-0", "e-"), f"{budget:g}", f"{row['drift']:.3f}"]
                cells += [f"{row['left']:.0%}", f"{row['new']:.3f}", "" if beside is None else f"{beside:.3f}"]
                lines.append(_line(cells))
    return "\n".join(lines)


def _at(points: Sequence[tuple[float, float]], drift: float) -> float | None:
    """The new text's loss at a drift, on the line between the two nearest points."""
    for (low, left), (high, right) in pairwise(points):
        if low <= drift <= high and high > low:
            return left + (right - left) * (drift - low) / (high - low)
    return None


def scale(found: Found) -> str:
    """By way and size: milliseconds of a step, and GiB at the peak, with what the formula says."""
    sizes = list(dict.fromkeys(row["size"] for row in found.scale))
    lines = [_line(["", *(f"{size} B" for size in sizes)]), "|---|" + "---:|" * len(sizes)]
    for way in dict.fromkeys(row["way"] for row in found.scale):
        cells = []
        for size in sizes:
            row = next((each for each in found.scale if (each["size"], each["way"]) == (size, way)), None)
            if row is None:
                cells.append("")
            elif row["fits"]:
                cells.append(f"{row['step_ms']:.0f} ms, {row['peak'] / GIB:.1f} ({row['predicted'] / GIB:.1f})")
            else:
                cells.append(f"– ({row['predicted'] / GIB:.0f})")
        lines.append(_line([way, *cells]))
    return "\n".join(lines)


def pulls(found: Found) -> str:
    """The time of a pull, beside a pass of as many tokens."""
    rows = [row for row in found.scale if row["way"] == "Guard" and row["fits"]]
    lines = [_line(["", *(f"{row['size']} B" for row in rows)]), "|---|" + "---:|" * len(rows)]
    titles = {
        "first_pull_ms": "the first pull",
        "pull_ms": "later ones",
        "pass_ms": "forward and backward pass alone",
    }
    for key, title in titles.items():
        lines.append(_line([title, *(f"{row[key]:.0f} ms" for row in rows)]))
    return "\n".join(lines)


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def frontier(points: Mapping[Any, tuple[float, float]]) -> list[Any]:
    """Those that no other point beats in both numbers, smaller being better."""
    return [
        one
        for one, (x, y) in points.items()
        if not any(a <= x and b <= y and (a, b) != (x, y) for a, b in points.values())
    ]


def figure(found: Found, path: Path) -> None:
    import matplotlib

    matplotlib.use("agg")
    matplotlib.rcParams.update({"svg.hashsalt": "rwalk", "svg.fonttype": "none"})
    import matplotlib.pyplot as plt

    at = found.placed()
    best = frontier(at)
    figure, axes = plt.subplots(figsize=(8.5, 5), layout="constrained")
    line = sorted(at[point] for point in best)
    axes.plot(*zip(*line, strict=True), color="#999999", linewidth=1, zorder=1)
    for point, (x, y) in at.items():
        colour, mark = ("#009E73", "o") if "Guard" in point[0] else ("#D55E00", "s")
        axes.plot(x, y, mark, color=colour, markersize=7 if point in best else 5)
        name = found.name(point).replace("*", "").replace("`", "")
        axes.annotate(name, (x, y), xytext=(5, 4), textcoords="offset points", fontsize=7)
    axes.set(xscale="log", xlabel="drift on own samples, nats", ylabel="loss on the new text, nats")
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def filled(page: str, blocks: Mapping[str, str]) -> str:
    """The page with its blocks replaced: everything between `<!-- NAME -->` and `<!-- end -->`."""
    for name, block in blocks.items():
        before, mark, rest = page.partition(f"<!-- {name} -->\n")
        if not mark:
            raise SystemExit(f"the page has no place for {name!r}")
        page = f"{before}{mark}{block}\n<!-- end -->{rest.partition('<!-- end -->')[2]}"
    return page


def blocks(found: Found) -> dict[str, str]:
    return {
        "ways": ways(found),
        "probes": curve(found),
        "budgets": budgets(found),
        "scale": scale(found),
        "pulls": pulls(found),
    }


def read(path: Path) -> list[Row]:
    return [json.loads(line) for line in lzma.open(path, "rt", encoding="utf-8")]


def pack(folders: Sequence[Path], path: Path) -> None:
    """Take over rows; later ones replace earlier ones of the same run."""
    rows: dict[Any, dict[str, Any]] = {}
    for folder in folders:
        for kind in FILES:
            file = folder / f"{kind}.jsonl"
            for line in file.read_text(encoding="utf-8").splitlines() if file.exists() else ():
                row = {"kind": kind, **json.loads(line)}
                key = cell_of(row) if kind == "rows" else (row.get("size"), row["way"], row.get("value"))
                rows[kind, key] = row
    with lzma.open(path, "wt", encoding="utf-8") as out:
        out.writelines(json.dumps(row) + "\n" for row in rows.values())


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pack", type=Path, nargs="+", metavar="FOLDER", help="folders with rows to take over")
    options = parser.parse_args(arguments)
    if options.pack:
        pack(options.pack, ROWS)
    found = Found(read(ROWS))
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8"), blocks(found)), encoding="utf-8")
    figure(found, FIGURE)
    print("on the frontier:", ", ".join(found.name(point) for point in frontier(found.placed())))


if __name__ == "__main__":
    main()
