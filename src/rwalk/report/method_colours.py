"""How methods look in every figure and page: one colour and one symbol each.

The methods that occur most often have the same colour in every report; the others take those that are free.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import cycle

from rwalk.part_names import in_order

# (on white, on black): Okabe and Ito's palette, darker and lighter so that each stands out, and five more.
PALETTE = (
    ("#4c4c4c", "#c8c8c8"),
    ("#0072b2", "#4ba3dd"),
    ("#2f93c6", "#7cc8f2"),
    ("#b87a00", "#e9a820"),
    ("#d55e00", "#f0803c"),
    ("#008a64", "#2fbf93"),
    ("#b8578f", "#de8fbd"),
    ("#7d5aa6", "#b093d6"),
    ("#7c6d00", "#c2b23a"),
    ("#c4122f", "#ff7185"),
    ("#5b8c00", "#a5cf4a"),
    ("#2a3f9d", "#93a0f5"),
    ("#7a4a1e", "#cfa173"),
    ("#007f8c", "#4fd0dc"),
)
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "triangle-down", "cross", "x", "star", "hexagon")
OWNERS = (
    "vanilla", "ewc", "ewc++", "pi", "rwalk", "icarl", "icarl-hb1", "gem", "a-gem",
    "ridge", "er", "der++", "joint", "lwf",
)  # fmt: skip  # of the colours
UNKNOWN = 7  # the colour of a method that is drawn without the others


def palette_places(methods: Iterable[str]) -> dict[str, int]:
    """The place in the palette of every method on a page; no two share one while there are enough.

    >>> palette_places(["ridge", "pi", "mas"])
    {'pi': 3, 'ridge': 9, 'mas': 0}
    """
    present = set(methods)
    known = {name: OWNERS.index(name) for name in OWNERS if name in present}
    every = range(len(PALETTE))
    free = cycle([each for each in every if each not in known.values()] or every)
    others = [name for name in in_order(present) if name in present and name not in known]
    return known | dict(zip(others, free, strict=False))


def symbol(place: int) -> int:
    """The number of the symbol at a place of the palette."""
    return (place + place // len(SYMBOLS)) % len(SYMBOLS)


def colour(method: str) -> str:
    """The colour of a method on white."""
    return PALETTE[OWNERS.index(method) if method in OWNERS else UNKNOWN][0]
