"""Trackers: what the tools people watch read back of a study."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from rwalk import InputError, cli
from rwalk.studies import trackers
from rwalk.studies.store import Store

pytest.importorskip("tensorboard", reason="tensorboard is not installed")


def rwalk(*words: str, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(sys, "argv", ["rwalk", *words])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    return int(ended.value.code or 0)


def test_tensorboard_reads_every_row_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    monkeypatch.setenv("RWALK_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    options = ["--methods=vanilla,rwalk", "--seeds=2", "--steps=5", "--workers=2", "--quiet", "--out=study"]
    assert rwalk("run", *options, "--track=tensorboard", monkeypatch=monkeypatch) == 0
    rows = {row["hash"][:8]: row for row in Store(tmp_path / "study").rows()}
    found = {}
    for folder in (tmp_path / "study" / "tensorboard").iterdir():
        events = EventAccumulator(str(folder)).Reload()
        found[folder.name[-8:]] = events
        assert events.Scalars("loss")[-1].step == 25, "five tasks of five steps"
    assert found.keys() == rows.keys(), "one run per row, and none for the references"
    for key, row in rows.items():
        assert found[key].Scalars("single/A")[-1].value == pytest.approx(row["single"]["A"], rel=1e-6)
        last = [found[key].Scalars(f"multi/task {task + 1}")[-1].value for task in range(5)]
        assert last == pytest.approx(row["accuracy"]["multi"][-1], rel=1e-6)


def test_a_tracker_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="did you mean 'tensorboard'"):
        trackers.find("tensorbord")
