"""TensorBoard: one run of its own for every row, with losses, accuracies per task and A, F, I."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from rwalk.errors import InputError
from rwalk.metrics import HEADS
from rwalk.studies.events import Event, RowDone, Stepped, TaskMeasured
from rwalk.studies.specs import RunSpec
from rwalk.studies.trackers.base import Tracker


class TensorBoard(Tracker):
    """Event files under the study's folder: `tensorboard --logdir FOLDER/tensorboard` shows them."""

    name: ClassVar[str] = "tensorboard"
    summary: ClassVar[str] = "event files under the study's folder, for `tensorboard --logdir`"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise InputError("tracking with TensorBoard needs it: pip install 'rwalk[tensorboard]'") from None
        self._new: Any = SummaryWriter
        self._writers: dict[str, Any] = {}

    def __exit__(self, *error: object) -> None:
        for writer in self._writers.values():
            writer.close()

    def watch(self, event: Event) -> None:
        if isinstance(event, Stepped | TaskMeasured) and event.runs[0].reference is not None:
            return
        if isinstance(event, Stepped) and len(event.runs) == 1:  # a fleet tells one mean of all its losses
            task, _, step, steps, loss = event.progress
            self._writer(event.runs[0]).add_scalar("loss", loss, task * steps + step)
        elif isinstance(event, TaskMeasured):
            task, _, accuracy = event.measured
            for number, run in enumerate(event.runs):
                for head in HEADS:
                    for old, value in enumerate(accuracy[head][number]):
                        self._writer(run).add_scalar(f"{head}/task {old + 1}", value, task + 1)
        elif isinstance(event, RowDone):
            run = RunSpec.from_json(event.row["spec"])
            writer = self._writer(run)
            for head in HEADS:
                for measure, value in event.row[head].items():
                    if value is not None:
                        writer.add_scalar(f"{head}/{measure}", value, len(event.row["accuracy"][head]))
            writer.flush()

    def _writer(self, run: RunSpec) -> Any:
        """Named so that it can be found in a list; by its hash, so that it is written once."""
        key = run.hash()
        if key not in self._writers:
            strength = f" λ={run.lam:g}" if run.lam else ""
            name = f"{run.method.replace(':', '.')}{strength} seed {run.seed} {key[:8]}"
            self._writers[key] = self._new(str(self.folder / "tensorboard" / name))
        return self._writers[key]
