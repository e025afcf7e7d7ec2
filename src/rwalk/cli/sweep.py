"""One run and its variations: methods, hyper-parameters and seeds, multiplied out into the runs of a study."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields, replace
from itertools import product
from math import prod
from typing import Any, get_args, get_type_hints

from rwalk import parts
from rwalk.errors import InputError, unknown
from rwalk.learners import as_used
from rwalk.studies.specs import AUTO, DT, RunSpec

MOST = 100_000  # runs of a study
Grid = dict[str, list[Any]]  # hyper-parameters, each with its values


def method_names(text: str) -> list[str]:
    """The names in a comma-separated list; `package.module:Name` keeps its case."""
    return [name.strip() if ":" in name else name.strip().lower() for name in text.split(",")]


def runs(
    base: RunSpec,
    methods: Sequence[str],
    seeds: int,
    lam: str = "",
    settings: Sequence[str] = (),
) -> list[RunSpec]:
    """The base run with every method, every combination of that method's hyper-parameters, and every seed."""
    settable = {name: {each.name for each in fields(parts.find(name))} for name in methods}
    settable |= {name: set() for name in methods if name == "vanilla"}  # whatever its strength, it holds nothing
    chosen, grids = _settings(settings, settable), []
    if lam and "lam" in chosen.get("", {}):
        raise InputError("give --lam or --set lam=, not both")
    usual: Grid = {"dt": [DT.get(base.stream.dataset)], "lam": _strengths(lam)}
    shared = {key: values for key, values in usual.items() if values not in ([], [None])} | chosen.get("", {})
    for name in methods:
        own = {key: values for key, values in shared.items() if key in settable[name]}
        grids.append((name, own | chosen.get(name, {})))
    if (count := seeds * sum(prod(map(len, grid.values())) for _, grid in grids)) > MOST:
        raise InputError(f"these are {count:,} runs: choose fewer seeds, methods or settings, {MOST:,} at most")
    found = []
    for name, grid in grids:
        memory = as_used(parts.find(name), base.memory)
        for values in product(*grid.values()):
            run = replace(base, method=name, numbers=dict(zip(grid, values, strict=True)), memory=memory)
            found += [replace(run, seed=seed) for seed in range(seeds)]
    return found


def _strengths(lam: str) -> list[Any]:
    """The λ's in a comma-separated list: numbers, or `auto`."""
    try:
        return [AUTO if part.strip() == AUTO else float(part) for part in lam.split(",")] if lam else []
    except ValueError:
        raise InputError(f"--lam takes numbers separated by commas, or auto, not {lam!r}") from None


def _settings(given: Sequence[str], settable: Mapping[str, Collection[str]]) -> dict[str, Grid]:
    """["alpha=0.1,0.9", "rwalk.dt=50"] → {"": {"alpha": [0.1, 0.9]}, "rwalk": {"dt": [50]}}.

    `settable` are the methods that are run, each with its hyper-parameters.
    """
    chosen: dict[str, Grid] = {}
    for item in given:
        key, equals, values = item.partition("=")
        method, _, name = key.rpartition(".")
        if not equals or not name:
            raise InputError(f"--set takes NAME=VALUE or METHOD.NAME=VALUE, not {item!r}")
        if name in chosen.get(method, {}):
            raise InputError(f"--set {key} is given twice: separate its values by commas")
        if method and method not in settable:
            raise unknown("method here", method, settable)
        having = [one for one in ([method] if method else settable) if name in settable[one]]
        if not having:
            known = {each for one in ([method] if method else settable) for each in settable[one]}
            if not known:
                raise InputError(f"no setting of {', '.join(settable)} changes anything: drop --set {key}")
            raise unknown(f"setting of {method or ', '.join(settable)}", name, sorted(known))
        chosen.setdefault(method, {})[name] = [_value(having[0], name, each) for each in values.split(",")]
    return chosen


def _value(method: str, name: str, text: str) -> Any:
    """A hyper-parameter from its text, converted to the right type."""
    kind = get_type_hints(parts.find(method))[name]
    if bool in (kind, *get_args(kind)) and text.lower() in ("true", "false"):
        return text.lower() == "true"
    for number in (int, float):
        if number in (kind, *get_args(kind)):
            try:
                return number(text)
            except ValueError:
                continue
    return text  # the part that uses it checks it
