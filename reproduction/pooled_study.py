"""Several experiments trained as one study, on a device: no part of it waits for the last run of any of them."""

from __future__ import annotations

import shutil
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from reproduction import packed_rows
from reproduction.planned_studies import Planned
from rwalk.studies import losses_and_costs
from rwalk.studies.specs import RunSpec
from rwalk.studies.study_folder import Store

NAME = "together"  # of the folder, while there is one
MOST_FIRST = ("all", "final", "none")


def as_one(plan: Sequence[Planned], results: Path) -> Planned:
    """Every run of several studies, with the references of each; each study then finds its rows there.

    Runs that can share a fleet do, whichever study they are of, and of all fleets the longest begins first.
    """
    runs: dict[str, RunSpec] = {}
    kinds: dict[str, str] = {}
    for planned in plan:
        assert isinstance(planned.study.reference, str)
        for run in planned.study.runs:
            key = run.hash()
            runs.setdefault(key, run)
            kinds[key] = min(planned.study.reference, kinds.get(key, "none"), key=MOST_FIRST.index)
    study = replace(plan[0].study, runs=tuple(runs.values()), reference=tuple(kinds.values()))
    names = ", ".join(planned.name for planned in plan)
    return Planned(NAME, f"the runs of {names}", "", study, results / NAME)


def is_worth_it(plan: Sequence[Planned], only: Collection[str] = ()) -> bool:
    """Whether there is something to train in more than one of these studies."""
    waiting = [
        each for each in plan if each.study.missing(each.study.current(packed_rows.rows_of(each.folder)), only)
    ]
    return len(waiting) > 1


def dissolve(pool: Planned, plan: Sequence[Planned]) -> None:
    """Every study has its rows: give each the costs, curves and commands too, and remove the folder of all."""
    store = Store(pool.folder)
    if not store.study_file.exists() or store.study().hash != pool.study.hash():
        return
    there = {row.hash for planned in plan for row in packed_rows.rows_of(planned.folder)}
    if not there >= {row.hash for row in store.rows()}:
        return  # a row that is nowhere else stays
    for planned in plan:
        mine = {run.hash() for run in planned.study.runs}
        for name in (losses_and_costs.COSTS, losses_and_costs.LOSSES):
            with suppress(OSError):  # neither is worth more than the rows
                lines = (pool.folder / name).read_text().splitlines(keepends=True)
                with open(planned.folder / name, "a", newline="") as file:
                    file.writelines(line for line in lines if line.partition(",")[0] in mine)
        for command in losses_and_costs.commands(pool.folder) if planned.folder.is_dir() else ():
            losses_and_costs.note_command(planned.folder, command)
    shutil.rmtree(pool.folder)
