"""Run the missing runs of the paper's experiments: each is a study of its own, under results/NAME/."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from reproduction import budgets, packed_rows, tuning_rounds, tuning_settings
from reproduction.own_questions import QUESTIONS
from reproduction.paper_experiments import EXPERIMENTS, Experiment, runs_of
from reproduction.yardsticks import YARDSTICKS
from rwalk.errors import unknown
from rwalk.studies import Study
from rwalk.studies.json_records import content_hash
from rwalk.studies.rows import Row


class Planned(NamedTuple):
    """A study to run, where its rows are kept, and how it is described."""

    name: str
    title: str
    cost: str
    study: Study
    folder: Path


def find(names: Sequence[str]) -> list[Experiment]:
    """Experiments by name, by a part of it (table1, mnist), or all of the paper's.

    `questions` are all of our own and `yardsticks` all of others; one of them is found by its whole name alone.
    """
    others = {**QUESTIONS, **YARDSTICKS}
    groups = {"questions": QUESTIONS, "yardsticks": YARDSTICKS}
    found: dict[str, Experiment] = {}
    for asked in names or ["all"]:
        # Figures 2 and 3 are drawn from table 1's runs.
        name = re.sub("^figure[23]", "table1", asked)
        here = {n: e for n, e in EXPERIMENTS.items() if name in ("all", n, *n.split("-"))}
        here |= {name: others[name]} if name in others else groups.get(name, {})
        if not here:
            short = dict.fromkeys(part for each in EXPERIMENTS for part in each.split("-"))
            known = {**short, **EXPERIMENTS, **others}
            raise unknown("experiment", asked, ["all", *groups, "figure2", "figure3", *known])
        found |= here
    return list(found.values())


def folder_of(experiment: Experiment, results: Path, seeds: int | None = None) -> Path:
    """Its study folder; a different number of seeds is a different study."""
    differs = seeds is not None and seeds != experiment.seeds
    return results / (f"{experiment.name}-{seeds}-seeds" if differs else experiment.name)


def known_rows(results: Path) -> dict[str, Row]:
    """All rows under a results folder, by hash: experiments share runs."""
    return {row.hash: row for rows in packed_rows.all_rows(results).values() for row in rows}


def plan(names: Sequence[str], results: Path, seeds: int | None = None, **where: Any) -> list[Planned]:
    """Experiments by their names, each a study under `results`; `where` it runs: data, device, workers."""
    studies = {each: Study(tuple(runs_of(each, seeds)), each.reference, **where) for each in find(names)}
    return [
        Planned(each.name, each.title, each.cost, study, folder_of(each, results, seeds))
        for each, study in studies.items()
    ]


def plan_tuning(name: str, folder: Path, **where: Any) -> list[Planned]:
    """The first runs of a tuning, for all settings of a dataset or for one.

    A different grid is a different study; a later round trains only its new runs.
    """
    return [
        _tuning(each, Study(tuple(budgets.setting_of(each).scouts()), "none", **where), folder)
        for each in tuning_settings.find(name)
    ]


def _tuning(name: str, study: Study, folder: Path) -> Planned:
    grid = content_hash([run.hash() for run in study.runs])[:8]
    title = f"which budget suits {name}, on validation data"
    cost = f"tuning; the best are followed further, in at most {tuning_rounds.ROUNDS} rounds"
    return Planned(name, title, cost, study, folder / f"{name}-{grid}")


def next_round(planned: Planned, rows: Sequence[Row], number: int) -> Planned | None:
    """The same tuning with the next runs to try, by its rows; None once it is decided."""
    new = tuning_rounds.next_runs(budgets.setting_of(planned.name), rows, scouting=number < tuning_rounds.SCOUTING)
    if not new:
        return None
    study = replace(planned.study, runs=(*planned.study.runs, *new))
    title = f"round {number + 2}, {len(new)} further runs"
    return _tuning(planned.name, study, planned.folder.parent)._replace(title=title)


def dry_run(plan: Sequence[Planned], known: Mapping[str, Row]) -> Iterator[str]:
    """How many runs of each experiment would be trained, and how long all of its runs took.

    A run that two studies share is counted once. Rows that are `known`, or in a study's folder, are not counted,
    unless they are outdated.
    """
    there: set[str] = set()  # runs of the studies before
    for name, _, cost, study, folder in plan:
        current = study.current([*known.values(), *packed_rows.rows_of(folder)])
        missing = study.missing(there | current.keys())
        there |= {run.hash() for run in missing}
        line = f"{name}: {len(missing)} of {len(study.runs)} runs to do"
        yield f"{line} ({cost})" if missing else line
