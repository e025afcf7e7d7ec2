"""TensorBoard: event files in the study's folder, one run per row."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from rwalk.atomic_files import write_atomically
from rwalk.studies.rows import Row
from rwalk.studies.specs import RunSpec
from rwalk.studies.trackers.tracker import Subject, Tracker, digest, measures, run_title, settings

MARK = "rwalk-row"  # a file beside a run's events once it is finished; TensorBoard reads event files only


class TensorBoard(Tracker):
    """`tensorboard --logdir FOLDER/tensorboard` shows losses, accuracies, A, F, I and hyper-parameters."""

    name: ClassVar[str] = "tensorboard"
    summary: ClassVar[str] = "event files in the study's folder, for `tensorboard --logdir`"
    package: ClassVar[str] = "tensorboard"

    def __init__(self, subject: Subject) -> None:
        super().__init__(subject)
        self._folder = subject.folder / "tensorboard"
        self._writers: dict[str, Any] = {}

    def __exit__(self, *error: object) -> None:
        for writer in self._writers.values():
            writer.close()

    def known(self) -> Mapping[str, str]:
        marks = [path.read_text(errors="replace").split() for path in self._folder.glob(f"*/{MARK}")]
        return {mark[0]: mark[1] for mark in marks if len(mark) == 2}

    def begin(self, run: RunSpec) -> None:
        from torch.utils.tensorboard import SummaryWriter

        folder = self._folder / run_title(run)
        shutil.rmtree(folder, ignore_errors=True)
        self._writers[run.hash()] = SummaryWriter(str(folder))

    def log(self, run: RunSpec, values: Mapping[str, float], step: int) -> None:
        for name, value in values.items():
            self._writers[run.hash()].add_scalar(name, value, step)

    def finish(self, run: RunSpec, row: Row) -> None:
        from torch.utils.tensorboard.summary import hparams

        found = measures(row)
        self.log(run, found, row.tasks)
        writer = self._writers.pop(run.hash())
        for summary in hparams(settings(run), found):
            writer.file_writer.add_summary(summary)
        writer.close()
        write_atomically(self._folder / run_title(run) / MARK, f"{run.hash()} {digest(row)}\n")

    def attach(self, page: Path) -> None:
        """TensorBoard shows no pages: the report is in the study's folder."""
