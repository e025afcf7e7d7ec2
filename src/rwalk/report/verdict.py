"""The verdict of a report: which method is ahead, by how much, and whether that is more than chance."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from rwalk.report.welch_test import Mean, holm
from rwalk.report.wording import capital, counted, listed

LEVEL = 0.05  # of significance
CEILING = "joint"  # learns from all data at once, so that it is no rival of the others
PLAIN = "vanilla"

Json = Mapping[str, Any]


class Verdict(NamedTuple):
    """One sentence about the method that is ahead, and more about how sure that is."""

    headline: str
    details: tuple[str, ...] = ()


class Entrant(NamedTuple):
    """One configuration, representing its method."""

    name: str
    method: str
    memory: str
    A: Mean
    seeds: int


def verdict(section: Json, head: str) -> Verdict:
    """The verdict on a section, by the accuracy A under one head."""
    memory = section["memory"]  # unequal ones are not compared
    compared = [each for each in section["configurations"] if not memory or each["memory"] == memory]
    entrants = sorted(_entrants(compared, head), key=lambda each: -each.A.value)
    rivals = [each for each in entrants if each.method != CEILING]
    if not rivals:
        return Verdict("No run has finished." if not entrants else f"Only {entrants[0].name} was run.")
    leader, *others = rivals
    tasks = counted(section["tasks"], "task")
    held = f" (all {'without exemplars' if memory == 'none' else f'with exemplars, {memory}'})" if memory else ""
    reached = f"{_percent(leader)} on average over {tasks}{held}"
    if not others:
        return Verdict(f"{capital(leader.name)} reaches {reached}; there is nothing to compare it with.")
    details = [*_against_plain(leader, others), *_ceiling(entrants), *_choice(section)]
    lead = leader.A - others[0].A
    if any(each.seeds < 2 for each in rivals):
        return Verdict(
            f"{capital(leader.name)} scores highest, {reached}, {_points(lead.value)} more than {others[0].name}: "
            "with a single seed that may be chance.",
            ("It takes two seeds or more, better five: --seeds 5.", *details),
        )
    chances = holm([(leader.A - each.A).chance for each in others])
    level = [each for each, chance in zip(others, chances, strict=True) if chance >= LEVEL]
    test = f"Welch’s t-test over {_seeds(rivals)}" + (
        f", corrected for {len(others)} comparisons" if len(others) > 1 else ""
    )
    if level:
        several = listed([f"{each.name} ({_percent(each)})" for each in level[:4]])
        more = f" and {len(level) - 4} more" if len(level) > 4 else ""
        sure = (f"The others are behind by more than chance ({test}).",) if len(level) < len(others) else ()
        return Verdict(
            f"{capital(leader.name)} scores highest, {reached}, but its lead over {several}{more} may be chance.",
            (*(sure or (f"No difference here is more than chance ({test}).",)), *details),
        )
    rest = {1: "the other", 2: "both others"}.get(len(others), f"all {len(others)} others")
    return Verdict(
        f"{capital(leader.name)} is ahead of {rest} by more than chance: {reached}, "
        f"{_points(lead.value)} more than {others[0].name}.",
        (f"That lead is {_points(lead.value)} ± {lead.reach:.1f} with 95 % confidence, "
         f"{_chance(max(chances))} ({test}).", *details),
    )  # fmt: skip


def representatives(configurations: Sequence[Json], head: str) -> list[Json]:
    """One configuration per study, method and memory: the best, on held-out data if any."""
    return [max(group, key=lambda each: _rank(each, head, group)) for group in families(configurations)]


def families(configurations: Sequence[Json]) -> list[list[Json]]:
    """Configurations of one study, method and memory, which differ in their settings alone."""
    groups: dict[tuple[str, str, str], list[Json]] = {}
    for each in configurations:
        groups.setdefault((each["study"], each["method"], each["memory"]), []).append(each)
    return [*groups.values()]


def how_chosen(each: Json, head: str, family: Sequence[Json]) -> str:
    """How the hyper-parameters of a configuration were chosen, as far as the results show it."""
    if each["chosen"] or len(family) == 1:
        return str(each["chosen"]) or ("as given" if each["given"] else "defaults" if each["usual"] else "")
    if each not in representatives(family, head):
        return f"one of {len(family)} tried"
    return (
        f"best of {len(family)} on {'held-out training data' if _are_held_out(family, head) else 'this test data'}"
    )


def _rank(each: Json, head: str, family: Sequence[Json]) -> float:
    value = each[head]["validation"] if _are_held_out(family, head) else _mean(each[head]["A"])
    return -1.0 if value is None else float(value)


def _are_held_out(family: Sequence[Json], head: str) -> bool:
    return all(each[head]["validation"] is not None for each in family)


def _mean(values: Sequence[float | None]) -> float | None:
    there = [value for value in values if value is not None]
    return sum(there) / len(there) if there else None


def _entrants(configurations: Sequence[Json], head: str) -> Iterator[Entrant]:
    chosen = [each for each in configurations if each[head]["represents"] and _mean(each[head]["A"]) is not None]
    memories: dict[str, set[str]] = {}
    for each in chosen:
        memories.setdefault(each["label"], set()).add(each["memory"])
    for each in chosen:
        values = np.array([np.nan if value is None else 100 * value for value in each[head]["A"]], dtype=float)
        told = [each["study"]] + ([each["memory"]] if len(memories[each["label"]]) > 1 and each["size"] else [])
        extra = f" ({'; '.join(filter(None, told))})" if any(told) else ""
        count = int(np.isfinite(values).sum())
        yield Entrant(each["label"] + extra, each["method"], each["memory"], Mean.over(values), count)


def _against_plain(leader: Entrant, others: Sequence[Entrant]) -> Iterator[str]:
    """How much of it is protection: against the same training, with the same exemplars, without any."""
    plain = [each for each in others if each.method == PLAIN]
    same = [each for each in plain if each.memory == leader.memory] or plain
    if same and leader.method != PLAIN:
        lead = leader.A - same[0].A
        sure = "" if np.isnan(lead.error) else f" ({_chance(lead.chance)})"
        alike = same[0].memory == leader.memory != "none"
        kind = ", with as many exemplars," if alike else ""
        yield f"Training without protection{kind} reaches {_percent(same[0])}, {_points(lead.value)} less{sure}."


def _ceiling(entrants: Sequence[Entrant]) -> Iterator[str]:
    for each in entrants:
        if each.method == CEILING:
            yield f"Learning from all data at once ({each.name}) reaches {_percent(each)}: the ceiling, no rival."
            return


def _choice(section: Json) -> Iterator[str]:
    if "flatters" in section["choice"]:
        yield "Each method is represented by its best configuration on these same test data, which flatters it."


def _seeds(entrants: Sequence[Entrant]) -> str:
    counts = sorted({each.seeds for each in entrants})
    return f"{counts[0]} seeds" if len(counts) == 1 else f"{counts[0]} to {counts[-1]} seeds"


def _percent(each: Entrant) -> str:
    return f"{each.A.value:.1f}\u00a0%"


def _points(value: float) -> str:
    return f"{value:.1f}\u00a0point{'s' * (f'{value:.1f}' != '1.0')}"


def _chance(p: float) -> str:
    """
    >>> [_chance(p).replace("\u00a0", " ") for p in (0.0004, 0.0312, 0.4)]
    ['p < 0.001', 'p = 0.031', 'p = 0.400']
    """
    return "p\u00a0<\u00a00.001" if p < 0.001 else f"p\u00a0=\u00a0{p:.3f}"
