"""The next runs of a tuning: scouts with one seed each, then finalists with all seeds.

The rule is in docs/results-appendix.md.

They are a function of the rows alone, so an interrupted tuning resumes where it stopped.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np

from reproduction.tuning_settings import Numbers, Setting
from rwalk import parts
from rwalk.errors import InputError
from rwalk.studies.json_records import to_json
from rwalk.studies.rows import Row
from rwalk.studies.specs import RunSpec
from rwalk.training import Training

SCOUT = 0  # the seed of scouts
SCOUTS = (SCOUT,)
WAYS = 2  # that finalists are trained in, at least: networks and lengths
SCOUTING = 2  # rounds, at most
ROUNDS = 7  # in all, at most
STRIDES = {"lam": 10.0, "alpha": 10.0, "eps": 1e3}  # from the edge of a grid to the next value
BETWEEN = 3.0  # from a λ of the grid to those that challenge it on the way to its neighbours

Seeds = dict[int, float]  # seed → A
# How it is trained ([network, training]) → method → numbers → seeds; all keys are JSON.
Tried = dict[str, dict[str, dict[str, Seeds]]]
Combination = tuple[str, str, str]  # how, method, numbers


def text(record: Any) -> str:
    return json.dumps(record, sort_keys=True)


def tried_in(setting: Setting, rows: Iterable[Row]) -> Tried:
    """The validation scores of everything that was tried."""
    found: Tried = {}
    for row in rows:
        spec, a = row.spec, row.measures(setting.head).A
        numbers = text(_spelled_out(setting, row.method, spec.numbers))
        how = text([spec.network, to_json(spec.training)])
        cell = found.setdefault(how, {}).setdefault(row.method, {}).setdefault(numbers, {})
        cell[row.seed] = 0.0 if a is None else a  # none: it did not train
    return found


def _spelled_out(setting: Setting, method: str, numbers: Numbers) -> dict[str, Any]:
    """As the grid writes them: a row of another study may leave out defaults."""
    usual = parts.defaults(method)
    return {**{name: usual[name] for each in setting.grid[method] for name in each}, **numbers}


def best_of(setting: Setting, tried: Tried) -> tuple[str, dict[str, str]]:
    """How to train, as suits the methods best on average, and the best numbers of each method there.

    Only combinations with the most seeds count: the number that every method has somewhere.
    """
    counts = sorted({len(seeds) for _, _, _, seeds in _cells(tried)}, reverse=True)
    counted = next(filter(None, (_means(tried, least=count) for count in counts)))
    how = _by_average(setting, counted)[0]
    return how, {method: _ranked(means)[0] for method, means in counted[how].items()}


def next_runs(setting: Setting, rows: Iterable[Row], scouting: bool = True) -> list[RunSpec]:
    """What to train next; nothing once none of its neighbours is better than the best.

    First the scouts' neighbours, unless `scouting` is over; then the finalists; then the neighbours of the best.
    """
    tried = tried_in(setting, rows)
    return (
        (_untrained(setting, tried, _with(SCOUTS, _scouts(setting, tried))) if scouting else [])
        or _untrained(setting, tried, _with(range(setting.seeds), _finalists(setting, tried)))
        or _untrained(setting, tried, _challengers(setting, tried))
    )


def _with(seeds: Iterable[int], combinations: Iterable[Combination]) -> Iterator[tuple[Combination, int]]:
    yield from product(dict.fromkeys(combinations), seeds)


def _scouts(setting: Setting, tried: Tried) -> Iterator[Combination]:
    """Around the best of every method in each form of its penalty; and the best of each, trained otherwise."""
    scores = _scouted(tried)
    ways = _by_average(setting, scores)
    how = ways[0]
    for method, means in scores[how].items():
        best_in_form = {json.loads(each).get("penalty"): each for each in reversed(_ranked(means))}
        for numbers in best_in_form.values():
            yield from ((how, method, each) for each in _neighbours(setting, method, numbers))
        # The best numbers may differ between networks.
        others = product(_other_networks(setting, how), _ranked(means)[: setting.finalists])
        yield from ((other, method, numbers) for other, numbers in others)
    for way, method in product(_one_per_network(ways), setting.grid):
        best = _ranked(scores[way][method])[0]
        yield from ((other, method, best) for other in _other_lengths(setting, way, tried))


def _finalists(setting: Setting, tried: Tried) -> Iterator[Combination]:
    """By their scouts: the best few of every method, trained in the ways that suit the methods best on average.

    No network is dropped because of a single seed: there is at least one way with each.
    """
    scores = _scouted(tried)
    ways = _by_average(setting, scores)
    for how in dict.fromkeys([*ways[:WAYS], *_one_per_network(ways)]):
        for method, means in scores[how].items():
            yield from ((how, method, numbers) for numbers in _ranked(means)[: setting.finalists])


def _challengers(setting: Setting, tried: Tried) -> Iterator[tuple[Combination, int]]:
    """The neighbours of the best: with the scouts' seed first, and with all once they are not behind it there."""
    how, best = best_of(setting, tried)
    for method, numbers in best.items():
        scouted = {each: seeds.get(SCOUT) for each, seeds in tried[how][method].items()}
        to_beat = scouted[numbers]
        for each in (*_neighbours(setting, method, numbers), *_between(setting, method, numbers)):
            score = scouted.get(each)
            is_behind = score is None or (to_beat is not None and score < to_beat)
            yield from _with(SCOUTS if is_behind else range(setting.seeds), [(how, method, each)])


