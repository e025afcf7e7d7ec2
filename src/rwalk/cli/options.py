"""Options that several commands share, and how their values are read."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rwalk.showing import shown

if TYPE_CHECKING:
    from rwalk.data.datasets import Reading

HOW = "where and how"


def how(*names: str, **settings: Any) -> Any:
    """An option about the place of training and the display, not about the study itself."""
    return typer.Option(*names, rich_help_panel=HOW, **settings)


def says_what_to_learn(context: typer.Context) -> bool:
    """Whether any option given is about the study itself."""
    about = [each.name for each in context.command.params if getattr(each, "rich_help_panel", None) != HOW]
    sources = [context.get_parameter_source(name) for name in about if name]
    return any(source is not None and source.name == "COMMANDLINE" for source in sources)


Data = Annotated[Path | None, how(envvar="RWALK_DATA", help="folder with the official dataset files")]
Device = Annotated[str, how(help="cpu, cuda, cuda:1 …; auto uses cuda if available")]
Workers = Annotated[int | None, how(help="number of processes (default: one per core of a CPU, one per GPU)")]
CheckpointEvery = Annotated[
    int | None, how(help="steps between checkpoints (default: as often as 2 % of the time allows)")
]
ExecutorName = Annotated[
    str, how("--executor", help="where runs are trained: local, gpus, ray, here, or package.module:Name")
]
Join = Annotated[bool, how("--join", help="share the work with other processes that join the same folder")]
Track = Annotated[
    str, how(help="show the study in trackers too: tensorboard, mlflow, wandb, or package.module:Name")
]
Label = Annotated[
    str | None,
    typer.Option(help="of a table: the column of classes (default: label, target or class, or the last)"),
]
Drop = Annotated[list[str] | None, typer.Option(help="of a table: a column to leave out; repeatable")]
Missing = Annotated[
    str,
    typer.Option(help="of a table, missing values: refuse, fill (with the column's mean), or drop the row"),
]
Size = Annotated[int | None, typer.Option(help="of images: resize and crop to squares of N pixels")]
Keep = Annotated[
    str,
    how(
        help="leave trained models in the study's folder: best (of every method the run of the highest "
        "single-head accuracy), or all"
    ),
]
Quiet = Annotated[bool, how("--quiet", help="no live display")]
AsJson = Annotated[bool, how("--json", help="print one JSON object for scripts instead of tables")]


def chosen_device(name: str) -> str:
    """The device of that name; `auto` is cuda if available."""
    if name != "auto":
        return name
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def with_label(dataset: str, reading: Reading, tell: Callable[[str], None]) -> Reading:
    """A table's reading with its column of classes named; if the user named none, the choice is reported."""
    from rwalk.data.datasets import TableEncoder
    from rwalk.data.datasets.tables import is_table
    from rwalk.files import at_home

    if reading.label is not None or not is_table(dataset):
        return reading
    found = TableEncoder.fit(at_home(dataset), reading=reading).label
    tell(f"the classes are in column {found!r} (--label names another)")
    return replace(reading, label=found)


def say(line: object) -> None:
    """A line of results, whatever names it repeats."""
    print(shown(line), flush=True)


def to_stderr(line: object) -> None:
    """One line of text from us, whatever names it repeats."""
    print(f"rwalk: {shown(line)}", file=sys.stderr, flush=True)


def check_join(join: bool, **options: object) -> None:
    """Refuse options that have no meaning where every process trains one run at a time; values by name."""
    from rwalk.errors import InputError

    given = [f"--{name}" for name, value in options.items() if value not in (None, "", "local")]
    if join and given:
        raise InputError(f"--join trains one run at a time per process: drop {' and '.join(given)}")


def check_seeds(seeds: int | None) -> None:
    from rwalk.errors import InputError

    if seeds is not None and seeds < 1:
        raise InputError(f"--seeds must be at least 1, not {seeds}")
