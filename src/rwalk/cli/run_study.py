"""Run a study with its displays; after an interruption print the command that resumes it."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Collection, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from rwalk.cli.command_options import to_stderr
from rwalk.errors import InputError
from rwalk.report.progress_display import Display
from rwalk.studies import Study
from rwalk.studies.loss_curves import Curves, note_command
from rwalk.studies.provenance import strangers
from rwalk.studies.rows import Row, Rows
from rwalk.studies.shared_folder import Join
from rwalk.studies.specs import RunSpec, steps_of
from rwalk.studies.study_events import Event
from rwalk.studies.study_folder import SharedStore, Store
from rwalk.studies.worker_pool import Interrupts, WorkerDied

SAME_COMMAND = "the same command"


def placed(study: Study, folder: Path, join: bool, shared: Path | None = None) -> tuple[Study, Store]:
    """The study as it is executed, and its folder: this process's alone, or with `join` that of all who join.

    Who joins finds reference models in `shared`, by default in the folder: other machines have other caches.
    """
    if not join:
        return study, Store(folder)
    return replace(study, executor=Join, cache=shared or folder), SharedStore(folder)


def run_and_show(
    study: Study,
    store: Store,
    quiet: bool,
    as_json: bool,
    remarks: Sequence[str] = (),
    go_on: str = "",
) -> None:
    """Train the missing runs, and print all rows as tables or as JSON."""
    visible = not (quiet or as_json)
    rows = execute(study, store, show=visible, go_on=go_on, remarks=remarks)
    if as_json:
        public = [{k: v for k, v in row.to_json().items() if k not in ("hash", "spec")} for row in rows]
        print(json.dumps({"rows": public, "study": study.describe().to_json()}, default=list))
        return
    from rwalk.cli.print_results import show

    show(rows, store.folder)


def remarks_on(study: Study) -> list[str]:
    """Remarks to print before a study begins."""
    streams, remarks = {run.stream: study.stream(run.stream) for run in study.runs}, []
    if alone := [spec for spec, stream in streams.items() if len(stream) == 1]:
        several = next((name for name in ("permuted", "rotated") if getattr(alone[0], name)), "")
        see = f"--{several}" if several else "--classes-per-task, --tasks"
        remarks.append(f"there is only one task, so nothing can be forgotten: see {see}")
    most = max(len(task.train) for stream in streams.values() for task in stream.tasks)
    if (batch := min(run.training.batch for run in study.runs)) > most:
        remarks.append(f"no task has {batch:,} examples, so a batch is a whole task: {most:,} or fewer")
    return remarks


def execute(
    study: Study,
    store: Store,
    show: bool,
    known: dict[str, Row] | None = None,
    go_on: str = "",
    remarks: Sequence[str] = (),
) -> Rows:
    """Train the missing runs, with progress displayed; `known` rows of other studies, by hash, are reused.

    `go_on` names the command that resumes after an interruption, if it is not `rwalk resume`;
    `remarks` are printed once nothing is wrong with the study.
    """
    study.prepare()  # its errors come before the first write
    for line in remarks if show else ():
        to_stderr(line)
    record = study.describe()
    with store.opened(record), Interrupts() as interrupts, ExitStack() as open_displays:
        there = study.current(store.rows())
        shared = [row for key, row in study.current((known or {}).values()).items() if key not in there]
        if shared:
            store.add(*shared)
            there |= {row.hash: row for row in shared}
            for line in strangers(shared, study.device):
                to_stderr(line)
        todo = study.missing(there)
        if todo:
            note_command(store.folder, as_typed())
        curves = Curves(store.folder, lambda run, task: steps_of(run, study.stream(run.stream), task))
        listeners = [curves.watch]  # losses are in no row, and a report shows them
        if show and todo:
            display = Display(study, Console(stderr=True), to_stderr)
            listeners.append(open_displays.enter_context(display).watch)

        def watch(event: Event) -> None:
            for listen in listeners:
                listen(event)

        try:
            return study.execute(store, watch, interrupts)
        except (KeyboardInterrupt, WorkerDied) as error:
            to_stderr(
                f"{str(error) or 'stopped'}; {len(store.rows())} of {len(study.runs)} runs are kept in "
                f"{store.folder}, and those in progress are saved: "
                f"{go_on or f'`{resume_command(study, store)}`'} resumes from there"
            )
            code = 1 if isinstance(error, WorkerDied) else 128 + (interrupts.caught or 2)
            raise SystemExit(code) from None


def as_typed() -> str:
    """The command that a program was started with: `rwalk`, or `python -m MODULE`; nothing for other code."""
    program, *words = Path(sys.argv[0]), *sys.argv[1:]
    if program.stem != "rwalk" and program.name != "__main__.py":
        return ""
    is_ours = "rwalk" in (program.stem, program.parent.name)
    return shlex.join([*(["rwalk"] if is_ours else ["python", "-m", program.parent.name]), *words])


def resume_command(study: Study, store: Store) -> str:
    """The command that resumes a study: study.json names neither the data's folder nor trusted code."""
    words = ["rwalk", "resume", str(store.folder)]
    words += [] if study.data is None else ["--data", str(study.data)]
    return shlex.join([*words, *trusting(own_code(study.runs))])


# ── the user's own code, `package.module:name`: a file may name it, but only the user may have it imported ──────


def own_code(runs: Iterable[RunSpec]) -> list[str]:
    """The names of all user code that these runs would import, without repeats."""
    return list(dict.fromkeys(name for run in runs for name in run.own_code()))


def check_trusted(folder: Path, runs: Iterable[RunSpec], trusted: Collection[str]) -> None:
    """Refuse a study that imports code which the user has not confirmed."""
    unconfirmed = [name for name in own_code(runs) if name not in trusted]
    if unconfirmed:
        raise InputError(f"{folder} imports code: add {' '.join(trusting(unconfirmed))} if you trust it")
    if unused := [name for name in trusted if name not in own_code(runs)]:
        raise InputError(f"{folder} imports no {unused[0]}: drop --trust {unused[0]}")


def trusting(names: Iterable[str]) -> list[str]:
    """The options of `rwalk resume` that confirm these names."""
    return [word for name in names for word in ("--trust", name)]
