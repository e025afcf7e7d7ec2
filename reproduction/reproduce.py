"""Run the missing runs of the paper's experiments: each is a study of its own, under results/NAME/."""

from __future__ import annotations

import re
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from reproduction import budgets, kept, race, settings
from reproduction.experiments import EXPERIMENTS, Experiment, runs_of
from reproduction.questions import QUESTIONS
from rwalk.data import datasets
from rwalk.errors import InputError, unknown
from rwalk.studies import Study
from rwalk.studies.executors import fleet_of
from rwalk.studies.json_records import content_hash
from rwalk.studies.rows import Row
from rwalk.studies.specs import RunSpec, passes_of
from rwalk.threads import available_cores, few_threads


class Planned(NamedTuple):
    """A study to run, where its rows are kept, and how it is described."""

    name: str
    title: str
    cost: str
    study: Study
    folder: Path


def find(names: Sequence[str], known: Mapping[str, Experiment] = EXPERIMENTS) -> list[Experiment]:
    """Experiments by name, by a part of it (table1, mnist), or all of the paper's.

    `questions` are all of our own; one of them, or what else is `known`, is found by its whole name alone.
    """
    known = {**QUESTIONS, **known}
    found: dict[str, Experiment] = {}
    for asked in names or ["all"]:
        # Figures 2 and 3 are drawn from table 1's runs.
        name = re.sub("^figure[23]", "table1", asked)
        here = {n: e for n, e in EXPERIMENTS.items() if name in ("all", n, *n.split("-"))}
        here |= {name: known[name]} if name in known else QUESTIONS if name == "questions" else {}
        if not here:
            short = dict.fromkeys(part for each in EXPERIMENTS for part in each.split("-"))
            others = {**EXPERIMENTS, **known}
            raise unknown(
                "experiment", asked, ["all", "questions", "yardsticks", "figure2", "figure3", *(short | others)]
            )
        found |= here
    return list(found.values())


def folder_of(experiment: Experiment, results: Path, seeds: int | None = None) -> Path:
    """Its study folder; a different number of seeds is a different study."""
    differs = seeds is not None and seeds != experiment.seeds
    return results / (f"{experiment.name}-{seeds}-seeds" if differs else experiment.name)


def known_rows(results: Path) -> dict[str, Row]:
    """All rows under a results folder, by hash: experiments share runs."""
    return {row.hash: row for rows in kept.all_rows(results).values() for row in rows}


def study_of(experiment: Experiment, seeds: int | None = None, **where: Any) -> Study:
    """An experiment as a study; `where` it runs: data, device, workers."""
    return Study(tuple(runs_of(experiment, seeds)), experiment.reference, **where)


def plan(
    names: Sequence[str],
    results: Path,
    seeds: int | None = None,
    known: Mapping[str, Experiment] = EXPERIMENTS,
    **where: Any,
) -> list[Planned]:
    """Experiments by their names, each a study under `results`; of many, those whose budgets are known."""
    for each in find(names, known):
        if each.awaits and each.name in names:
            raise InputError(f"{each.name} {_what_it_needs(each)}, and add --budgets")
    return [
        Planned(each.name, each.title, each.cost, study_of(each, seeds, **where), folder_of(each, results, seeds))
        for each in find(names, known)
        if not each.awaits
    ]


def left_out(names: Sequence[str], known: Mapping[str, Experiment] = EXPERIMENTS) -> Iterator[str]:
    """The experiments that a plan leaves out, with the reasons."""
    yield from (
        f"{each.name} is left out: it {_what_it_needs(each)}" for each in find(names, known) if each.awaits
    )


def _what_it_needs(experiment: Experiment) -> str:
    return f"needs budgets: run python -m reproduction --tune {','.join(experiment.awaits)}"


def plan_tuning(name: str, folder: Path, **where: Any) -> list[Planned]:
    """The first runs of a tuning, for all settings of a dataset or for one.

    A different grid is a different study; a later round trains only its new runs.
    """
    return [
        _tuning(each, Study(tuple(budgets.setting_of(each).scouts()), "none", **where), folder)
        for each in settings.find(name)
    ]


