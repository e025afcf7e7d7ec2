"""`rwalk resume`: continue an interrupted study."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rwalk.cli import run_study, trust
from rwalk.cli.command_options import (
    AsJson,
    CheckpointEvery,
    Data,
    ExecutorName,
    Keep,
    Quiet,
    Track,
    Workers,
    chosen_device,
)


def resume(
    folder: Annotated[Path, typer.Argument(help="the study folder of an interrupted `rwalk run`")],
    data: Data = None,
    trusted: Annotated[
        list[str] | None,
        typer.Option(
            "--trust",
            "--network",
            help="confirm that the study may import your package.module:name; repeatable",
        ),
    ] = None,
    device: Annotated[str, typer.Option(help="the device to resume on (default: where it began)")] = "",
    workers: Workers = None,
    checkpoint_every: CheckpointEvery = None,
    keep: Keep = "",
    executor: ExecutorName = "local",
    track: Track = "",
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Resume an interrupted study, exactly where it stopped."""
    from rwalk.studies import Study
    from rwalk.studies.study_folder import Store

    store = Store(folder)
    record = store.study()
    trust.check(folder, record.runs, trusted or ())  # before the study is made: that imports the parts it names
    trust.let_import(trusted or ())
    where = device or (record.environment or {}).get("device", "auto")
    study = Study.of(
        record,
        data=data,
        device=chosen_device(where),
        workers=workers,
        checkpoint_every=checkpoint_every,
        executor=executor,
    )
    run_study.run_and_show(study, store, quiet, as_json, track, run_study.remarks_on(study, keep), keep)
