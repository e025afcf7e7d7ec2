"""Names and phrases of a report, spelled out, so that it can be read without the paper's shorthand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rwalk.data.memory import MemorySpec

HEAD_NAMES = {"single": "single-head", "multi": "multi-head"}
TITLES = {"single": "Single-head: which of all classes seen?", "multi": "Multi-head: which class of this task?"}
BOTH = "Single-head and multi-head, which are the same here"
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
    "lam": "λ",
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


def setting_name(name: str) -> str:
    """The name of a setting, in words."""
    return SETTINGS.get(name, name.replace("_", " "))


def number(value: object) -> str:
    """A setting's value as text, written as λ is everywhere.

    >>> number(1e6), number(0.25), number(0.1234567), number(None), number("gradient")
    ('1e+06', '0.25', '0.1234567', 'none', 'gradient')
    """
    if isinstance(value, float):
        short = f"{value:g}"
        return short if float(short) == value else f"{value:.10g}"
    return "none" if value is None else str(value)


def memory(spec: MemorySpec | None) -> str:
    """The exemplars that a configuration keeps.

    >>> from rwalk.data.memory import MemorySpec
    >>> memory(MemorySpec(per_class=10))
    '10 per class, mean of features'
    """
    if spec is None:
        return "none"
    size = f"{spec.per_class} per class" if spec.per_class is not None else f"{spec.total} in all"
    return f"{size}, {sampler(spec.sampler)}"


def counted(count: int, noun: str) -> str:
    """
    >>> counted(1, "task"), counted(5, "task")
    ('1 task', '5 tasks')
    """
    return f"{count} {noun}{'s' * (count != 1)}"


def capital(sentence: str) -> str:
    """The sentence with a capital at its beginning; the name of a user's own code stays as it is.

    >>> capital("no protection is behind"), capital("package.module:Own is ahead")
    ('No protection is behind', 'package.module:Own is ahead')
    """
    return sentence if ":" in sentence.split(" ")[0] else sentence[:1].upper() + sentence[1:]


def listed(names: Sequence[str], word: str = "and") -> str:
    """
    >>> listed(["a"]), listed(["a", "b", "c"])
    ('a', 'a, b and c')
    """
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} {word} {names[-1]}"


def duration(seconds: float) -> str:
    """A length of time in its largest useful unit.

    >>> duration(0.4), duration(80), duration(800), duration(40_000), duration(3_400_000)
    ('0.4 s', '80 s', '13 min', '11 h', '39 days')
    """
    if seconds < 10:
        return f"{seconds:.1f} s"
    for unit, length, least in (("days", 86_400, 2 * 86_400), ("h", 3600, 7200), ("min", 60, 120)):
        if seconds >= least:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"
