"""What a tracker is: it listens to the events of a study, in the one process that writes its rows."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Self

from rwalk.studies.events import Event


class Tracker:
    """Base of all trackers; `folder` is the study's."""

    name: ClassVar[str] = ""
    summary: ClassVar[str] = ""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        return None

    def watch(self, event: Event) -> None:
        """Something happened in the study."""
        raise NotImplementedError
