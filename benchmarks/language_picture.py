"""Frontiers of `language_model`: what was learned against what was forgotten, and against drift."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, NullLocator

from benchmarks.language_page import MARKS, NAMES, Found, on_frontier

# Okabe and Ito's colours, told apart by colour-blind eyes too; marks differ as well. The card is white, so that it
# reads the same on a dark page.
STYLE = {
    "plain": ("#000000", "o"),
    "rwalk": ("#009E73", "v"),
    "ewc": ("#D55E00", "s"),
    "l2": ("#E69F00", "^"),
    "anchor": ("#0072B2", "D"),
    "replay": ("#999999", "X"),
    "lora": ("#CC79A7", "P"),
    "lora+anchor": ("#CC79A7", "D"),
    "lora+ewc": ("#CC79A7", "s"),
    "lora+l2": ("#CC79A7", "^"),
}
ROOM = 0.15  # nats that the worst of plain training may be exceeded by, and still be drawn to scale
LINEAR = 0.02  # nats up to which the scale of what was forgotten is linear
COSTS = {"rise": "rise of the loss on {}, nats", "held_out": "drift on its own samples, nats"}


def draw(ways: Sequence[Found], names: Sequence[str], path: Path) -> None:
    matplotlib.use("agg")
    with matplotlib.rc_context({"svg.hashsalt": path.name, "svg.fonttype": "none", "font.size": 11}):
        figure, panels = plt.subplots(1, 2, figsize=(12, 5.6), sharey=True, layout="constrained")
        highest = max(each.learned for each in ways if each.way.method == "plain") + ROOM
        for axes, (cost, label) in zip(panels, COSTS.items(), strict=True):
            _points(axes, ways, cost, highest)
            _frontier(axes, on_frontier(ways, cost), cost)
            axes.set(xlabel=label.format(names[0]))
            axes.grid(color="#dddddd", linewidth=0.6)
            axes.spines[["top", "right"]].set_visible(False)
        panels[0].set_ylabel(f"loss on {names[1]}, nats per token")
        panels[0].set_title(f"{names[1]} learned against {names[0]} forgotten")
        panels[1].set_title(f"{names[1]} learned against drift")
        panels[0].set_xscale("symlog", linthresh=LINEAR)  # what was forgotten may be less than nothing
        panels[1].set_xscale("log")
        for axes, first in zip(panels, ([-0.01, 0], []), strict=True):
            axes.xaxis.set_major_locator(FixedLocator([*first, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5]))
            axes.xaxis.set_minor_locator(NullLocator())
            axes.xaxis.set_major_formatter("{x:g}")
        figure.legend(handles=_legend(ways), loc="outside lower center", ncols=4, frameon=False)
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None, facecolor="white")
        plt.close(figure)


def _points(axes: Axes, ways: Sequence[Found], cost: str, highest: float) -> None:
    """Filled with a budget, hollow without; what would squeeze all others is drawn at the upper edge."""
    for each in ways:
        colour, marker = STYLE[each.way.method]
        filled = colour if each.way.budget is not None else "white"
        beyond = each.learned > highest
        x, y = getattr(each, cost), min(each.learned, highest)
        axes.plot(x, y, marker, color=colour, markerfacecolor=filled, markersize=8, zorder=3, clip_on=False)
        if beyond:
            _say(axes, f"↑ {each.learned:.2f}", (x, y), (7, -4), "left")
    lowest = min(each.learned for each in ways)
    axes.set_ylim(lowest - 0.08 * (highest - lowest), highest)  # with room for a frontier's marks


def _frontier(axes: Axes, best: Sequence[Found], cost: str) -> None:
    places = [(getattr(each, cost), each.learned) for each in best]
    axes.step(*zip(*places, strict=True), where="post", color="#888888", linewidth=1, linestyle="--", zorder=1)
    for mark, place in zip(MARKS[cost], places, strict=False):
        _say(axes, mark, place, (-5, -13), "right")


def _say(axes: Axes, text: str, at: tuple[float, float], beside: tuple[float, float], side: str) -> None:
    axes.annotate(text, at, beside, textcoords="offset points", fontsize=9, ha=side, zorder=4)


def _legend(ways: Sequence[Found]) -> list[Line2D]:
    shown = [method for method in STYLE if any(each.way.method == method for each in ways)]
    marks = [_mark(STYLE[method][1], STYLE[method][0], NAMES[method]) for method in shown]
    marks += [
        _mark("o", "#555555", "filled: a budget"),
        _mark("o", "#555555", "hollow: a λ, or nothing", "white"),
    ]
    return [*marks, Line2D([], [], color="#888888", linestyle="--", label="frontier")]


def _mark(marker: str, colour: str, label: str, face: str | None = None) -> Line2D:
    shown = {"marker": marker, "markersize": 8, "markerfacecolor": face or colour}
    return Line2D([], [], color=colour, linestyle="", label=label, **shown)
