"""Weights & Biases: one run per row, all in the group of their study."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar, Self

from rwalk.atomic_files import write_atomically
from rwalk.errors import InputError
from rwalk.escaping import all_shown
from rwalk.metrics import HEADS
from rwalk.studies.json_records import content_hash
from rwalk.studies.rows import Row
from rwalk.studies.trackers.tracker import Subject, Tracker, Values, digest, run_title, settings


class WandB(Tracker):
    """Writes to the project WANDB_PROJECT (default: rwalk); with WANDB_MODE=offline into FOLDER/wandb.

    W&B does not nest runs: a study is a group, and an additional run of type "study" holds the report page.
    Offline files cannot be searched, so FOLDER/wandb also lists the rows that were written. A run's id follows
    from its row's hash, so that W&B replaces a run that is written again.
    """

    name: ClassVar[str] = "wandb"
    summary: ClassVar[str] = "runs of one group in Weights & Biases: WANDB_PROJECT, WANDB_MODE=offline"
    package: ClassVar[str] = "wandb"

    def __init__(self, subject: Subject) -> None:
        super().__init__(subject)
        self._project = os.environ.get("WANDB_PROJECT") or "rwalk"
        self._mode = os.environ.get("WANDB_MODE") or "online"
        if self._mode == "online":
            _check_login()
        self._folder = subject.folder / "wandb"
        self._note = self._folder / f"rwalk-rows-{content_hash([self._project, self._mode])[:8]}.json"
        self._written: dict[str, str] = {}

    def __enter__(self) -> Self:
        with suppress(OSError, ValueError, TypeError):  # a damaged note: all rows are written again
            self._written = dict(json.loads(self._note.read_text()))
        return self

    def known(self) -> Mapping[str, str]:
        return self._written

    def show(self, row: Row, history: Sequence[Values]) -> None:
        run = self._new_run(row.hash, run_title(row.spec), "row", settings(row.spec))
        run.define_metric("step", hidden=True)
        run.define_metric("task", hidden=True)
        run.define_metric("loss", step_metric="step")
        for head in HEADS:
            run.define_metric(f"{head}/*", step_metric="task")
        for step, values in history:
            run.log({**values, "step" if "loss" in values else "task": step})
        run.summary.update({"rwalk.row": row.hash, "rwalk.stopped": all_shown(row.stopped)})
        run.finish()
        self._written[row.hash] = digest(row)
        write_atomically(self._note, json.dumps(self._written, indent=1) + "\n")

    def attach(self, page: Path) -> None:
        import wandb

        parent = self._new_run("study", self.subject.name, "study", {})
        report = wandb.Artifact("report", "report")
        report.add_file(str(page))
        parent.log_artifact(report)
        parent.finish()

    def _new_run(self, key: str, name: str, kind: str, config: Mapping[str, Any]) -> Any:
        import wandb

        this = content_hash([self.subject.name, key])[:16]
        for leftover in self._folder.glob(f"offline-run-*-{this}"):
            shutil.rmtree(leftover, ignore_errors=True)
        self._folder.mkdir(parents=True, exist_ok=True)
        return wandb.init(
            project=self._project,
            group=self.subject.name,
            job_type=kind,
            name=name,
            id=this,
            config=dict(config),
            dir=str(self.subject.folder.resolve()),  # W&B's own process may be in another folder
            mode=self._mode,
            reinit="create_new",
            settings=wandb.Settings(silent=True, console="off", x_disable_stats=True, x_disable_meta=True),
        )


def _check_login() -> None:
    """Check for a key before the study: W&B would prompt for it in the middle."""
    import wandb

    if not wandb.login(prompt=False):
        raise InputError("Weights & Biases has no API key: run `wandb login`, or set WANDB_MODE=offline")
