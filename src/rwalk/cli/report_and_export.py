"""`rwalk report` and `rwalk export`: a study that has run as a page, and in the tools people watch."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rwalk.cli.command_options import let_import, say
from rwalk.errors import InputError

if TYPE_CHECKING:
    from rwalk.studies.rows import Description
    from rwalk.studies.trackers import Tracker


def report(
    folders: Annotated[
        list[Path],
        typer.Argument(
            metavar="FOLDER...",
            help="a study folder, or a folder of *.jsonl files or of studies; several are compared in one page",
        ),
    ],
    out: Annotated[
        Path | None, typer.Option(help="the page to write (default: FOLDER/report.html, of several ./report.html)")
    ] = None,
    title: Annotated[str, typer.Option(help="the page's title (default: the methods and the data)")] = "",
) -> None:
    """Make one self-contained HTML page of results: a verdict, tables, plots; exports as CSV, SVG and LaTeX."""
    from rwalk.report.html_page import write_report

    page = write_report(folders, out, title=title)
    say(f"{page}: {page.stat().st_size / 1e6:.1f} MB, opens in any browser")


def export(
    folder: Annotated[Path, typer.Argument(help="a study folder")],
    to: Annotated[str, typer.Option(help="comma-separated: tensorboard, mlflow, wandb, or package.module:Name")],
) -> None:
    """Show a study's finished runs in a tracker; those that are already there are not added again."""
    from rwalk.studies.losses_and_costs import Curves
    from rwalk.studies.study_folder import Store
    from rwalk.studies.trackers import export as export_to

    if not to.strip(", "):
        raise InputError("--to names no tracker: give tensorboard, mlflow or wandb")
    let_import(to.split(","))
    store = Store(folder)
    rows, curves = store.rows(), Curves(folder)
    for tracker in named(to, folder, store.study()):
        with tracker:
            added = export_to(tracker, rows, curves)
            if added and (page := report_page(folder)):
                tracker.attach(page)
        rest = "" if added == len(rows) else ", the others were there already"
        say(f"{tracker.name}: {added} of {len(rows)} runs added{rest}")


def named(names: str, folder: Path, record: Description) -> list[Tracker]:
    """The trackers in a comma-separated list, for the study in this folder."""
    from rwalk.studies import trackers

    subject = trackers.Subject.of(folder, record)
    given = dict.fromkeys(name.strip() for name in names.split(",") if name.strip())  # each once
    return [trackers.find(name)(subject) for name in given]


def report_page(folder: Path) -> Path | None:
    """The report of a study, made anew; None if it cannot be made, as its packages are not installed."""
    from rwalk.report.html_page import write_report

    try:
        return write_report([folder])
    except InputError:
        return None
