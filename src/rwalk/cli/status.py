"""`rwalk status`: the progress of a study, and the processes that work on it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rwalk.cli.command_options import say
from rwalk.report.wording import duration


def status(folder: Annotated[Path, typer.Argument(help="a study folder")]) -> None:
    """List the runs that are done, running and waiting, and the time left."""
    from rwalk.studies.study_status import status_of

    found = status_of(folder)
    left = f", about {duration(found.left)} left" if found.left and found.done < found.total else ""
    at_work = len(found.running)
    say(f"{found.done} of {found.total} runs done, {at_work} being trained, {found.waiting} waiting{left}")
    for each in found.running:
        share = "" if each.progress is None else f", {each.progress:.0%}"
        say(f"  {each.owner}: {', '.join(each.names)}{share}")
