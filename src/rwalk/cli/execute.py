"""Running a study with its displays: train what is missing, and when interrupted say how to resume."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Collection
from typing import TYPE_CHECKING

from rwalk.cli import export, trust
from rwalk.cli.display import show

if TYPE_CHECKING:
    from rwalk.studies import Study
    from rwalk.studies.store import Row, Store


def run_and_show(study: Study, store: Store, quiet: bool, as_json: bool, track: str = "", go_on: str = "") -> None:
    """Run what is missing, and print all rows: as tables, or as JSON."""
    rows = execute(study, store, show=not (quiet or as_json), track=track, go_on=go_on)
    if as_json:
        print(json.dumps({"rows": [_public(row) for row in rows], "study": study.describe()}, default=list))
    else:
        show(rows, store.folder)


def execute(
    study: Study,
    store: Store,
    show: bool,
    known: dict[str, Row] | None = None,
    only: Collection[str] = (),
    go_on: str = "",
    track: str = "",
) -> list[Row]:
    """Run what is missing, with progress displayed; `known` rows of other studies, by hash, are not run again.

    `go_on` names the command that resumes after an interruption, if it is not `rwalk resume`; `track` names
    trackers.
    """
    from contextlib import ExitStack

    from rich.console import Console

    from rwalk.report.live import Lines, Live
    from rwalk.studies.curves import Curves
    from rwalk.studies.events import Event
    from rwalk.studies.interrupts import Interrupts
    from rwalk.studies.provenance import strangers
    from rwalk.studies.study import steps_of
    from rwalk.studies.trackers.tracking import Tracking
    from rwalk.studies.workers import WorkerDied

    study.prepare()  # whatever is wrong with it is reported before anything is written
    record = study.describe()
    trackers = export.named(track, store.folder, record)
    with store.opened(record), Interrupts() as interrupts, ExitStack() as open_displays:
        there = study.current(store.rows())
        shared = [row for key, row in study.current((known or {}).values()).items() if key not in there]
        if shared:
            store.add(*shared)
            there |= {row["hash"]: row for row in shared}
            for line in strangers(shared, study.device):
                print(f"rwalk: {line}", file=sys.stderr)
        todo = study.missing(there, only)
        console = Console(stderr=True)
        tracking = Tracking(
            trackers, Curves(store.folder), lambda run, task: steps_of(run, study.stream(run.stream), task)
        )
        listeners = [open_displays.enter_context(tracking).watch] if trackers else []
        if show and todo:
            display: Live | Lines = Live(study, console) if console.is_terminal else Lines(study, _to_stderr)
            open_displays.enter_context(display)
            listeners.append(display.watch)

        def watch(event: Event) -> None:
            for listen in listeners:
                listen(event)

        try:
            rows = study.execute(store, watch, interrupts, only)
            if trackers and todo and (page := export.report_page(store.folder)):
                tracking.attach(page)
            return rows
        except (KeyboardInterrupt, WorkerDied) as error:
            print(
                f"rwalk: {str(error) or 'stopped'}; {len(store.rows())} of {len(study.runs)} runs are kept in "
                f"{store.folder}, and those in progress are saved: "
                f"{go_on or f'`{resume_command(study, store)}`'} resumes from there",
                file=sys.stderr,
            )
            code = 1 if isinstance(error, WorkerDied) else 128 + (interrupts.caught or 2)
            raise SystemExit(code) from None


def _to_stderr(line: str) -> None:
    print(f"rwalk: {line}", file=sys.stderr, flush=True)


def resume_command(study: Study, store: Store) -> str:
    """The command that resumes a study: study.json says neither where the data are nor which code to trust."""
    words = ["rwalk", "resume", str(store.folder)]
    words += [] if study.data is None else ["--data", str(study.data)]
    return shlex.join([*words, *trust.options(trust.named_by(study.runs))])


def _public(row: Row) -> Row:
    return {key: value for key, value in row.items() if key not in ("hash", "spec")}
