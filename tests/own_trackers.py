"""Trackers of a user's own: one that writes JSON, and some that fail it."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rwalk.studies.specs import RunSpec
from rwalk.studies.trackers import Tracker
from rwalk.studies.trackers.tracker import digest


class Diary(Tracker):
    """Every run is a file of what was logged, line by line."""

    name = "diary"

    def known(self) -> Mapping[str, str]:
        return {file.stem: json.loads(file.read_text()) for file in self._folder.glob("*.done")}

    def begin(self, run: RunSpec) -> None:
        self._folder.mkdir(exist_ok=True)
        self._file(run).write_text("")

    def log(self, run: RunSpec, values: Mapping[str, float], step: int) -> None:
        with self._file(run).open("a") as file:
            file.write(json.dumps([step, dict(values)]) + "\n")

    def finish(self, run: RunSpec, row: Mapping[str, Any]) -> None:
        self._file(run).with_suffix(".done").write_text(json.dumps(digest(row)))

    def attach(self, page: Path) -> None:
        (self._folder / "page").write_text(str(page))

    @property
    def _folder(self) -> Path:
        return self.subject.folder / "diary"

    def _file(self, run: RunSpec) -> Path:
        return self._folder / f"{run.hash()}.log"


class Failing(Diary):
    """Its server goes away after a few calls."""

    calls = 0

    def log(self, run: RunSpec, values: Mapping[str, float], step: int) -> None:
        self.calls += 1
        if self.calls > 5:
            raise ConnectionError("the server is gone\nand this is a second line")
        super().log(run, values, step)


class Unreachable(Diary):
    """Its server was never there."""

    def __enter__(self) -> Diary:
        raise ConnectionError("no server")


class Hanging(Diary):
    """Its server accepts a connection, and says nothing."""

    def begin(self, run: RunSpec) -> None:
        time.sleep(3600)


def read(folder: Path) -> dict[str, list[Any]]:
    """By hash, what a diary holds of every finished run."""
    return {
        file.stem: [json.loads(line) for line in file.with_suffix(".log").read_text().splitlines()]
        for file in (folder / "diary").glob("*.done")
    }
