"""Rows are the same wherever a study is trained: by local processes, or by processes that join a folder."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import little

# Two experiments that share a method's runs and all references, in the place of two of the paper's tables.
TINY = """
from dataclasses import replace
from rwalk.cli import main
from reproduction.__main__ import app
from reproduction.paper_experiments import EXPERIMENTS, Entry, Experiment
from rwalk.studies.specs import RunSpec, StreamSpec
from rwalk.training import Training

run = RunSpec(StreamSpec("digits"), training=Training(steps=3))
for table, methods in {"tableS1": ("vanilla", "rwalk"), "tableS2-mnist": ("rwalk", "pi")}.items():
    entries = [Entry(name, replace(run, method=name), "single", "tiny") for name in methods]
    EXPERIMENTS[table] = Experiment(table, "Tiny", "seconds", lambda entries=entries: iter(entries), seeds=2)
main(app)
"""
TABLES = ("tableS1", "tableS2-mnist")
ROOT = Path(__file__).parent.parent


def begun(folder: Path, program: list[str], *arguments: str, **environ: str) -> subprocess.Popen[str]:
    """rwalk in a folder, with a cache of reference models that nobody else has."""
    folder.mkdir(exist_ok=True)
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])  # for `reproduction`
    around = {**os.environ, "PYTHONPATH": path, "RWALK_CACHE": str(folder / "cache"), **environ}
    pipe = subprocess.PIPE
    command = [sys.executable, *program, *arguments, "--device=cpu", "--quiet"]
    return subprocess.Popen(command, cwd=folder, env=around, stdout=pipe, stderr=pipe, text=True)


def ended(*processes: subprocess.Popen[str]) -> None:
    try:
        for process in processes:
            _, err = process.communicate(timeout=3 * little.PATIENCE)
            assert process.returncode == 0, err
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def tiny(folder: Path, *options: str) -> subprocess.Popen[str]:
    return begun(folder, ["-c", TINY], *TABLES, *options)


def rows(folder: Path) -> dict[str, bytes]:
    return {path.parent.name: path.read_bytes() for path in sorted(folder.glob("results/*/runs.jsonl"))}


def test_experiments_reproduced_by_processes_that_join(tmp_path: Path) -> None:
    alone, shared = tmp_path / "alone", tmp_path / "shared"
    ended(tiny(alone, "--workers=1"), *(tiny(shared, "--join") for _ in range(2)))
    assert rows(shared) == rows(alone) and [*rows(alone)] == [*TABLES]
    assert (shared / "RESULTS.md").read_bytes() == (alone / "RESULTS.md").read_bytes()
    outcomes = [len(list((shared / "results" / table / "outcomes").iterdir())) for table in TABLES]
    assert outcomes == [4 + 2, 2], "what the first table has is not trained again: four runs and two references"


# ── the real thing: `make test-everywhere` ────────────────────────────────────────────────────────────────────


def by_all(folder: Path, *arguments: str) -> Iterator[Path]:
    """The folders in which local processes and three joined processes did the same."""
    for name in ("local", "join"):
        started = time.monotonic()
        if name == "local":
            ended(begun(folder / name, ["-m"], *arguments, "--workers=2"))
        else:
            ended(*(begun(folder / name, ["-m"], *arguments, "--join") for _ in range(3)))
        print(f"{' '.join(arguments)}, {name}: {time.monotonic() - started:.0f} s")
        yield folder / name


def same_rows(folders: Iterator[Path], file: str, count: int) -> None:
    contents = [(folder / file).read_bytes() for folder in folders]
    assert len(set(contents)) == 1 and len(contents) == 2
    assert len(contents[0].splitlines()) == count


@pytest.mark.slow
def test_the_demonstration_everywhere(tmp_path: Path) -> None:
    from rwalk.demonstration.story import runs

    same_rows(by_all(tmp_path, "rwalk", "run", "--out=study"), "study/runs.jsonl", len(runs()))


@pytest.mark.slow
def test_table_1_everywhere(tmp_path: Path) -> None:
    """The MNIST half, two seeds; RWALK_DATA says where the files are, if they cannot be downloaded."""
    folders = by_all(tmp_path, "reproduction", "table1-mnist", "--seeds=2")
    same_rows(folders, "results/table1-mnist-2-seeds/runs.jsonl", 22)
