"""Tables and figure of docs/language-models.md, from the rows that `language_ways` and `scale_guard` have written.

    python -m benchmarks.language_page                     writes them into the page
    python -m benchmarks.language_page --pack FOLDER …     first takes over the rows in these folders

The page's sentences are written by hand.
"""

from __future__ import annotations

import argparse
import json
import lzma
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from benchmarks.language_ways import ADAPTER_RATES, BEFORE, COUNTS, DOMAINS, PROBES, RATES, SMALLER, cell_of
from benchmarks.scale_guard import EVERY, GIB, SHAPES, predicted

ROWS = Path(__file__).with_name("language_rows.jsonl.xz")
PAGE = Path(__file__).parents[1] / "docs" / "language-models.md"
FIGURE = PAGE.with_name("language-frontier.svg")
FILES = ("rows", "scale")
Row = Mapping[str, Any]
Way = tuple[str, float | None, float]  # its name, its number, the learning rate

NAMES = {
    "no guard": "no guard",
    "Guard": "**`Guard(probes)`**",
    "Guard, every": "`Anchor(every={:g})`",
    "Guard, weight": "`Anchor(weight={:g})`",
    "Guard, budget": "`Guard(probes, budget={:g})`",
    "LoRA": "LoRA, rank {:g}",
    "LoRA, Guard": "LoRA, rank {:g}, `Guard(probes)`",
    "STM": "tokens above a perplexity of {:g} masked (STM)",
    "replay": "old text, {:.0%} of all sequences",
    "WiSE-FT": "no guard, interpolated to {:.0%} (WiSE-FT)",
    "rewind": "no guard, `rwalk rewind` to {:g}",
    "L2-SP": "L2-SP, λ = {:g}",
    "EWC": "EWC, λ = {:g}",
    "EWC-DR": "EWC-DR, λ = {:g}",
}
# The figure's families of ways: colour, mark and names. The ways of one are named where no other way is better.
FAMILIES = {
    "Guard": ("#009E73", "o", ("Guard", "Guard, every", "Guard, weight", "Guard, budget", "LoRA, Guard")),
    "EWC, EWC-DR, L2-SP": ("#D55E00", "s", ("EWC", "EWC-DR", "L2-SP")),
    "LoRA": ("#0072B2", "^", ("LoRA",)),
    "old text mixed in": ("#CC79A7", "D", ("replay",)),
    "no guard": ("#4D4D4D", "X", ("no guard", "WiSE-FT", "rewind")),
}
NAMED = ("Guard",)
TICKS = (0.02, 0.05, 0.1, 0.2, 0.5)
MEASURES = {
    "new": ("new text", ".3f"),
    "drift": ("drift", ".3f"),
    "other_prose": ("English prose", ".3f"),
    "skills_nats": ("questions, nats", ".3f"),
    "skills_right": ("questions, right", ".0%"),
}


class Found:
    """All rows, by way and text."""

    def __init__(self, rows: Iterable[Row]) -> None:
        self.ways: dict[Way, dict[str, list[Row]]] = {}
        self.scale: list[Row] = []
        for row in rows:
            if row["kind"] == "scale":
                self.scale.append(row)
            elif "error" not in row:
                way = (row["way"], row["value"], row["rate"])
                self.ways.setdefault(way, {}).setdefault(row["domain"], []).append(row)

    def at(self, rate: float, texts: Sequence[str]) -> dict[Way, dict[str, float]]:
        """The means over texts and seeds of every way that learned all these texts, at this learning rate.

        Adapters are at a larger one; the smallest learning rate without a guard is always there.
        """
        found = {}
        for way, by_text in self.ways.items():
            rates = ADAPTER_RATES[-1:] if "LoRA" in way[0] else (rate, SMALLER)
            if way[0] in NAMES and way[2] in rates and all(text in by_text for text in texts):
                found[way] = {
                    name: mean(mean(row[name] for row in by_text[text]) for text in texts) for name in MEASURES
                }
        return dict(sorted(found.items(), key=lambda item: item[1]["drift"]))

    def before(self, texts: Sequence[str]) -> dict[str, float] | None:
        by_text = self.ways.get((BEFORE, None, SMALLER), {})
        if not all(text in by_text for text in texts):
            return None
        return {name: mean(by_text[text][0][name] for text in texts) for name in MEASURES}


def name_of(way: Way, rate: float) -> str:
    name, value, own = way
    text = NAMES[name] if value is None else NAMES[name].format(value)
    return text if own == rate else f"{text}, at {own:.0e}".replace("e-0", "e-")


