"""`python -m reproduction`: the paper's tables and figures, and other published comparisons (yardsticks)."""

from __future__ import annotations

import shlex
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from rwalk.cli import main
from rwalk.cli.command_options import (
    Data,
    Device,
    Join,
    Quiet,
    Workers,
    check_join,
    check_seeds,
    chosen_device,
    say,
)
from rwalk.report.wording import duration

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


@app.command()
def reproduce(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            help="table1, figure2, mnist, table1-mnist …; all of the paper's by default. Or questions of our own "
            "about it: ablation-mnist, surface-mnist, authors-cifar100, resnet … (RESULTS.md lists them); all of "
            "them: questions. Or yardsticks: split-mnist-2022, permuted-mnist, mammoth-mnist, cifar100-methods; "
            "all of them: yardsticks"
        ),
    ] = None,
    seeds: Annotated[int | None, typer.Option(help="how many seeds (default: the experiment's, 3 to 20)")] = None,
    tune: Annotated[
        str,
        typer.Option(
            help="choose the training budgets of a dataset, or of settings by their names (comma-separated), on "
            "validation data: many combinations with one seed, the best of them with all"
        ),
    ] = "",
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="print how many runs are missing, and how long each experiment took"),
    ] = False,
    data: Data = None,
    device: Device = "auto",
    workers: Workers = None,
    out: Annotated[
        Path,
        typer.Option(
            help="where the rows are kept, one folder per experiment; RESULTS.md (for yardsticks, "
            "docs/yardsticks.md) is written next to it"
        ),
    ] = Path("results"),
    budgets_file: Annotated[
        Path | None,
        typer.Option(
            "--budgets",
            help="budgets that override rwalk's own; --tune writes this file (default: OUT/tuning/budgets.json)",
        ),
    ] = None,
    join: Join = False,
    quiet: Quiet = False,
    report: Annotated[
        bool, typer.Option("--report", help="only write OUT/report.html, an interactive page of all rows")
    ] = False,
    pack: Annotated[
        bool,
        typer.Option("--pack", help="only compress finished study folders in OUT into NAME.jsonl.xz"),
    ] = False,
) -> None:
    """Regenerate the paper's tables and figures, or other published comparisons, beside the published values.

    Only missing runs are trained.
    """
    from reproduction import budgets, packed_rows, tuning_rounds
    from reproduction import planned_studies as paper
    from reproduction.results_pages import write_results
    from reproduction.yardstick_page import write_page
    from reproduction.yardsticks import YARDSTICKS
    from rwalk.cli.run_study import SAME_COMMAND, execute, placed
    from rwalk.errors import InputError
    from rwalk.studies.provenance import machine_here
    from rwalk.studies.rows import Row

    if report:
        from rwalk.report.html_page import write_report

        with packed_rows.opened(out) as folder:
            say(write_report([folder], out / "report.html", title=out.resolve().name))
        return
    if pack:
        for path in packed_rows.pack(out):
            say(path)
        return
    check_seeds(seeds)
    check_join(join, workers)
    where: dict[str, Any] = {
        "data": data,
        "device": chosen_device(device),
        "workers": workers,
    }
    if tune:
        if names or seeds:
            raise InputError("--tune only chooses budgets: drop experiments and --seeds")
        out /= "tuning"
    chosen = budgets_file or out / "budgets.json"
    with budgets.taken_from(None if tune else budgets_file):
        plan = paper.plan_tuning(tune, out, **where) if tune else paper.plan(names or (), out, seeds, **where)
        asked = [] if tune else paper.find(names or ())
        if dry_run:
            for line in paper.dry_run(plan, paper.known_rows(out)):
                say(line)
            return

        def run(planned: paper.Planned) -> list[Row]:
            name, title, _, study, folder = planned
            say(f"{name}: {title}")
            study, store = placed(study, folder, join, shared=out)
            there = packed_rows.rows_of(folder)
            if not study.missing(study.current(there)):  # then the data are not needed
                return there
            known = paper.known_rows(out)
            before = None if join else store.set_aside(study.describe())  # another process may be using it
            if before:
                say(f"{folder} held what {name} was before: that is {before} now, and rows of it are reused")
            missing, began = len(study.missing(study.current(known.values()))), time.perf_counter()
            rows = execute(study, store, show=not quiet, known=known, go_on=SAME_COMMAND)
            if missing:
                took = duration(time.perf_counter() - began)
                say(f"{name}: {missing} run{'s' * (missing != 1)} trained in {took} on {machine}")
            return rows

        def choose_for(setting: str) -> str:
            with budgets.taken_from(chosen if chosen.exists() else None):  # settings may follow one another
                (planned,) = paper.plan_tuning(setting, out, **where)
                rows = run(planned)
                for number in range(tuning_rounds.ROUNDS):
                    further = paper.next_round(planned, rows, number)
                    if further is None:
                        break
                    planned, rows = further, run(further)
                return budgets.decide(setting, rows, chosen)

        machine = machine_here(where["device"])
        if tune:
            for planned in plan:
                for line in choose_for(planned.name).splitlines():
                    say(line)
            say(f"to use {chosen}: python -m reproduction --budgets {shlex.quote(str(chosen))}")
            return
        for planned in plan:
            run(planned)
        theirs = [each.name in YARDSTICKS for each in asked]
        try:
            pages = [] if all(theirs) else write_results(out)
            pages += [write_page(out)] if any(theirs) else []
        except OSError as error:
            place = error.filename2 or error.filename or "the pages"
            raise InputError(
                f"cannot write {place}: {error.strerror or error}; all rows are kept in {out}: make room for "
                "it, and the same command writes it"
            ) from error
        for path in pages:
            say(path)
        say(f"interactive, in one page: python -m reproduction --report --out {out}")


if __name__ == "__main__":
    main(app, "python -m reproduction")