def _neighbours(setting: Setting, method: str, numbers: str) -> Iterator[str]:
    """One step along each axis of the grid, or beyond its edge, all else being equal."""
    here = json.loads(numbers)
    alike = [each for each in setting.grid[method] if each.get("penalty") == here.get("penalty")]
    for axis, stride in STRIDES.items():
        values = {each[axis] for each in alike if axis in each}
        if len(values) < 2:
            continue
        value = here[axis]
        below = max((each for each in values if each < value), default=value / stride)
        above = min((each for each in values if each > value), default=value * stride)
        for each in (below, above):
            moved = {**here, axis: float(f"{each:.6g}")}  # rounded, so that decades stay decades
            if _can_be_made(setting, method, moved):
                yield text(moved)


def _between(setting: Setting, method: str, numbers: str) -> Iterator[str]:
    """Half a decade up and down, from a λ of the grid, whose own neighbours are a decade away."""
    here = json.loads(numbers)
    if len({each["lam"] for each in setting.grid[method] if "lam" in each}) < 2 or not _is_a_decade(here["lam"]):
        return
    for each in (here["lam"] * BETWEEN / STRIDES["lam"], here["lam"] * BETWEEN):
        yield text({**here, "lam": float(f"{each:.6g}")})


def _is_a_decade(value: float) -> bool:
    return f"{value:e}".startswith("1.000000e")


def _can_be_made(setting: Setting, method: str, numbers: Numbers) -> bool:
    """Whether the values are allowed: no α is larger than 1."""
    try:
        replace(setting.run, method=method, numbers=numbers).learner()
    except InputError:
        return False
    return True


def _other_networks(setting: Setting, how: str) -> Iterator[str]:
    network, training = json.loads(how)
    yield from (text([other, training]) for other in setting.networks if other != network)


def _one_per_network(ways: Iterable[str]) -> list[str]:
    """The best way to train with each network, from ways in order, the best first."""
    best: dict[str, str] = {}
    for how in ways:
        best.setdefault(json.loads(how)[0], how)
    return list(best.values())


def _other_lengths(setting: Setting, how: str, tried: Tried) -> Iterator[str]:
    """Twice or half as long, where no length of that network so far is longer, or shorter."""
    network, training = json.loads(how)
    steps = training["steps"]
    if steps is None:
        return
    known = [
        other["steps"]
        for of, other in map(json.loads, tried)
        if of == network and {**other, "steps": steps} == training
    ]
    wanted = [2 * steps] * (steps == max(known)) + [steps // 2] * (steps == min(known))
    yield from (text([network, {**training, "steps": each}]) for each in wanted if 1 <= each <= setting.longest)


def _untrained(setting: Setting, tried: Tried, wanted: Iterable[tuple[Combination, int]]) -> list[RunSpec]:
    found = {}
    for (how, method, numbers), seed in wanted:
        if seed not in tried.get(how, {}).get(method, {}).get(numbers, {}):
            network, training = json.loads(how)
            run = setting.trial(Training(**training), method, json.loads(numbers), seed)
            run = replace(run, network=network)
            found[run.hash()] = run
    return list(found.values())


# ── scores ────────────────────────────────────────────────────────────────────────────────────────────────────

Means = dict[str, dict[str, dict[str, float]]]  # how → method → numbers → mean A


def _cells(tried: Tried) -> Iterator[tuple[str, str, str, Seeds]]:
    for how, methods in tried.items():
        for method, combinations in methods.items():
            for numbers, seeds in combinations.items():
                yield how, method, numbers, seeds


def _means(tried: Tried, least: int) -> Means:
    """Over all seeds, of combinations with at least so many."""
    return _complete(tried, lambda seeds: float(np.mean(list(seeds.values()))) if len(seeds) >= least else None)


def _scouted(tried: Tried) -> Means:
    """By the seed of scouts alone."""
    return _complete(tried, lambda seeds: seeds.get(SCOUT))


def _complete(tried: Tried, score: Callable[[Seeds], float | None]) -> Means:
    """The scores, where there are any, of those ways to train in which every method has one."""
    found: Means = {}
    for how, method, numbers, seeds in _cells(tried):
        if (scored := score(seeds)) is not None:
            found.setdefault(how, {}).setdefault(method, {})[numbers] = scored
    methods = {method for of in tried.values() for method in of}
    return {how: of for how, of in found.items() if of.keys() == methods}


def _ranked(means: Mapping[str, float]) -> list[str]:
    """The best first; of equals, the one tried first."""
    return sorted(means, key=lambda numbers: -means[numbers])


def _by_average(setting: Setting, means: Means) -> list[str]:
    """Ways to train, the one in which the methods, each at its best, are best on average first.

    A method without anything to tune does not count: vanilla would always train least.
    """
    tuned = [method for method, grid in setting.grid.items() if len(grid) > 1] or list(setting.grid)

    def average(how: str) -> float:
        return float(np.mean([max(means[how][method].values()) for method in tuned if method in means[how]]))

    return sorted(means, key=average, reverse=True)
