"""The budgets in RESULTS.md: the rule, and what it chose."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from reproduction import budgets
from reproduction.markdown import row
from reproduction.settings import SETTINGS, Numbers

EARLIER = """
A setting marked † was tuned by an earlier rule, from every combination of a narrower grid: RWalk with α = 0.9 and
ε = 1e-3 only; CIFAR-100 in the proximal form and with α = 0.01 for EWC++, with three seeds (one with samples and
with ResNet-18), over decades of λ found in a first trial, and widened three times, by longer trainings, more
decades and more seeds, after results on the test set were known (the choice from them was made by validation
alone). `python -m reproduction --tune SETTING` tunes it again.
""".strip()


def lines_of(chosen: Mapping[str, Any]) -> Iterator[str]:
    yield (budgets.__doc__ or "").strip()
    yield ""
    if not all(map(budgets.is_current, chosen)):
        yield EARLIER
        yield ""
    yield "A value marked * is the smallest or the largest of those that were tried."
    yield ""
    yield from row("setting", "how long", "method", "hyper-parameters", "validation A, %", "seeds")
    for name, budget in chosen.items():
        if name not in SETTINGS:
            continue
        marked = name + " †" * (not budgets.is_current(name))
        for method, numbers in budget["numbers"].items():
            cells = (
                _long(budget, SETTINGS[name].run.network),
                method,
                _numbers(budget, method, numbers),
                budget["validation"][method],
                budgets.seeds_behind(name, method) or "–",
            )
            yield from row(marked, *cells, head=False)


def _long(budget: Mapping[str, Any], usual: str) -> str:
    """The training time; and the network, where it is not the usual one."""
    tried = {each[0].partition(",")[0] for each in budget["tried"]}
    lengths = [int(each.split()[0]) for each in tried if each.endswith("steps")]
    said = budgets.brief(budget["training"]) + _edge(budget["training"]["steps"], lengths)
    return said + (f", {network}" if (network := budget.get("network", usual)) != usual else "")


def _numbers(budget: Mapping[str, Any], method: str, chosen: Numbers) -> str:
    """The values chosen, each compared with those that were tried in the same form and for the same time."""
    here = [
        tried
        for how_long, of, tried, *_ in budget["tried"]
        if (how_long.partition(",")[0], of) == (budgets.brief(budget["training"]), method)
        and tried.get("penalty") == chosen.get("penalty")
    ]
    shown = []
    for name, value in sorted(chosen.items()):
        written = value if isinstance(value, str) else f"{value:g}{_edge(value, [each[name] for each in here])}"
        shown.append(f"{name} {written}")
    return ", ".join(shown) or "–"


def _edge(value: object, tried: list[Any]) -> str:
    return "*" if len(set(tried)) > 1 and value in (min(tried), max(tried)) else ""
