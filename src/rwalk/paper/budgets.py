"""How long to train, and with which hyper-parameters: chosen by one rule, on validation data.

The paper does not say how long it trained. It does name a λ for every cell, and α = 0.9 for all of them; but what
a λ does depends on the time, on the form of the penalty and on the scale of the importances, and α = 0.9 leaves
EWC++ almost without a Fisher (docs/design.md). So we choose them ourselves. Δt is the paper's.

THE RULE. A tenth of every class's training data is held out; neither the test set nor any published value is used.
A setting is a block of a table: a dataset, a network, with or without exemplars, and the head that the block
reports. In each, every method is trained with every combination in its grid, with three seeds or more: training
time, λ, both forms of the penalty, α for EWC++ and RWalk, ε for RWalk. A method's hyper-parameters are those with
the highest mean validation A_K under the setting's own head; the training time is the one at which the methods,
each at its best, are best on average. If a best value is at an edge of what was tried, the next value beyond it is
tried too, everything else staying the same, and so on for a few rounds.

The result is `budgets.json` next to this file, with the validation scores of everything tried. Tuning again writes
another file, which `rwalk reproduce --budgets` reads.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from rwalk import parts
from rwalk.errors import InputError
from rwalk.files import parse_json, write_atomically
from rwalk.paper.settings import SETTINGS, Numbers, Setting, base
from rwalk.studies.specs import RunSpec
from rwalk.studies.store import Row
from rwalk.training import Training

FILE = Path(__file__).with_name("budgets.json")  # read, never written
_preferred: dict[str, Any] = {}  # a file of the user's, while there is one
ROUNDS = 4  # of following a best value beyond the edges of its grid
STRIDES = {"lam": 10.0, "alpha": 10.0, "eps": 1e3}  # from the edge of a grid to the next value

Scores = dict[str, dict[str, dict[str, float]]]  # training → method → numbers → mean A, all as JSON


def scores_of(setting: Setting, rows: Iterable[Row]) -> Scores:
    """The mean validation score of everything that was tried."""
    found: dict[str, dict[str, dict[str, list[float]]]] = {}
    for row in rows:
        spec = row["spec"]
        cell = found.setdefault(_text(spec["training"]), {}).setdefault(row["method"], {})
        a = row[setting.head]["A"]
        numbers = _text(_spelled_out(setting, row["method"], spec["numbers"]))
        cell.setdefault(numbers, []).append(0.0 if a is None else a)  # none: it did not train
    return {
        training: {m: {n: float(np.mean(a)) for n, a in tried.items()} for m, tried in methods.items()}
        for training, methods in found.items()
    }


def _spelled_out(setting: Setting, method: str, numbers: Numbers) -> dict[str, Any]:
    """As the grid writes them: a row of another study may leave out what is a default."""
    usual = parts.defaults(method)
    return {**{name: usual[name] for each in setting.grid[method] for name in each}, **numbers}


def _best(means: Scores) -> tuple[str, dict[str, str]]:
    """The training time that suits the methods best on average, and the best numbers of each there."""
    training = max(means, key=lambda each: float(np.mean([max(tried.values()) for tried in means[each].values()])))
    return training, {method: max(tried, key=lambda n: tried[n]) for method, tried in means[training].items()}


def choose(setting: Setting, rows: Iterable[Row]) -> dict[str, Any]:
    """Apply the rule to the rows of a setting."""
    means = scores_of(setting, rows)
    training, best = _best(means)
    return {
        "training": json.loads(training),
        "numbers": {method: json.loads(numbers) for method, numbers in best.items()},
        "validation": {method: round(100 * means[training][method][n], 2) for method, n in best.items()},
        "tried": [
            [brief(json.loads(t)), method, json.loads(n), round(100 * a, 2)]
            for t, methods in means.items()
            for method, tried in methods.items()
            for n, a in tried.items()
        ],
    }


def beyond(setting: Setting, rows: Iterable[Row]) -> list[RunSpec]:
    """What else to try, because a best value is at an edge of what was tried; nothing if all are inside.

    Only values that a grid has several of are followed, and only one step at a time, from the best combination.
    """
    means = scores_of(setting, rows)
    training, best = _best(means)
    found = []
    for method, chosen in best.items():
        numbers, tried = json.loads(chosen), [json.loads(each) for each in means[training][method]]
        for axis, stride in STRIDES.items():
            if len({each.get(axis) for each in setting.grid[method]}) < 2:
                continue
            others = {name: value for name, value in numbers.items() if name != axis}
            line = [each[axis] for each in tried if {k: v for k, v in each.items() if k != axis} == others]
            wider = [{**others, axis: value} for value in _next(numbers[axis], line, stride)]
            found += [(Training(**json.loads(training)), method, each) for each in wider]
        if setting.any_length:
            lengths = [json.loads(each) for each in means if method in means[each]]
            found += [(each, method, numbers) for each in _lengths(json.loads(training), lengths)]
    runs = (run for each in found if _can_be_made(setting, *each) for run in setting.runs(*each))
    return list({run.hash(): run for run in runs}.values())


def _next(value: float, tried: list[float], stride: float) -> list[float]:
    """The neighbour of an edge, rounded so that decades stay decades."""
    outside = [value * stride] * (value == max(tried)) + [value / stride] * (value == min(tried))
    return [float(f"{each:.6g}") for each in outside]


def _lengths(training: Mapping[str, Any], tried: list[dict[str, Any]]) -> list[Training]:
    """Twice as long, or half as long, where the length chosen is the longest or the shortest."""
    steps = training["steps"]
    if steps is None:
        return []
    known = [each["steps"] for each in tried if {**each, "steps": steps} == training]
    return [Training(**{**training, "steps": int(each)}) for each in _next(steps, known, 2.0) if each >= 1]


def _can_be_made(setting: Setting, training: Training, method: str, numbers: Numbers) -> bool:
    """Whether the values are allowed: no α is larger than 1."""
    try:
        replace(setting.run, method=method, numbers=numbers).learner()
    except InputError:
        return False
    return True


def is_current(name: str) -> bool:
    """Whether a setting's budget was chosen from all of today's grid."""
    setting, chosen = SETTINGS[name], load().get(name, {"tried": []})
    tried = {(how_long, method, _text(numbers)) for how_long, method, numbers, _ in chosen["tried"]}
    return all(
        (brief(asdict(training)), method, _text(numbers)) in tried
        for training in setting.trainings
        for method, grid in setting.grid.items()
        for numbers in grid
    )


def _text(record: Mapping[str, Any]) -> str:
    return json.dumps(record, sort_keys=True)


def brief(training: Mapping[str, Any]) -> str:
    """The training time, in words."""
    epochs = training["epochs"]
    return f"{training['steps']} steps" if training["steps"] else f"{epochs} epoch{'s' * (epochs != 1)}"


def decide(name: str, rows: Iterable[Row], file: Path) -> str:
    """Add the rule's choice from a setting's rows to a file of budgets, and describe it."""
    chosen = read(file) if file.exists() else {}
    chosen[name] = choose(SETTINGS[name], rows)
    try:
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
    """What the rule chose."""
    return {**read(FILE), **_preferred}


def read(file: Path) -> dict[str, Any]:
    """The budgets in a file."""
    try:
        chosen = parse_json(file.read_bytes())
        for name, setting in chosen.items():
            if name not in SETTINGS or set(setting) != {"training", "numbers", "validation", "tried"}:
                raise ValueError(f"{name!r} does not describe a setting")
            Training(**setting["training"])
    except OSError as error:
        raise InputError(f"{file} cannot be read: {error.strerror}") from None
    except (AttributeError, TypeError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise InputError(f"{file} holds no budgets ({reason}): write it with `rwalk reproduce --tune`") from None
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
    return under_budget(f"{dataset}-{block}", replace(base(dataset, exemplars, sampler), method=method))


def under_budget(setting: str, run: RunSpec) -> RunSpec:
    chosen = load().get(setting)
    if chosen is None:
        raise InputError(f"no budget has been chosen for {setting}: run `rwalk reproduce --tune {setting}`")
    numbers = chosen["numbers"].get(run.method, {})
    return replace(run, numbers=numbers, training=Training(**chosen["training"]))
