"""Options that several commands share, and how their values are read."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Data = Annotated[Path | None, typer.Option(envvar="RWALK_DATA", help="folder with the official dataset files")]
Device = Annotated[str, typer.Option(help="cpu, cuda, cuda:1 …; auto uses cuda if available")]
Workers = Annotated[int | None, typer.Option(help="number of processes on a CPU (default: one per core)")]
CheckpointEvery = Annotated[
    int | None, typer.Option(help="steps between checkpoints (default: as often as 2 % of the time allows)")
]
ExecutorName = Annotated[
    str, typer.Option("--executor", help="where runs are trained: local, here, join, package.module:Name")
]
Track = Annotated[
    str, typer.Option(help="show the study in trackers too: tensorboard, mlflow, wandb, or package.module:Name")
]
Quiet = Annotated[bool, typer.Option("--quiet", help="no live display")]
AsJson = Annotated[bool, typer.Option("--json", help="print one JSON object for scripts instead of tables")]


def chosen_device(name: str) -> str:
    """The device of that name; `auto` is cuda if available."""
    if name != "auto":
        return name
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def check_seeds(seeds: int | None) -> None:
    from rwalk.errors import InputError

    if seeds is not None and seeds < 1:
        raise InputError(f"--seeds must be at least 1, not {seeds}")
