"""The n-th open, write, fsync and rename of every command fails: one line or absorbed, and nothing is lost."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
COMPILER = shutil.which(os.environ.get("CC", "cc"))
pytestmark = pytest.mark.skipif(
    COMPILER is None or not sys.platform.startswith("linux"), reason="needs a C compiler, and preloading"
)


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library to preload, which makes file operations fail."""
    built = tmp_path_factory.mktemp("faults") / "faults.so"
    assert COMPILER is not None
    subprocess.run([COMPILER, "-shared", "-fPIC", "-O1", "-o", built, HERE / "faults.c", "-ldl"], check=True)
    return built


def failing(command: str, library: Path, folder: Path, step: int) -> list[dict[str, object]]:
    path = os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "LD_PRELOAD": str(library), "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    program = [sys.executable, str(HERE / "file_faults.py"), str(folder), command, str(step)]
    done = subprocess.run(program, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    for each in found:
        print(f"\n{command}: {each['tried']} of {each['operations']} times {each['kind']} failed", end="")
    return found


@pytest.mark.slow
@pytest.mark.parametrize("command", ["report", "save", "fit", "run", "join"])
def test_every_file_operation_that_fails_is_one_line_or_absorbed(
    command: str, library: Path, tmp_path: Path
) -> None:
    found = failing(command, library, tmp_path, step=int(os.environ.get("RWALK_FAULTS_STEP", "1")))
    assert [each["kind"] for each in found] == ["open", "write", "fsync", "rename"]
    assert all(each["tried"] for each in found)
    assert [each["faults"] for each in found] == [[], [], [], []]
