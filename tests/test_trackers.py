"""Trackers: what the tools people watch read back of a study, live and exported."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import little
import own_trackers
import readers
from rwalk import InputError, cli
from rwalk.cli.report_and_export import named
from rwalk.studies import trackers
from rwalk.studies.json_records import to_json
from rwalk.studies.losses_and_costs import Curves
from rwalk.studies.specs import RunSpec, steps_of
from rwalk.studies.study import Study
from rwalk.studies.study_folder import Store
from rwalk.studies.trackers import Shows, Subject, tracker

OPTIONS = ["--methods=vanilla,rwalk", "--seeds=2", "--steps=5", "--workers=1", "--quiet", "--out=study"]
PARALLEL = ["--workers=2" if each == "--workers=1" else each for each in OPTIONS]
Rwalk = Callable[..., tuple[int, str, str]]


@pytest.fixture
def rwalk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Rwalk:
    """The command in this process, in a folder of its own."""
    monkeypatch.setenv("RWALK_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.chdir(tmp_path)

    def call(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["rwalk", *words])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        return (int(ended.value.code or 0), *capsys.readouterr())

    return call


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], subprocess.Popen[bytes]]]:
    """Starts a real MLflow server over sqlite, at MLFLOW_TRACKING_URI; again, if it is called again."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    address = f"http://127.0.0.1:{port}"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    folder = tmp_path / "server"
    folder.mkdir()
    options = ["--backend-store-uri", f"sqlite:///{folder}/runs.db", "--artifacts-destination", f"{folder}/files"]
    command = [
        sys.executable,
        "-m",
        "mlflow",
        "server",
        *options,
        "--host=127.0.0.1",
        f"--port={port}",
        "--workers=1",
    ]
    environ = {**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    started: list[subprocess.Popen[bytes]] = []

    def start() -> subprocess.Popen[bytes]:
        with open(folder / "log", "wb") as log:
            process = subprocess.Popen(
                command, stdout=log, stderr=log, env=environ, cwd=folder, start_new_session=True
            )
        started.append(process)
        deadline = time.monotonic() + little.PATIENCE
        while time.monotonic() < deadline and process.poll() is None:
            try:
                with urllib.request.urlopen(f"{address}/health", timeout=5):
                    return process
            except OSError:
                time.sleep(0.2)
        raise AssertionError((folder / "log").read_text())

    yield start
    for process in started:
        end(process)


def end(server: subprocess.Popen[bytes]) -> None:
    """With its workers, at once."""
    if server.poll() is None:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()


def needs(package: str) -> list[pytest.MarkDecorator]:
    """Slow, and skipped where a tool is not installed; `make test-trackers` installs them all."""
    return [
        pytest.mark.slow,
        pytest.mark.skipif(importlib.util.find_spec(package) is None, reason=f"{package} is not installed"),
    ]


TOOLS = [
    "tensorboard",
    pytest.param("mlflow", marks=needs("mlflow")),
    pytest.param("wandb", marks=needs("wandb")),
]


@pytest.fixture
def tool(request: pytest.FixtureRequest) -> str:
    if request.param == "mlflow":
        request.getfixturevalue("server")()
    if request.param == "tensorboard":
        pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    return str(request.param)


def compare(shown: readers.Study, rows: list[Any]) -> None:
    """All that rows say is shown, exactly once."""
    assert shown.runs.keys() == {row.hash[:8] for row in rows}, "one run per row, and none for the references"
    for row in rows:
        run, tasks = shown.runs[row.hash[:8]], row.tasks
        for head in ("single", "multi"):
            for measure, value in to_json(row.measures(head)).items():
                assert run.values[f"{head}/{measure}"] == [(tasks, pytest.approx(value, rel=1e-6))]
            for task in range(tasks):
                column = [(k + 1, pytest.approx(row.accuracy[head][k][task])) for k in range(task, tasks)]
                assert run.values[f"{head}/task {task + 1}"] == column
        assert run.settings["method"] == row.method and float(run.settings["seed"]) == row.seed
        assert run.settings["stream.dataset"] == "digits" and float(run.settings["training.steps"]) == 5
        assert row.lam == 0 or float(run.settings["lam"]) == row.lam


def losses(shown: readers.Study) -> dict[str, list[tuple[int, Any]]]:
    return {
        key: [(step, pytest.approx(value, rel=1e-6)) for step, value in run.values["loss"]]
        for key, run in shown.runs.items()
    }


@pytest.mark.parametrize("tool", TOOLS, indirect=True)
def test_a_tracked_study_is_read_back_and_an_export_adds_nothing(tool: str, rwalk: Rwalk, tmp_path: Path) -> None:
    folder, read = tmp_path / "study", readers.READERS[tool]
    code, out, err = rwalk("run", *PARALLEL, f"--track={tool}", "--json")
    assert code == 0 and len(json.loads(out)["rows"]) == 4 and err == ""
    rows, shown = Store(folder).rows(), read(folder)
    compare(shown, rows)
    assert all([step for step, _ in run.values["loss"]][-1] == 25 for run in shown.runs.values())
    assert tool == "tensorboard" or shown.pages == ["report.html"]
    code, out, _ = rwalk("export", "study", f"--to={tool}")
    assert code == 0 and "0 of 4 runs added" in out
    assert read(folder) == shown


@pytest.mark.parametrize("tool", TOOLS, indirect=True)
def test_an_export_shows_what_tracking_would_have_shown_once(tool: str, rwalk: Rwalk, tmp_path: Path) -> None:
    folder, read = tmp_path / "study", readers.READERS[tool]
    assert rwalk("run", *OPTIONS)[0] == 0
    _, out, _ = rwalk("export", "study", f"--to={tool}")
    assert f"{tool}: 4 of 4 runs added" in out
    rows, shown = Store(folder).rows(), read(folder)
    compare(shown, rows)
    curves = Curves(folder)
    for run in Store(folder).study().runs:
        assert losses(shown)[run.hash()[:8]] == curves.of(run) and curves.of(run)[-1][0] == 25
    for _ in range(2):
        _, out, _ = rwalk("export", "study", f"--to={tool}")
        assert "0 of 4 runs added" in out and read(folder) == shown


@pytest.mark.parametrize("tool", TOOLS, indirect=True)
def test_a_run_that_was_trained_again_replaces_its_older_self(tool: str, rwalk: Rwalk, tmp_path: Path) -> None:
    folder, read = tmp_path / "study", readers.READERS[tool]
    assert rwalk("run", *OPTIONS)[0] == 0
    assert "4 of 4 runs added" in rwalk("export", "study", f"--to={tool}")[1]
    rows = Store(folder).rows()
    rows[2] = replace(rows[2], made=replace(rows[2].made, numerics=99))
    with Store(folder).opened(Store(folder).study()) as store:
        store.settle(rows)
    assert "1 of 4 runs added" in rwalk("export", "study", f"--to={tool}")[1]
    compare(read(folder), rows)


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("mlflow") is None, reason="mlflow is not installed")
def test_a_server_that_dies_does_not_stop_a_study(
    server: Callable[[], subprocess.Popen[bytes]], rwalk: Rwalk, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    process, folder = server(), tmp_path / "study"
    assert rwalk("run", *OPTIONS, "--track=mlflow")[0] == 0
    end(process)
    more = [*OPTIONS[:1], "--seeds=3", *OPTIONS[2:]]
    with caplog.at_level("WARNING"):
        assert rwalk("run", *more, "--track=mlflow")[0] == 0
    (warning,) = [line for line in caplog.messages if "tracker" in line]
    assert "the tracker mlflow failed" in warning and "rwalk export study --to mlflow" in warning
    rows = Store(folder).rows()
    assert len(rows) == 6
    server()
    assert "2 of 6 runs added" in rwalk("export", "study", "--to=mlflow")[1]
    compare(readers.mlflow(folder), rows)


# ── what holds for every tracker, shown by one of a user's own ────────────────────────────────────────────────


def tracked(study: Study, folder: Path, kind: type[own_trackers.Diary], **how: Any) -> list[Any]:
    def steps_before(run: RunSpec, task: int) -> int:
        return steps_of(run, study.stream(run.stream), task)

    def watch(event: Any) -> None:
        curves.watch(event)
        shows.watch(event)
        how.get("watch", lambda event: None)(event)

    record, curves = study.describe(), Curves(folder, steps_before)
    store, tracker = Store(folder), kind(Subject.of(folder, record))
    with store.opened(record), Shows(tracker, curves) as shows:
        return study.execute(store, watch, how.get("stop", lambda: False))


def test_an_interrupted_and_resumed_run_is_shown_as_one(tmp_path: Path) -> None:
    study = little.study(methods=["rwalk"], seeds=1, checkpoint_every=4)
    tracked(study, tmp_path / "whole", own_trackers.Diary)
    steps = 0

    def count(event: Any) -> None:
        nonlocal steps
        steps += type(event).__name__ == "Stepped"

    with pytest.raises(KeyboardInterrupt):
        tracked(study, tmp_path / "parts", own_trackers.Diary, watch=count, stop=lambda: steps >= 2)
    assert own_trackers.read(tmp_path / "parts") == {}
    tracked(study, tmp_path / "parts", own_trackers.Diary)
    ((_, whole),) = own_trackers.read(tmp_path / "whole").items()
    ((_, parts),) = own_trackers.read(tmp_path / "parts").items()
    measured = [line for line in whole if "loss" not in line[1]]
    assert sorted(map(str, measured)) == sorted(str(line) for line in parts if "loss" not in line[1])
    seen = [step for step, values in parts if "loss" in values]
    assert seen == sorted(set(seen)) and seen[-1] == max(step for step, values in whole if "loss" in values)


def test_steps_are_counted_on_over_tasks_of_different_length(tmp_path: Path) -> None:
    (run,) = little.study(methods=["vanilla"], seeds=1).runs
    long, short = (("0", "1", "2"), ("3",))
    run = replace(
        run,
        stream=replace(run.stream, classes_per_task=None, tasks=(long, short)),
        training=replace(run.training, steps=None, epochs=2),
    )
    study = Study((run,), "none", workers=1)
    tracked(study, tmp_path / "study", own_trackers.Diary)
    steps = [step for step, _ in Curves(tmp_path / "study").of(run)]
    assert steps[-1] == study.steps(run) and len(set(steps)) == len(steps)


@pytest.mark.parametrize("kind", ["Failing", "Unreachable"])
def test_a_tracker_that_fails_is_dropped_with_one_warning(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    study, folder = little.study(methods=["vanilla", "rwalk"], seeds=2), tmp_path / "study"
    with caplog.at_level("WARNING"):
        rows = tracked(study, folder, getattr(own_trackers, kind))
    assert rows == little.study(methods=["vanilla", "rwalk"], seeds=2).execute()
    (warning,) = caplog.messages
    assert "the tracker diary failed" in warning and "\n" not in warning
    assert f"`rwalk export {folder} --to diary` shows it later" in warning
    healthy = own_trackers.Diary(Subject.of(folder, study.describe()))
    there = len(own_trackers.read(folder))
    assert there < 4 and trackers.export(healthy, rows, Curves(folder)) == 4 - there
    assert own_trackers.read(folder).keys() == {row.hash for row in rows}


def test_a_tracker_that_hangs_holds_nothing_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tracker, "PATIENCE", 0.2)
    study = little.study(methods=["vanilla"], seeds=1)
    with caplog.at_level("WARNING"):
        rows = tracked(study, tmp_path / "study", own_trackers.Hanging)
    assert len(rows) == 1 and "it does not answer" in caplog.messages[0]


def test_losses_survive_a_damaged_file(tmp_path: Path) -> None:
    (run,) = little.study(methods=["vanilla"], seeds=1).runs
    curves = Curves(tmp_path)
    for step, loss in ((1, 0.5), (2, 0.25), (2, 1 / 3)):
        curves.add(run, step, loss)
    with curves.file.open("a") as file:
        file.write(f"{run.hash()},3")  # a crash in the middle of a line
    assert Curves(tmp_path).of(run) == [(1, 0.5), (2, 1 / 3)]
    assert Curves(tmp_path / "nowhere").of(run) == []


def test_exporting_imports_no_code_that_a_study_names(rwalk: Rwalk, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    Path("mine.py").write_text("from rwalk import RWalk\nclass Mine(RWalk):\n    name = ''\n")
    assert rwalk("run", "--methods=mine:Mine", "--set=lam=3", *OPTIONS[1:])[0] == 0
    del sys.modules["mine"]
    Path("mine.py").write_text("raise SystemExit('imported')")
    code, out, _ = rwalk("export", "study", "--to=tensorboard")
    assert code == 0 and "2 of 2 runs added" in out and "mine" not in sys.modules
    assert {run.settings["lam"] for run in readers.tensorboard(tmp_path / "study").runs.values()} == {"3.0"}


def test_a_tracker_that_is_named_twice_is_asked_once(tmp_path: Path) -> None:
    found = named("own_trackers:Diary, own_trackers:Diary,", tmp_path, little.study(seeds=1).describe())
    assert [type(each) for each in found] == [own_trackers.Diary]


def test_a_tracker_that_is_not_there_is_refused(rwalk: Rwalk, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="did you mean 'tensorboard'"):
        trackers.find("tensorbord")
    code, _, err = rwalk("run", *OPTIONS, "--track=mlflo")
    assert code == 2 and "did you mean 'mlflow'" in err and not (tmp_path / "study").exists()
    code, _, err = rwalk("export", "study", "--to=tensorboard")
    assert code == 2 and err.count("\n") == 1 and "holds no study" in err


@pytest.mark.parametrize("name", ["mlflow", "wandb"])
def test_a_missing_package_is_named_before_anything_runs(
    name: str, rwalk: Rwalk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(
        "rwalk.studies.trackers.tracker.find_spec", lambda module: None if module == name else real(module)
    )
    code, _, err = rwalk("run", *OPTIONS, f"--track={name}")
    assert code == 2 and f"pip install 'rwalk[{name}]'" in err and err.count("\n") == 1
    assert not (tmp_path / "study").exists()