def ways(found: Found, rate: float, texts: Sequence[str]) -> str:
    lines = [_line(["", *(title for title, _ in MEASURES.values())]), "|---|" + "---:|" * len(MEASURES)]
    before = found.before(texts)
    rows = [] if before is None else [("before training", before)]
    rows += [(name_of(way, rate), each) for way, each in found.at(rate, texts).items()]
    for name, each in rows:
        cells = (format(max(each[key], 0.0), form) for key, (_, form) in MEASURES.items())
        lines.append(_line([name, *cells]))
    return "\n".join(lines)


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
            rows = found.ways.get((*at, RATES[1]), {}).get(DOMAINS[0])
            cells += [format(rows[0][name], ".3f") if rows else "" for name, _ in measures]
        if any(cells):
            lines.append(_line([str(count), *cells]))
    return "\n".join(lines)


def scale(found: Found) -> str:
    """By way and size: milliseconds of a step, and GiB at the peak, with what the formula says."""
    sizes = list(dict.fromkeys(row["size"] for row in found.scale))
    lines = [_line(["", *(f"{size} B" for size in sizes)]), "|---|" + "---:|" * len(sizes)]
    for way in dict.fromkeys(row["way"] for row in found.scale):
        cells = []
        for size in sizes:
            row = next((each for each in found.scale if (each["size"], each["way"]) == (size, way)), None)
            formula = predicted(SHAPES[size], way) / GIB
            if row is None:
                cells.append("")
            elif row["fits"]:
                step = row["plain_ms"] + row["pull_ms"] / EVERY if row.get("pull_ms") else row["step_ms"]
                cells.append(f"{step:.0f} ms, {row['peak'] / GIB:.1f} ({formula:.1f})")
            else:
                cells.append(f"– ({formula:.0f})")
        lines.append(_line([way, *cells]))
    return "\n".join(lines)


def pulls(found: Found) -> str:
    """The time of a pull, beside a pass of as many tokens."""
    rows = [row for row in found.scale if row["way"] == "Guard" and row["fits"]]
    lines = [_line(["", *(f"{row['size']} B" for row in rows)]), "|---|" + "---:|" * len(rows)]
    titles = {"pull_ms": "a pull", "pass_ms": "forward and backward pass of 2,048 tokens alone"}
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
    """Both learning rates of the first text; a line joins the ways that no other beats."""
    import matplotlib

    matplotlib.use("agg")
    matplotlib.rcParams.update({"svg.hashsalt": "rwalk", "svg.fonttype": "none"})
    import matplotlib.pyplot as plt

    at = {
        (way, rate): (max(each["drift"], 1e-3), each["new"])
        for rate in RATES
        for way, each in found.at(rate, DOMAINS[:1]).items()
        if way[2] == rate or (rate == RATES[1] and way[0] != "STM")
    }
    best = frontier(at)
    figure, axes = plt.subplots(figsize=(8.5, 5), layout="constrained")
    axes.plot(*zip(*sorted(at[each] for each in best), strict=True), color="#999999", linewidth=1, zorder=1)
    for family, (colour, mark, names) in FAMILIES.items():
        mine = {each: point for each, point in at.items() if each[0][0] in names}
        for size, chosen in ((90, best), (30, [each for each in mine if each not in best])):
            drawn = [mine[each] for each in chosen if each in mine]
            axes.scatter(*zip(*drawn, strict=True), size, colour, mark) if drawn else None
        axes.scatter([], [], 60, colour, mark, label=family)
        for (way, rate), point in mine.items():
            if family in NAMED and (way, rate) in best:
                text = name_of(way, 0.0).replace("*", "").replace("`", "")
                below = point[0] > 0.15  # where the line is flat, and other ways are above it
                aside = below and way[0] == "Guard"
                place = {"xytext": (4 - 8 * aside, -16) if below else (8, 5), "ha": "right" if aside else "left"}
                axes.annotate(text, point, textcoords="offset points", fontsize=8, **place)
    axes.set(xscale="log", xlabel="drift on own samples, nats", ylabel="loss on the Italian text, nats")
    axes.set_xticks(TICKS, [f"{each:g}" for each in TICKS])
    axes.minorticks_off()
    axes.margins(0.07)
    axes.legend(frameon=False, title="large marks: no other way is better in both")
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
    tables = {
        "both texts, 1e-4": ways(found, RATES[1], DOMAINS[:2]),
        "Italian, 3e-4": ways(found, RATES[2], DOMAINS[:1]),
    }
    return {**tables, "probes": curve(found), "scale": scale(found), "pulls": pulls(found)}


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


if __name__ == "__main__":
    main()
