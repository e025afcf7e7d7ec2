"""The executor of a Ray cluster: every run, or fleet on a GPU, is one plain task, wherever there is room for it.

Tasks return their outcomes to the one process that writes the study. Data and the user's own code are put into
Ray's object store once. When a worker or a node is lost, Ray gives its task to another, which resumes from the
last checkpoint if it sees the study's folder; from a node that does not, checkpoints travel when a study stops.
"""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import torch

from rwalk.errors import InputError, first_line
from rwalk.files import write_atomically
from rwalk.studies.executors.base import Context, Executor, Job, Outcomes, Report, attempt
from rwalk.studies.executors.ray_tasks import Tasks
from rwalk.studies.workers import Crew, Stop, Work


class Saved(NamedTuple):
    """The checkpoints of a run that was told to stop, from a node that does not see the study's folder."""

    files: dict[str, bytes]


class Ray(Executor):
    """On a CPU one core per run, on CUDA one GPU per fleet."""

    name: ClassVar[str] = "ray"
    summary: ClassVar[str] = (
        "a Ray cluster (RAY_ADDRESS, or `ray start`), else the cores of this machine through Ray"
    )

    def __init__(self, context: Context, workers: int, stop: Stop) -> None:
        # Ray moves the working directory, and gives each task a GPU of its own, which is that process's first.
        folder = context.checkpoints.absolute() if context.checkpoints else None
        super().__init__(
            context._replace(device=torch.device(context.device).type, checkpoints=folder), workers, stop
        )
        self._mark = f".seen-{secrets.token_hex(8)}"

    @classmethod
    def crew(cls, work: Work, shared: Any, workers: int, device: str = "cpu", code: Sequence[str] = ()) -> Crew:
        return Tasks(work, shared, workers, device, code)

    @classmethod
    def workers_for(cls, jobs: int, device: str, asked: int | None) -> int:
        return asked or 0  # as many as the cluster has room for

    @classmethod
    def check_device(cls, device: str) -> None:
        """The devices are those of other machines."""
        try:
            torch.device(device)
        except RuntimeError as error:
            raise InputError(f"there is no device {device!r} ({first_line(error)}): give cpu or cuda") from None

    def shared(self) -> tuple[Context, str]:
        """The context, and a mark in the study's folder, by which a node knows that it sees the folder."""
        if self.context.checkpoints:
            write_atomically(self.context.checkpoints / self._mark, b"")
        return self.context, self._mark

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        if self.context.checkpoints:
            (self.context.checkpoints / self._mark).unlink(missing_ok=True)

    def jobs_of(self, specs: Sequence[Any]) -> list[Job]:
        if specs and self.in_fleets() and not self.workers:
            crew = self.hired()
            assert isinstance(crew, Tasks)
            self.workers = crew.places()
        return super().jobs_of(specs)

    def sent(self, job: Job) -> tuple[Job, dict[str, bytes]]:
        """A job, with the checkpoints that it goes on from."""
        folder = self.context.folder(job)
        return job, _files_in(folder) if folder else {}

    def run(self, jobs: Sequence[Job], report: Report) -> Iterator[Outcomes]:
        def note(job: Job, news: Any) -> None:
            if isinstance(news, Saved):
                folder = self.context.folder(job)
                assert folder is not None
                _write(folder, news.files)
            else:
                report(job, news)

        return super().run(jobs, note)


def _train_anywhere(
    shared: tuple[Context, str], sent: tuple[Job, dict[str, bytes]], report: Callable[[Any], None], stop: Stop
) -> Any:
    """Train a job on whatever machine this is, in the study's folder if that can be seen from here."""
    (context, mark), (job, checkpoints) = shared, sent
    if context.checkpoints is None or (context.checkpoints / mark).exists():
        return attempt(context, job, report, stop)
    if context.keep:
        raise InputError("models can be kept only in a folder that every node sees: choose another --out")
    with tempfile.TemporaryDirectory(prefix="rwalk-") as folder:
        context = context._replace(checkpoints=Path(folder))
        own = context.folder(job)
        assert own is not None
        _write(own, checkpoints)
        try:
            return attempt(context, job, report, stop)
        except KeyboardInterrupt:
            report(Saved(_files_in(own)))
            raise


Ray.work = staticmethod(_train_anywhere)


def _files_in(folder: Path) -> dict[str, bytes]:
    with suppress(FileNotFoundError):
        return {path.name: path.read_bytes() for path in folder.iterdir() if not path.name.startswith(".")}
    return {}


def _write(folder: Path, files: dict[str, bytes]) -> None:
    """Records last: a checkpoint without one does not count."""
    for name in sorted(files, key=lambda name: (name.endswith(".json"), name)):
        write_atomically(folder / name, files[name])
