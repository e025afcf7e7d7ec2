"""Processes that join, grow, stop, continue and die at random, and clocks that jump: no row is ever lost."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from test_file_faults import library  # noqa: F401 - a fixture

HERE = Path(__file__).parent
pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are made with fork")


def scheduled(folder: Path, number: int, seed: int, preload: str = "") -> list[dict[str, Any]]:
    path = os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "LD_PRELOAD": preload}
    program = [sys.executable, str(HERE / "schedules.py"), str(folder), str(number), str(seed)]
    done = subprocess.run(program, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.slow
def test_random_schedules_of_kills_lose_no_row(tmp_path: Path) -> None:
    number = int(os.environ.get("RWALK_SCHEDULES", "200"))
    *_, counts = scheduled(tmp_path / "base", number, seed=1)
    print(f"\n{counts}", end="")
    assert counts["schedules"] == number


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="a library is preloaded")
def test_a_clock_that_jumps_by_an_hour_on_one_of_three_who_join_changes_nothing(
    library: Path,  # noqa: F811
    tmp_path: Path,
) -> None:
    assert scheduled(tmp_path / "base", 0, seed=0, preload=str(library)) == [{"jump": 3600}, {"jump": -3600}]
