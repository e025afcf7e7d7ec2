"""All loaders of `loaders.py`, several at a time, and a table of what was found: `make fuzz JOBS=2 SECONDS=60`.

    python tests/fuzz JOBS SECONDS FOLDER [LOADER ...]

A loader that fails leaves the input and its output in FOLDER, under the loader's name. The exit code is then 1.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

LOADERS = Path(__file__).with_name("loaders.py")


class Found(NamedTuple):
    inputs: int
    crashes: int
    seconds: float
    failed: bool


def names() -> list[str]:
    """The keys of the table in `loaders.py`, whose imports take a while."""
    for node in ast.parse(LOADERS.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == "LOADERS":
            return [ast.literal_eval(key) for key in node.value.keys]  # type: ignore[union-attr]
    raise AssertionError("loaders.py has no table LOADERS")


def fuzzed(name: str, seconds: int, folder: Path) -> Found:
    (place := folder / name).mkdir(parents=True, exist_ok=True)
    for old in place.iterdir():
        old.unlink()
    command = [sys.executable, LOADERS, name, f"-max_total_time={seconds}", "-print_final_stats=1"]
    begun = time.monotonic()
    with open(place / "output.txt", "wb") as log:
        code = subprocess.run(command, cwd=place, stdout=log, stderr=log, check=False).returncode
    said = (place / "output.txt").read_text(errors="replace")
    inputs = re.search(r"number_of_executed_units: (\d+)", said)
    crashes = [path for path in place.iterdir() if re.match("crash-|oom-|timeout-|leak-", path.name)]
    return Found(int(inputs[1]) if inputs else 0, len(crashes), time.monotonic() - begun, code != 0 or not inputs)


def main(jobs: int, seconds: int, folder: Path, chosen: list[str]) -> int:
    failed = 0
    print(f"{'loader':12}{'inputs':>12}{'crashes':>9}{'seconds':>9}")
    with ThreadPoolExecutor(jobs) as pool:
        for name, found in zip(chosen, pool.map(lambda name: fuzzed(name, seconds, folder), chosen), strict=True):
            remark = f"  failed: see {folder / name}" if found.failed else ""
            print(f"{name:12}{found.inputs:12,}{found.crashes:9}{found.seconds:9.0f}{remark}", flush=True)
            failed += found.failed
    return min(failed, 1)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]).resolve(), sys.argv[4:] or names()))
