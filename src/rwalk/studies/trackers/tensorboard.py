"""TensorBoard: event files in the study's folder, one run per row."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from rwalk.atomic_files import write_atomically
from rwalk.studies.rows import Row
from rwalk.studies.trackers.tracker import Subject, Tracker, Values, digest, measures, run_title, settings

MARK = "rwalk-row"  # a file beside a run's events once it is finished; TensorBoard reads event files only


class TensorBoard(Tracker):
    """`tensorboard --logdir FOLDER/tensorboard` shows losses, accuracies, A, F, I and hyper-parameters."""

    name: ClassVar[str] = "tensorboard"
    summary: ClassVar[str] = "event files in the study's folder, for `tensorboard --logdir`"
    package: ClassVar[str] = "tensorboard"

    def __init__(self, subject: Subject) -> None:
        super().__init__(subject)
        self._folder = subject.folder / "tensorboard"

    def known(self) -> Mapping[str, str]:
        marks = [path.read_text(errors="replace").split() for path in self._folder.glob(f"*/{MARK}")]
        return {mark[0]: mark[1] for mark in marks if len(mark) == 2}

    def show(self, row: Row, history: Sequence[Values]) -> None:
        from torch.utils.tensorboard import SummaryWriter
        from torch.utils.tensorboard.summary import hparams

        folder = self._folder / run_title(row.spec)
        shutil.rmtree(folder, ignore_errors=True)
        with SummaryWriter(str(folder)) as writer:
            for step, values in history:
                for name, value in values.items():
                    writer.add_scalar(name, value, step)
            for summary in hparams(settings(row.spec), measures(row)):
                writer.file_writer.add_summary(summary)
        write_atomically(folder / MARK, f"{row.hash} {digest(row)}\n")

    def attach(self, page: Path) -> None:
        """TensorBoard shows no pages: the report is in the study's folder."""
