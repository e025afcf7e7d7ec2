"""The demonstration on the terminal: one table, one sentence, one picture, and what to do next."""

from __future__ import annotations

import shlex
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rwalk.studies.rows import Row


def show(rows: list[Row], folder: Path) -> None:
    """Print the accuracy on the first task by method, write the picture, and propose three commands."""
    from rich.console import Console
    from rich.markup import escape

    from rwalk.atomic_files import write_atomically
    from rwalk.cli.command_options import to_stderr
    from rwalk.demonstration import guarded, story
    from rwalk.demonstration.picture import picture
    from rwalk.demonstration.table import table
    from rwalk.escaping import shown
    from rwalk.report.seed_summaries import summarise

    console = Console(highlight=False)
    ways = story.ways(summarise(rows))
    if any(way.is_known for way in ways):
        ways.insert(-1, guarded.way(folder, to_stderr))
    console.print(f"{story.setting(ways)}\n")
    console.print(table(ways))
    console.print(f"\n[bold]{story.sentence(ways)}[/bold]\n")
    console.print(f"{story.WAYS} {story.CHOSEN}\n")
    drawn = folder / "demonstration.svg"
    try:
        write_atomically(drawn, picture(ways))
        console.print(shown(f"The picture: {drawn}"), soft_wrap=True, markup=False)
    except OSError as error:
        console.print(f"No picture could be written: {error.strerror}", soft_wrap=True, markup=False)
    console.print("Next:")
    for command, why in _next(folder):
        words = escape(shown(shlex.join([*program(), *command])))
        console.print(f"  [dim]# {why}[/dim]\n  {words}", soft_wrap=True)


def _next(folder: Path) -> list[tuple[list[str], str]]:
    """Three commands that work here, as they are."""
    with_report = find_spec("jinja2") is not None
    look = (["report", str(folder)], "these runs as one page for your browser")
    again = (["resume", str(folder)], "all this once more, without training")
    return [
        look if with_report else again,
        (["run", "--memory", "10", "--seeds", "2"], "harder: two new classes per task, ten examples of each kept"),
        (["methods"], "all methods; with your own data: rwalk fit --help"),
    ]


def program() -> list[str]:
    """The words that start this program again from the current folder."""
    called = Path(sys.argv[0])
    if called.name == "__main__.py":  # python -m rwalk
        return [_from_here(Path(sys.executable)), "-m", "rwalk"]
    found = shutil.which(called.name)
    return [called.name] if found and Path(found).resolve() == called.resolve() else [_from_here(called)]


def _from_here(path: Path) -> str:
    """Relative, if it is below the current folder; not resolved, for an environment's python is a link."""
    path = Path.cwd() / path
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)
