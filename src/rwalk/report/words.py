"""What a report calls things: names spelled out, so that nobody has to know the paper's shorthand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

SAMPLERS = {
    "mof": "mean of features",
    "mof-plain": "mean of features of any length",
    "plane": "near the decision boundary",
    "plane-top": "nearest the decision boundary",
    "entropy": "uncertain ones",
    "entropy-top": "the most uncertain ones",
    "uniform": "at random",
    "reservoir": "reservoir of all seen",
}
SETTINGS = {
    "lr": "learning rate",
    "keep_optimizer": "keep optimizer",
    "dt": "steps between scores",
}


def sampler(name: str) -> str:
    """A rule that chooses exemplars, in words.

    >>> sampler("mof"), sampler("mine:Own"), sampler("mof-top")
    ('mean of features', 'mine:Own', 'mof-top')
    """
    return SAMPLERS.get(name, name)


def setting(name: str) -> str:
    return SETTINGS.get(name, name.replace("_", " "))


def memory(spec: Mapping[str, Any] | None) -> str:
    """The exemplars that a configuration keeps.

    >>> memory({"per_class": 10, "total": None, "sampler": "mof"})
    '10 per class, mean of features'
    """
    if spec is None:
        return "none"
    size = f"{spec['per_class']} per class" if spec["per_class"] is not None else f"{spec['total']} in all"
    return f"{size}, {sampler(spec['sampler'])}"


def listed(names: Sequence[str], word: str = "and") -> str:
    """
    >>> listed(["a"]), listed(["a", "b", "c"])
    ('a', 'a, b and c')
    """
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} {word} {names[-1]}"


def duration(seconds: float) -> str:
    """
    >>> duration(0.4), duration(80), duration(800), duration(40_000)
    ('0.4 s', '80 s', '13 min', '11 h')
    """
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 2 * 3600 else f"{seconds / 3600:.0f} h"
