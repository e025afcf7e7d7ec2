"""Run what is missing of the paper's experiments: each is a study of its own, under results/NAME/."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from rwalk.errors import unknown
from rwalk.fleet import Fleet
from rwalk.paper import budgets
from rwalk.paper.experiments import EXPERIMENTS, Experiment, runs_of
from rwalk.specs import RunSpec
from rwalk.store import Row, Store, write_atomically
from rwalk.studies import Study
from rwalk.workers import available_cores

Say = Callable[[str], None]


def _silent(anything: object) -> None:
    pass


def find(names: Sequence[str]) -> list[Experiment]:
    """Experiments by name, by the beginning of a name, by dataset, or all."""
    found: dict[str, Experiment] = {}
    for name in names or ["all"]:
        here = {
            n: e for n, e in EXPERIMENTS.items() if name in ("all", n) or n.startswith(name) or n.endswith(name)
        }
        if not here:
            raise unknown("experiment", name, ["all", *EXPERIMENTS])
        found |= here
    return list(found.values())


def folder_of(experiment: Experiment, results: Path, seeds: int | None = None) -> Path:
    """Its study folder; another number of seeds is another study."""
    differs = seeds is not None and seeds != experiment.seeds
    return results / (f"{experiment.name}-{seeds}-seeds" if differs else experiment.name)


def known_rows(results: Path) -> dict[str, Row]:
    """All rows under a results folder, by hash: experiments share runs."""
    rows = (row for file in sorted(results.glob("*/runs.jsonl")) for row in Store(file.parent).rows())
    return {row["hash"]: row for row in rows}


def study_of(experiment: Experiment, seeds: int | None = None, **where: Any) -> Study:
    """An experiment as a study; `where` it runs: data, device, workers."""
    return Study(tuple(runs_of(experiment, seeds)), experiment.reference, **where)


def tune(
    name: str,
    *,
    data: Path | str | None = None,
    device: str = "cpu",
    workers: int | None = None,
    file: Path = budgets.FILE,
    say: Say = _silent,
) -> None:
    """Apply the rule of `budgets` to a dataset's settings, or to one of them, and write down what it chose."""
    known: dict[str, Row] = {}  # blocks that differ in their head alone share their runs
    for each, setting in budgets.find(name).items():
        runs = {run.hash(): run for run in setting.candidates()}
        missing = tuple(run for known_as, run in runs.items() if known_as not in known)
        say(f"tuning {each}: {len(missing)} runs")
        if missing:
            known |= {row["hash"]: row for row in Study(missing, "none", data, device, workers).execute()}
        chosen = json.loads(file.read_text()) if file.exists() else {}
        chosen[each] = budgets.choose(setting, [known[known_as] for known_as in runs])
        write_atomically(file, budgets.written(chosen))
        say(f"chosen: {chosen[each]['training']} {chosen[each]['numbers']} {chosen[each]['validation']}")


def dry_run_line(
    experiment: Experiment, study: Study, store: Store, known: Mapping[str, Row], only: Collection[str] = ()
) -> str:
    """What would run, and about how long, from a rate measured now on this machine."""
    there = {row["hash"] for row in store.rows()} | set(known)
    missing = study.missing(there, only)
    line = f"{experiment.name}: {len(missing)} of {len(study.runs)} runs to do"
    if not missing:
        return line
    steps = sum(study.steps(run) for run in missing)
    seconds = sum(study.steps(run) * _weight(study, run) for run in missing) / _steps_per_second(study, missing[0])
    return f"{line}, {steps:,} steps, about {max(1, round(seconds / 60))} min of training ({experiment.cost})"


def _weight(study: Study, run: RunSpec) -> float:
    """Of a step, in batches passed over: GEM's also goes over all exemplars of every earlier task."""
    projector, memory = run.learner().projector, run.memory
    if projector is None or memory is None:
        return 1.0
    tasks = study.stream(run.stream).tasks
    classes = len(tasks[0].classes)
    kept = classes * memory.quota(classes * len(tasks)) if projector.per_task else run.training.batch
    constraints = (len(tasks) - 1) / 2 if projector.per_task else 1.0  # on average
    return 1.0 + constraints * kept / run.training.batch


def _steps_per_second(study: Study, run: RunSpec, steps: int = 40) -> float:
    """Of the whole machine: one run measured, times those that run at once."""
    stream = study.stream(run.stream)
    width = 5 if study.device != "cpu" else 1
    learners, seeds = [run.learner()] * width, list(range(width))
    fleet = Fleet(stream, run.network, learners, seeds, replace(run.training, steps=steps), study.device)
    marks = []
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    for _ in range(2):  # the second time is warm
        fleet.step = 0
        began = time.perf_counter()
        fleet._begin_task()
        fleet._train_task()
        marks.append(time.perf_counter() - began)
    torch.set_num_threads(threads)
    at_once = width if study.device != "cpu" else study.workers or available_cores()
    return at_once * steps / marks[-1]
