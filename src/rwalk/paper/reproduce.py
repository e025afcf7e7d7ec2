"""Run what is missing of the paper's experiments: each is a study of its own, under results/NAME/."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from rwalk.errors import unknown
from rwalk.paper import budgets
from rwalk.paper.experiments import EXPERIMENTS, Experiment, runs_of
from rwalk.specs import RunSpec
from rwalk.store import Row, Store, write_atomically
from rwalk.studies import Study, Watch

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


def reproduce(
    experiments: Sequence[Experiment],
    results: Path,
    *,
    seeds: int | None = None,
    data: Path | str | None = None,
    device: str = "cpu",
    workers: int | None = None,
    watch: Callable[[Study, list[RunSpec]], AbstractContextManager[Watch]] = lambda study, runs: nullcontext(
        _silent
    ),
    say: Say = _silent,
) -> None:
    """Run what is missing, experiment by experiment."""
    for experiment in experiments:
        study = Study(tuple(runs_of(experiment, seeds)), "final", data, device, workers)
        study.prepare()
        store = Store(folder_of(experiment, results, seeds))
        with store.opened(study.describe()):
            there = {row["hash"] for row in store.rows()}
            elsewhere = known_rows(results)
            shared = [h for h in (run.hash() for run in study.runs) if h in elsewhere and h not in there]
            if shared:
                store.add(*(elsewhere[h] for h in shared))
            missing = [run for run in study.runs if run.hash() not in there and run.hash() not in shared]
            say(f"{experiment.name}: {len(missing)} of {len(study.runs)} runs to do")
            began = time.monotonic()
            with watch(study, missing) as watcher:
                study.execute(store, watcher)
            if missing:
                say(f"{experiment.name}: done in {time.monotonic() - began:.0f} s")


def tune(
    dataset: str,
    *,
    data: Path | str | None = None,
    device: str = "cpu",
    workers: int | None = None,
    file: Path = budgets.FILE,
    say: Say = _silent,
) -> None:
    """Apply the rule of `budgets` to a dataset and write down what it chose."""
    for samples in (False, True):
        runs = tuple(budgets.candidates(dataset, samples))
        say(f"tuning {budgets.key(dataset, samples)}: {len(runs)} runs")
        rows = Study(runs, "none", data, device, workers).execute()
        chosen = json.loads(file.read_text()) if file.exists() else {}
        chosen[budgets.key(dataset, samples)] = budgets.choose(rows)
        write_atomically(file, json.dumps(chosen, indent=1) + "\n")
        say(f"chosen: {chosen[budgets.key(dataset, samples)]}")
