"""Trackers of a user's own: one that writes JSON, and some that fail it."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rwalk.studies.rows import Row
from rwalk.studies.trackers import Tracker
from rwalk.studies.trackers.tracker import Values, digest


class Diary(Tracker):
    """Every run is a file of what was logged, line by line."""

    name = "diary"

    def known(self) -> Mapping[str, str]:
        return {file.stem: json.loads(file.read_text()) for file in self._folder.glob("*.done")}

    def show(self, row: Row, history: Sequence[Values]) -> None:
        self._folder.mkdir(exist_ok=True)
        file = self._folder / f"{row.hash}.log"
        file.write_text("".join(json.dumps([step, dict(values)]) + "\n" for step, values in history))
        file.with_suffix(".done").write_text(json.dumps(digest(row)))

    def attach(self, page: Path) -> None:
        (self._folder / "page").write_text(str(page))

    @property
    def _folder(self) -> Path:
        return self.subject.folder / "diary"


class Failing(Diary):
    """Its server goes away after the first row."""

    def show(self, row: Row, history: Sequence[Values]) -> None:
        if self.known():
            raise ConnectionError("the server is gone\nand this is a second line")
        super().show(row, history)


class Unreachable(Diary):
    """Its server was never there."""

    def __enter__(self) -> Diary:
        raise ConnectionError("no server")


class Hanging(Diary):
    """Its server accepts a connection, and says nothing."""

    def show(self, row: Row, history: Sequence[Values]) -> None:
        time.sleep(3600)


def read(folder: Path) -> dict[str, list[Any]]:
    """By hash, what a diary holds of every finished run."""
    return {
        file.stem: [json.loads(line) for line in file.with_suffix(".log").read_text().splitlines()]
        for file in (folder / "diary").glob("*.done")
    }
