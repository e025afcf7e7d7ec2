"""The demonstration as a picture: a line per method, each with its name at its end.

It is SVG without any plotting library; every browser shows it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from math import isnan
from statistics import fmean

from rwalk.demonstration.story import Way
from rwalk.report.method_colours import colour

WIDTH, HEIGHT = 760, 400
LEFT, RIGHT, TOP, BOTTOM = 60, 570, 70, 350
MEASURE = "test digits of task 1 recognised, %; means over the seeds, bands of one standard deviation"
CHANCE = 10.0  # percent: one of ten digits
LINE = 17.0  # pixels between two names, so that both can be read


def picture(ways: Sequence[Way]) -> str:
    """The text of the SVG."""
    tasks = ways[0].first.shape[1]
    drawn = [way for way in ways if way.is_known]
    title = f"Accuracy on the first task while {tasks - 1} more are learned"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" '
        f'height="{HEIGHT}" role="img" font-family="Helvetica, Arial, sans-serif" font-size="14">',
        f"<title>{escape(title)}</title>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        _text(LEFT, 28, title, font_size="18", font_weight="bold"),
        _text(LEFT, 50, MEASURE, fill="#555"),
        *_axes(tasks),
        *(_band(way, tasks) for way in drawn),
        *(part for way in drawn for part in _line(way, tasks)),
        *_names(drawn),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _axes(tasks: int) -> Iterator[str]:
    for percent in range(0, 101, 20):
        y = _y(percent)
        yield f'<line x1="{LEFT}" x2="{RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#e4e4e4"/>'
        yield _text(LEFT - 10, y + 5, str(percent), text_anchor="end", fill="#555")
    for task in range(tasks):
        yield _text(_x(task, tasks), BOTTOM + 22, f"after task {task + 1}", text_anchor="middle", fill="#555")
    y = _y(CHANCE)
    yield f'<line x1="{LEFT}" x2="{RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#999" stroke-dasharray="3 4"/>'
    yield _text(LEFT + 4, y - 5, "guessing", font_size="12", fill="#777")


def _band(way: Way, tasks: int) -> str:
    """One standard deviation to both sides; of a single seed, which has none, a band without height."""
    spread = [(mean, 0.0 if isnan(deviation) else deviation) for mean, deviation in way.points]
    upper = [(task, mean + deviation) for task, (mean, deviation) in enumerate(spread)]
    lower = [(task, mean - deviation) for task, (mean, deviation) in enumerate(spread)]
    corners = " ".join(f"{_x(task, tasks):.1f},{_y(percent):.1f}" for task, percent in [*upper, *reversed(lower)])
    return f'<polygon points="{corners}" fill="{colour(way.method)}" fill-opacity="0.15"/>'


def _line(way: Way, tasks: int) -> Iterator[str]:
    places = [(_x(task, tasks), _y(percent)) for task, percent in enumerate(way.curve)]
    points = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    yield f'<polyline points="{points}" fill="none" stroke="{colour(way.method)}" stroke-width="2.5"/>'
    for x, y in places:
        yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{colour(way.method)}"/>'


def _names(ways: Sequence[Way]) -> Iterator[str]:
    """Beside the lines' ends, highest first, moved apart where they would overlap."""
    ordered = sorted(ways, key=lambda way: -way.left)
    for way, y in zip(ordered, _apart([_y(way.left) for way in ordered]), strict=True):
        end = _y(way.left)
        yield (
            f'<line x1="{RIGHT + 6}" x2="{RIGHT + 20}" y1="{end:.1f}" y2="{y:.1f}" stroke="{colour(way.method)}" '
            'stroke-width="2"/>'
        )
        yield _text(RIGHT + 25, y + 5, f"{way.name} {way.left:.0f} %", font_weight="bold")


def _apart(heights: Sequence[float]) -> list[float]:
    """Increasing heights, moved as little as it takes (in least squares) to be a line of text apart.

    >>> _apart([100.0, 101.0, 200.0])
    [92.0, 109.0, 200.0]
    """
    groups: list[list[float]] = []  # neighbours that are moved together; each height less the lines above it
    for place, height in enumerate(heights):
        groups.append([height - place * LINE])
        while len(groups) > 1 and fmean(groups[-2]) > fmean(groups[-1]):
            groups[-2:] = [groups[-2] + groups[-1]]
    levels = [fmean(group) for group in groups for _ in group]
    return [level + place * LINE for place, level in enumerate(levels)]


def _x(task: int, tasks: int) -> float:
    return LEFT + 40 + task * (RIGHT - LEFT - 40) / max(1, tasks - 1)


def _y(percent: float) -> float:
    return BOTTOM - (BOTTOM - TOP) * percent / 100


def _text(x: float, y: float, text: str, fill: str = "#222", **look: str) -> str:
    attributes = "".join(f' {name.replace("_", "-")}="{value}"' for name, value in look.items())
    return f'<text x="{x:.1f}" y="{y:.1f}" fill="{fill}"{attributes}>{escape(text)}</text>'
