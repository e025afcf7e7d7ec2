"""How long to train, and with which hyper-parameters: chosen by one rule, on validation data.

The rule is in docs/results-appendix.md; `budgets.json` has its choices, and the scores of everything tried.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock

from reproduction import tuning_rounds
from reproduction.tuning_settings import SETTINGS, TUNED_AS, Setting, base
from rwalk.atomic_files import parse_json, write_atomically
from rwalk.errors import InputError
from rwalk.studies.rows import Row
from rwalk.studies.specs import RunSpec
from rwalk.training import Training

FILE = Path(__file__).with_name("budgets.json")  # read, never written
RECORDED = {"training", "numbers", "validation", "tried"}  # of every setting; and, for some time now, its network
_preferred: dict[str, Any] = {}  # a file of the user's, while there is one


def setting_of(name: str) -> Setting:
    """A setting; one that follows another has that one's network and length, once they have been chosen."""
    setting = SETTINGS[name]
    followed = load().get(setting.like) if setting.like else None
    if followed is None:
        return setting
    run = replace(setting.run, network=followed.get("network", setting.run.network))
    return replace(setting, run=run, trainings=(Training(**followed["training"]),))


def choose(setting: Setting, rows: Iterable[Row]) -> dict[str, Any]:
    """Apply the rule to the rows of a setting."""
    tried = tuning_rounds.tried_in(setting, rows)
    how, best = tuning_rounds.best_of(setting, tried)
    network, training = json.loads(how)
    return {
        "network": network,
        "training": training,
        "numbers": {method: json.loads(numbers) for method, numbers in best.items()},
        "validation": {method: _percent(tried[how][method][numbers]) for method, numbers in best.items()},
        "tried": [
            [_said(setting, *json.loads(how)), method, json.loads(numbers), _percent(seeds), len(seeds)]
            for how, methods in tried.items()
            for method, combinations in methods.items()
            for numbers, seeds in combinations.items()
        ],
    }


def _said(setting: Setting, network: str, training: Mapping[str, Any]) -> str:
    """How it was trained, in words; the network is named where it is another than usual."""
    return brief(training) + (f", {network}" if network != setting.run.network else "")


def _percent(seeds: Mapping[int, float]) -> float:
    return round(100 * float(np.mean(list(seeds.values()))), 2)


def seeds_behind(name: str, method: str) -> int | None:
    """How many seeds a method's choice rests on; None if they were not counted."""
    chosen = load()[name]
    same = [
        count
        for _, of, numbers, score, *count in chosen["tried"]
        if (of, numbers, score) == (method, chosen["numbers"][method], chosen["validation"][method])
    ]
    return int(same[0][0]) if same and same[0] else None


def brief(training: Mapping[str, Any]) -> str:
    """The training time, in words."""
    epochs = training["epochs"]
    return f"{training['steps']} steps" if training["steps"] else f"{epochs} epoch{'s' * (epochs != 1)}"


def decide(name: str, rows: Iterable[Row], file: Path) -> str:
    """Add the rule's choice from a setting's rows to a file of budgets, and describe it."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(file.with_name(f"{file.name}.lock")):  # settings may be tuned side by side
            chosen = read(file) if file.exists() else {}
            chosen[name] = choose(setting_of(name), rows)
            write_atomically(file, written(chosen))
    except OSError as error:
        raise InputError(f"cannot write {file}: {error.strerror or error}; choose another --budgets") from error
    return f"chosen: {brief(chosen[name]['training'])} {chosen[name]['numbers']} {chosen[name]['validation']}"


@contextmanager
def taken_from(file: Path | None) -> Iterator[None]:
    """Prefer the budgets in a user's file; settings that it does not name keep theirs."""
    global _preferred
    before = _preferred
    _preferred = {} if file is None else read(file)
    try:
        yield
    finally:
        _preferred = before


def load() -> dict[str, Any]:
    """The choices of the rule."""
    return {**_shipped(FILE), **_preferred}


@cache
def _shipped(file: Path) -> dict[str, Any]:
    """Read once: every cell of a page needs it."""
    return read(file)


def read(file: Path) -> dict[str, Any]:
    """The budgets in a file."""
    try:
        chosen = parse_json(file.read_bytes())
        for name, setting in chosen.items():
            if name not in SETTINGS or set(setting) - {"network"} != RECORDED:
                raise ValueError(f"{name!r} does not describe a setting")
            Training(**setting["training"])
    except OSError as error:
        raise InputError(f"{file} cannot be read ({error.strerror}): give the file that --tune wrote") from None
    except (AttributeError, TypeError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise InputError(
            f"{file} holds no budgets ({reason}): write it with `python -m reproduction --tune`"
        ) from None
    return dict(chosen)


def written(chosen: Mapping[str, Any]) -> str:
    """The file's text: JSON, one line per run that was tried."""
    lines = []
    for name, setting in chosen.items():
        tried = ",\n   ".join(json.dumps(each) for each in setting["tried"])
        rest = json.dumps({key: value for key, value in setting.items() if key != "tried"})
        lines.append(f' {json.dumps(name)}: {rest[:-1]}, "tried": [\n   {tried}\n ]}}')
    return "{\n" + ",\n".join(lines) + "\n}\n"


def budgeted(dataset: str, method: str, block: str, exemplars: int | None = None, sampler: str = "mof") -> RunSpec:
    """A run of the paper under its block's budget; a learner without hyper-parameters gets the training alone."""
    return under_budget(
        f"{dataset}-{TUNED_AS.get(block, block)}", replace(base(dataset, exemplars, sampler), method=method)
    )


def under_budget(setting: str, run: RunSpec) -> RunSpec:
    chosen = load().get(setting)
    if chosen is None:
        raise InputError(f"no budget has been chosen for {setting}: run `python -m reproduction --tune {setting}`")
    numbers, network = chosen["numbers"].get(run.method, {}), chosen.get("network", run.network)
    return replace(run, network=network, numbers=numbers, training=Training(**chosen["training"]))