def _tuning(name: str, study: Study, folder: Path) -> Planned:
    grid = content_hash([run.hash() for run in study.runs])[:8]
    title = f"which budget suits {name}, on validation data"
    cost = f"tuning; the best are followed further, in at most {race.ROUNDS} rounds"
    return Planned(name, title, cost, study, folder / f"{name}-{grid}")


def next_round(planned: Planned, rows: Sequence[Row], number: int) -> Planned | None:
    """The same tuning with the next runs to try, by its rows; None once it is decided."""
    new = race.next_runs(budgets.setting_of(planned.name), rows, scouting=number < race.SCOUTING)
    if not new:
        return None
    study = replace(planned.study, runs=(*planned.study.runs, *new))
    title = f"round {number + 2}, {len(new)} further runs"
    return _tuning(planned.name, study, planned.folder.parent)._replace(title=title)


def dry_run(plan: Sequence[Planned], known: Mapping[str, Row], only: Collection[str] = ()) -> Iterator[str]:
    """The runs that would be trained, and for about how long, from rates measured now on this machine.

    A run that two studies share is counted once. Rows that are `known`, or in a study's folder, are not counted,
    unless they are outdated. Nothing is downloaded: if data are missing, there is no estimate.
    """
    there: set[str] = set()  # runs of the studies before
    total = 0.0
    absent: dict[str, str | None] = {}  # dataset → why it cannot be used
    for name, _, cost, study, folder in plan:
        current = study.current([*known.values(), *kept.rows_of(folder)])
        missing = study.missing(there | current.keys(), only)
        there |= {run.hash() for run in missing}
        line = f"{name}: {len(missing)} of {len(study.runs)} runs to do"
        if not missing:
            yield line
            continue
        if any(_absence(run.stream.dataset, study, absent) for run in missing):
            yield f"{line} ({cost})"
            continue
        references = [spec for spec in study.unknown_references(missing) if spec.hash() not in there]
        there |= {spec.hash() for spec in references}
        steps = sum(study.steps(run) for run in [*missing, *references])
        seconds = sum(study.steps(run) * passes_of(run, study.stream(run.stream)) for run in missing)
        seconds += sum(study.steps(run) for run in references)
        seconds /= _steps_per_second(study, missing[0])
        total += seconds
        with_them = f" and {len(references)} reference models" if references else ""
        yield f"{line}{with_them}, {steps:,} steps, about {_duration(seconds)} of training ({cost})"
    if len(plan) > 1 and total:
        yield f"together: about {_duration(total)} of training"
    for reason in dict.fromkeys(filter(None, absent.values())):
        yield f"no estimate: {reason}"


def _absence(dataset: str, study: Study, known: dict[str, str | None]) -> str | None:
    """Why a dataset cannot be used here without downloading it, or None."""
    if dataset not in known:
        try:
            datasets.load(dataset, study.data, download=False)
            known[dataset] = None
        except InputError as error:
            known[dataset] = str(error)
    return known[dataset]


def _duration(seconds: float) -> str:
    """
    >>> _duration(20), _duration(7000), _duration(20_000), _duration(3_400_000)
    ('1 min', '117 min', '6 hours', '39 days')
    """
    for unit, length in (("days", 86_400), ("hours", 3600)):
        if seconds >= 2 * length:
            return f"{round(seconds / length)} {unit}"
    return f"{max(1, round(seconds / 60))} min"


TRIALS = (2, 40, 40)  # steps; the first ones are cold
PATIENCE = 1.0  # seconds: a longer trial is precise enough


def _steps_per_second(study: Study, run: RunSpec) -> float:
    """Steps per second of the whole machine: a run's first task measured, times the runs that train at once."""
    width = 5 if study.device != "cpu" else 1
    at_once = width if study.device != "cpu" else study.workers or available_cores()
    rate = 0.0
    for steps in TRIALS:
        short = replace(run, training=replace(run.training, steps=steps))
        runs = [replace(short, seed=seed) for seed in range(width)]
        fleet = fleet_of(study.device, study.stream(run.stream), runs)
        with few_threads(1):
            began = time.perf_counter()
            fleet.begin_task()
            fleet.train_task()
            took = time.perf_counter() - began
        rate = at_once * steps / took
        if took > PATIENCE:
            break
    return rate
